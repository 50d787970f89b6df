"""Models the latency of a replayed request. Pure.

If the outcome is the recorded one, the latency is the recorded one. Otherwise it is a sample of similar requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gateway.steps.traffic_log.format import RecordedRequest

# Spreads the requests over the samples, the same way in each run (Knuth, The Art of Computer Programming, 6.4).
_MULTIPLIER, _SPAN = 2654435761, 2**32
CALL_VERDICTS = ("miss", "bypass")
SAMPLE = 20_000  # requests whose steps are read: enough for their median
STEPS = ("exact", "embed", "search", "verify")


class LatencyModel:
    """The latencies of the recorded traffic, in seconds."""

    def __init__(self, requests: Sequence[RecordedRequest]) -> None:
        pools: dict[str, list[float]] = defaultdict(list)
        steps: dict[str, list[float]] = defaultdict(list)
        own: list[float] = []
        every = max(1, len(requests) // SAMPLE)
        for at, row in enumerate(requests):
            if at % every == 0:
                for step, taken in row.stages.items():
                    steps[step].append(taken)
            if row.status != 200:
                continue
            if row.verdict in CALL_VERDICTS:
                if row.backend is not None:
                    pools[f"backend {row.backend}"].append(row.seconds)
                if at % every == 0:
                    own.append(sum(row.stages.get(step, 0.0) for step in STEPS))
            else:
                pools[row.verdict].append(row.seconds)
        self._pools = {name: np.sort(np.array(pool)).tolist() for name, pool in pools.items()}
        self._steps = {step: float(np.median(steps[step])) for step in STEPS if step in steps}
        self.overhead_s = float(np.median(own)) if own else 0.0  # overhead of a miss before its backend is called

    def backends(self) -> frozenset[str]:
        """Return the backends with at least one recorded answer."""
        return frozenset(name.removeprefix("backend ") for name in self._pools if name.startswith("backend "))

    def hit_seconds(self, at: int, row: RecordedRequest, verdict: str) -> float | None:
        """Return the latency of a hit of the request with the number `at`.

        None means that neither such a hit nor its steps were recorded.
        """
        if row.verdict == verdict:
            return row.seconds
        drawn = self._sample_pool(verdict, at)
        if drawn is not None:
            return drawn
        needed = STEPS if verdict == "semantic" else STEPS[:1]
        known = [self._steps[step] for step in needed if step in self._steps]
        return sum(known) if known else None

    def call_seconds(
        self, at: int, row: RecordedRequest, backend: str, answered: RecordedRequest | None
    ) -> float | None:
        """Return the latency of a call to `backend`. `answered` is an earlier answer to the same request."""
        if row.verdict in CALL_VERDICTS and row.backend == backend:
            return row.seconds
        if answered is not None and answered.backend == backend and answered.answer is not None:
            return self.overhead_s + answered.answer.seconds
        if row.hit is not None and row.backend == backend and row.verdict == "exact" and row.hit.seconds > 0:
            return self.overhead_s + row.hit.seconds
        return self._sample_pool(f"backend {backend}", at)

    def _sample_pool(self, pool: str, at: int) -> float | None:
        taken = self._pools.get(pool)
        return None if not taken else taken[(at * _MULTIPLIER % _SPAN) * len(taken) // _SPAN]
