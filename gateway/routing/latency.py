"""What a backend's answer will take, predicted from what its answers took. Pure: the clock's reading comes in."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from gateway.routing.sketch import DecayingQuantiles

HALF_LIFE_S = 60.0
# Below this weight the past says too little. A backend that is shunned for its latency therefore becomes unknown
# again after some half-lives, is tried once more, and so can be found to have recovered.
MIN_WEIGHT = 0.5
CONFIDENCE = 0.95
ASSUMED_OUTPUT_TOKENS = 256.0
OUTPUT_SIZES = (64, 256, 1024)  # max_tokens up to which answers count as of one size


@dataclass(frozen=True, slots=True)
class Prediction:
    """Upper bounds at `CONFIDENCE`, in seconds."""

    ttft_s: float
    tpot_s: float  # 0 for answers that come in one piece
    total_s: float


class LatencyModel:
    """Answers of one backend and one kind."""

    def __init__(self) -> None:
        self._ttft = DecayingQuantiles(HALF_LIFE_S)
        self._tpot = DecayingQuantiles(HALF_LIFE_S)
        self._output = DecayingQuantiles(HALF_LIFE_S * 10)  # how long answers are changes slowly

    def observe(self, *, ttft_s: float, total_s: float, output_tokens: int, now: float) -> None:
        """A complete answer. For one that came in one piece, `ttft_s` is `total_s` and `output_tokens` 0."""
        self._ttft.add(ttft_s, now)
        if output_tokens > 0:
            self._output.add(float(output_tokens), now)
            self._tpot.add(max(0.0, total_s - ttft_s) / output_tokens, now)

    def predict(self, max_tokens: int | None, now: float) -> Prediction | None:
        """None while nothing recent is known."""
        ttft = self._ttft.quantile(CONFIDENCE)
        if ttft is None or self._ttft.weight(now) < MIN_WEIGHT:
            return None
        tpot = self._tpot.quantile(CONFIDENCE)
        if tpot is None:
            return Prediction(ttft, 0.0, ttft)
        output = self._output.quantile(CONFIDENCE) or ASSUMED_OUTPUT_TOKENS
        if max_tokens is not None:
            output = min(output, float(max_tokens))
        return Prediction(ttft, tpot, ttft + tpot * output)


class LatencyBook:
    """One backend's latencies, by form (a stream's first token tells nothing of a whole answer) and by the size of
    answer that was asked for; a size not seen yet is predicted as the slowest of those that were."""

    def __init__(self) -> None:
        self._models: dict[tuple[bool, int], LatencyModel] = {}

    def observe(
        self, *, stream: bool, max_tokens: int | None, ttft_s: float, total_s: float, output_tokens: int, now: float
    ) -> None:
        key = (stream, _size(max_tokens))
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = LatencyModel()
        model.observe(ttft_s=ttft_s, total_s=total_s, output_tokens=output_tokens, now=now)

    def predict(self, *, stream: bool, max_tokens: int | None, now: float) -> Prediction | None:
        own = self._models.get((stream, _size(max_tokens)))
        prediction = None if own is None else own.predict(max_tokens, now)
        if prediction is not None:
            return prediction
        others = (model.predict(max_tokens, now) for (form, _), model in self._models.items() if form is stream)
        return max((p for p in others if p is not None), key=lambda p: p.total_s, default=None)


def _size(max_tokens: int | None) -> int:
    return len(OUTPUT_SIZES) if max_tokens is None else bisect_left(OUTPUT_SIZES, max_tokens)
