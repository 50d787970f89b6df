"""What a route has met since the last look, for other gateways to add to theirs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Traffic:
    """Sums: those of two gateways add up to what one would have met."""

    requests: int = 0
    met: dict[int, int] = field(default_factory=dict)  # neighbours by band of their score
    sized: float = 0.0  # as in `Ledger`
    log_size: float = 0.0
    hits: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.met or self.hits)

    def as_row(self) -> tuple[Any, ...]:
        return self.requests, self.met, self.sized, self.log_size, self.hits

    @classmethod
    def of_row(cls, row: tuple[Any, ...]) -> Traffic:
        """Raises `ValueError` or `TypeError` where it is none."""
        requests, met, sized, log_size, hits = row
        if not isinstance(met, Mapping):
            raise TypeError(f"bands as {type(met).__name__}")
        counts = {int(band): int(count) for band, count in met.items()}
        traffic = cls(int(requests), counts, float(sized), float(log_size), int(hits))
        if min(traffic.requests, traffic.hits, *counts.values(), 0) < 0:
            raise ValueError("counts that are negative")
        return traffic
