"""What a choice between backends is made by: what each is predicted to take, and what is left. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of the request's budgets after the time already spent, in seconds; None: no such budget."""

    total_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def has_budget(self) -> bool:
        return not (self.total_s is None and self.ttft_s is None and self.tpot_s is None)

    @property
    def spent(self) -> bool:
        """Whether it is too late for whoever is asked."""
        return (self.total_s is not None and self.total_s <= 0) or (self.ttft_s is not None and self.ttft_s <= 0)


@dataclass(frozen=True, slots=True)
class LatencyForecast:
    """`predictions`: by backend; None of whom nothing recent is known, endless of whom somebody is finding out.
    `confidence`: with which each of them is kept, in (0, 1)."""

    remaining: Remaining
    predictions: Mapping[str, Prediction | None]
    confidence: float

    def as_json(self) -> dict[str, Any]:
        """Seconds; null where nothing is known."""
        return {
            "confidence": self.confidence,
            "left": asdict(self.remaining),
            "backends": {
                name: None if prediction is None or math.isinf(prediction.total_s) else asdict(prediction)
                for name, prediction in self.predictions.items()
            },
        }

    def server_timing(self) -> str:
        """For `Server-Timing`: `light=0.21 large=1.4 left=0.78 sure=0.62`, in seconds, `?` where nothing is known. A
        bound on the first token or on each further one has its own, `ttft.light=0.1`."""
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
    """Upper bounds in seconds, each kept with the confidence that was asked for."""

    ttft_s: float
    tpot_s: float  # 0 for answers that come in one piece
    total_s: float
