"""How sure a backend must be to make it before it is asked: what keeps promises at the confidence that was asked for.
Pure."""

from __future__ import annotations

# How far one promise moves what is asked of the next ones: small steps follow slowly and waver little. At 0.01 a broken
# promise costs what 19 kept ones brought in.
STEP = 0.01
# Nobody is asked who is more likely to be late than not.
LEAST = 0.5
MOST = 0.999


class Sureness:
    """Adaptive conformal inference (Gibbs and Candes 2021) over the promises of a route.

    A bound that each answer keeps with 95 % keeps more of all promises than 95 %, since most budgets are loose; and
    fewer where the predictions are wrong. So what is asked of each (`required`) falls while promises are kept and rises
    when one is broken, until the share that is kept is the confidence. Whatever the answers do, after T promises it is
    off by at most 1 / (T * STEP), as long as `required` is not at one of its ends: below `LEAST` it does not go (then
    more is kept), and above `MOST` nothing is left to ask (then less is)."""

    __slots__ = ("adapts", "confidence", "required")

    def __init__(self, confidence: float, *, adapts: bool = True) -> None:
        self.confidence = confidence
        self.required = confidence
        self.adapts = adapts  # no: the confidence is asked of each request

    def told(self, *, kept: bool) -> None:
        """A promise was kept, or broken."""
        if not self.adapts:
            return
        step = STEP * ((1.0 - self.confidence) - (0.0 if kept else 1.0))
        self.required = min(MOST, max(min(LEAST, self.confidence), self.required - step))
