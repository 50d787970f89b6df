"""What a backend's answer will take, predicted from what its answers took. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.routing.sketch import DecayingQuantiles

HALF_LIFE_S = 60.0
# Below this weight the past says too little. A backend that is shunned for its latency therefore becomes unknown
# again after some half-lives, is tried once more, and so can be found to have recovered.
MIN_WEIGHT = 1.0
CONFIDENCE = 0.95
ASSUMED_OUTPUT_TOKENS = 256.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Upper bounds at `CONFIDENCE`, in seconds."""

    ttft_s: float
    tpot_s: float
    total_s: float


class LatencyModel:
    """One backend's time to first token, time per output token and output length."""

    def __init__(self) -> None:
        self._ttft = DecayingQuantiles(HALF_LIFE_S)
        self._tpot = DecayingQuantiles(HALF_LIFE_S)
        self._output = DecayingQuantiles(HALF_LIFE_S * 10)  # how long answers are changes slowly

    def observe(self, *, ttft_s: float, total_s: float, output_tokens: int, now: float) -> None:
        """An answer that was complete. For one that came in one piece `ttft_s` equals `total_s`."""
        self._ttft.add(ttft_s, now)
        if output_tokens > 0:
            self._output.add(float(output_tokens), now)
            self._tpot.add(max(0.0, total_s - ttft_s) / output_tokens, now)

    def predict(self, max_tokens: int | None, now: float) -> Prediction | None:
        """None while nothing recent is known."""
        ttft = self._ttft.quantile(CONFIDENCE)
        if ttft is None or self._ttft.weight(now) < MIN_WEIGHT * 0.5:
            return None
        tpot = self._tpot.quantile(CONFIDENCE) or 0.0
        output = self._output.quantile(CONFIDENCE) or ASSUMED_OUTPUT_TOKENS
        if max_tokens is not None:
            output = min(output, float(max_tokens))
        return Prediction(ttft, tpot, ttft + tpot * output)
