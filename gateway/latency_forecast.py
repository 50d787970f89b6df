"""The basis of a choice between backends: predicted latencies and remaining budgets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """The request's latency budgets less the time already spent, in seconds, or None without such a budget."""

    total_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def has_budget(self) -> bool:
        return not (self.total_s is None and self.ttft_s is None and self.tpot_s is None)

    @property
    def spent(self) -> bool:
        """Whether the budget is used up, so that no backend can answer in time."""
        return (self.total_s is not None and self.total_s <= 0) or (self.ttft_s is not None and self.ttft_s <= 0)


@dataclass(frozen=True, slots=True)
class LatencyForecast:
    """Predicted latencies of the backends.

    `predictions`, by backend: None if there are no recent measurements, infinite while another request is measuring.
    `confidence`, in (0, 1): the probability with which each prediction is kept.
    """

    remaining: RemainingBudget
    predictions: Mapping[str, Prediction | None]
    confidence: float

    def as_json(self) -> dict[str, Any]:
        """Return the forecast in seconds; null for a backend without measurements."""
        return {
            "confidence": self.confidence,
            "left": asdict(self.remaining),
            "backends": {
                name: None if prediction is None or math.isinf(prediction.total_s) else asdict(prediction)
                for name, prediction in self.predictions.items()
            },
        }

    def server_timing(self) -> str:
        """Return the `Server-Timing` text: `light=0.21 large=1.4 left=0.78 sure=0.62`, in seconds; `?` means unknown.

        A budget for the first token or for each further token has a prefix: `ttft.light=0.1`.
        """
        return " ".join([*self._figures(), f"sure={self.confidence:.2f}"])

    def describe(self) -> str:
        return f"with {self.confidence:.0%} confidence, in seconds: {', '.join(self._figures())}"

    def _figures(self) -> Iterator[str]:
        remaining = self.remaining
        for prefix, field, budget_s in (
            ("", "total_s", remaining.total_s),
            ("ttft.", "ttft_s", remaining.ttft_s),
            ("tpot.", "tpot_s", remaining.tpot_s),
        ):
            if budget_s is not None:
                for name, prediction in self.predictions.items():
                    yield f"{prefix}{name}={_format(None if prediction is None else getattr(prediction, field))}"
                yield f"{prefix}left={_format(budget_s)}"


def _format(seconds: float | None) -> str:
    return "?" if seconds is None or math.isinf(seconds) else f"{seconds:.3g}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Upper bounds in seconds. Each is kept with the requested confidence."""

    ttft_s: float
    tpot_s: float  # 0 for answers that come in one piece
    total_s: float
