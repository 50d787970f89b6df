"""Choose an upstream by power of two choices with peak EWMA, by a sticky key, or by preference. Pure.

- *Power of two choices*: draw two upstreams at random and take the cheaper one (Mitzenmacher, "The Power of Two Choices
  in Randomized Load Balancing", 2001). The cost is the expected time of a call times the calls in flight: peak EWMA,
  the metric of Finagle's and linkerd's balancers.
- *Sticky*: the same key goes to the same upstream, by weighted rendezvous hashing (Thaler and Ravishankar 1998;
  weights: Schindelhauer and Schomaker 2005). An upstream that has more than its share of the calls is skipped
  (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018).
- *Preferred*: an upstream that has something which the call needs is taken until its load is twice the least.
  `warm_upstreams` finds the one with the KV cache of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson

from gateway.calls import Call

# The sticky key says which calls belong together, so that the second one finds the first one's KV cache. Pure.
Sticky = Literal["off", "conversation", "user", "prefix"]

OPENING_CHARACTERS = 1024  # of a prompt that is not a conversation; later text varies

SYSTEM_KEYS = (
    "system",
    "instructions",
    "systemInstruction",
)  # keys under which dialects send the system prompt outside the messages

TURN_KEYS = ("messages", "input", "contents")


def sticky_key(call: Call, tenant: str, sticky: Sticky) -> bytes | None:
    """Return the sticky key of a call, or None if any upstream will do.

    With `user` it covers the tenant and the end user that the body names. With `conversation` it also covers the model,
    the system prompt and the messages up to the first user message: every later request repeats them. There is no key
    with `prefix` (see `warm_upstreams`).
    """
    if sticky in ("off", "prefix") or call.embeds or call.passes:
        return None
    parts: list[Any] = [tenant, call.user]
    if sticky == "conversation":
        parts += [call.model, _opening(call)]
    return blake2b(orjson.dumps(parts, default=str), digest_size=32).digest()


def _opening(call: Call) -> Any:
    turns = next((turns for key in TURN_KEYS if isinstance(turns := call.body.get(key), list) and turns), None)
    if turns is None:
        return call.prompt[:OPENING_CHARACTERS]
    first = next((i for i, turn in enumerate(turns) if isinstance(turn, Mapping) and turn.get("role") == "user"), 0)
    return [*(call.body.get(key) for key in SYSTEM_KEYS), *turns[: first + 1]]


TIME_CONSTANT_S = 10.0  # Finagle's and linkerd's default

UNKNOWN_S = 1.0  # for unknown upstreams when none is known: any equal value will do

UNKNOWN_DISCOUNT = 0.9  # times the best known latency: an unknown upstream is tried before a known one with equal load

DOUBTED_FACTOR = 2.0  # times the best known latency, for an unknown upstream that has given no answer of use lately

MIN_COST_S = 0.001  # shorter times count as this, so that the load decides and not chance

# times the mean load, as in Google's and Vimeo's balancers; 1 moves too many keys, 2 hardly bounds
BOUNDED_LOAD_FACTOR = 1.25

PREFERRED_LOAD_FACTOR = 2  # times the least load: a cached prefix saves more than the wait behind one more call


# The share of a KV cache in use from which an upstream is taken less: the default of the saturation detector of the
# Gateway API Inference Extension. A server whose cache is full interrupts calls and computes their prompts again.
KV_BUSY = 0.8

KV_FULL_FACTOR = 4.0  # times the expected seconds, for a full KV cache


def kv_factor(usage: float | None) -> float:
    """Return the factor of an upstream's expected seconds by the share of its KV cache in use.

    It is 1 up to `KV_BUSY`, and without a known share. From there it grows linearly to `KV_FULL_FACTOR`.
    """
    if usage is None or usage <= KV_BUSY:
        return 1.0
    return 1.0 + (KV_FULL_FACTOR - 1.0) * (min(usage, 1.0) - KV_BUSY) / (1.0 - KV_BUSY)


class PeakEwma:
    """`PeakEwma` tracks the seconds that an upstream takes (after Finagle's `PeakEwma`).

    A slower response than expected counts in full at once. Faster ones lower the value with a time constant, so that
    one fast response does not attract a crowd.
    """

    __slots__ = ("_at", "_doubted_until", "_seconds")

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._at = 0.0
        self._doubted_until = 0.0

    def observe(self, seconds: float, now: float) -> None:
        old = self._seconds
        if old is None or seconds >= old:
            self._seconds = seconds
        else:
            weight = math.exp(-max(0.0, now - self._at) / TIME_CONSTANT_S)
            self._seconds = seconds + (old - seconds) * weight
        self._at = now

    def observe_censored(self, seconds: float, now: float) -> None:
        """Record a call that failed or was abandoned after so long. It never lowers the value."""
        if self._seconds is not None and seconds > self._seconds:
            self.observe(seconds, now)

    def doubt(self, now: float) -> None:
        """Record an answer without use. Its time says nothing, and an upstream with nothing else attracts no calls."""
        self._doubted_until = now + TIME_CONSTANT_S

    @property
    def seconds(self) -> float | None:
        """The last value, without decay, or None if nothing was observed."""
        return self._seconds

    def expected(self, best_s: float, now: float) -> float:
        """Return the expected seconds of a call.

        Without new observations the value drifts to `best_s`, the time of the best upstream, so that a slow upstream is
        tried again. (In Finagle it drifts to 0. Then the upstream that was idle longest would attract a whole burst, if
        calls take longer than the time constant.)
        """
        if self._seconds is None:
            return (DOUBTED_FACTOR if now < self._doubted_until else UNKNOWN_DISCOUNT) * best_s
        weight = math.exp(-max(0.0, now - self._at) / TIME_CONSTANT_S)
        return best_s + (self._seconds - best_s) * weight


@dataclass(frozen=True, slots=True)
class LoadCandidate:
    """An upstream that may be called."""

    name: str  # identifies it, also after a restart
    load: int  # unfinished calls, those of others at the server included, if its metrics tell
    weight: float  # above 0: its share of the calls relative to the others
    expected_s: float = UNKNOWN_S

    @property
    def cost(self) -> float:
        return max(MIN_COST_S, self.expected_s) * (self.load + 1) / self.weight


def pick(
    candidates: Sequence[LoadCandidate],
    rng: Callable[[], float],
    *,
    key: bytes | None = None,
    preferred: str | None = None,
) -> int:
    """Return the index of the candidate named `preferred` while it is within the bound.

    Otherwise the sticky `key` decides; without a key, two choices do.
    """
    if preferred is not None and (index := first_within_bound((preferred,), candidates)) is not None:
        return index
    return power_of_two_choices(candidates, rng) if key is None else sticky(key, candidates)


def first_within_bound(names: Iterable[str], candidates: Sequence[LoadCandidate]) -> int | None:
    """Return the index of the first named candidate whose load is at most twice the least; None if there is none.

    Loads count the call that is to be placed, and are divided by the weights.
    """
    loads = [(candidate.load + 1) / candidate.weight for candidate in candidates]
    bound = PREFERRED_LOAD_FACTOR * min(loads)
    index_of = {candidate.name: i for i, candidate in enumerate(candidates)}
    for name in names:
        index = index_of.get(name)
        if index is not None and loads[index] <= bound:
            return index
    return None


def power_of_two_choices(candidates: Sequence[LoadCandidate], rng: Callable[[], float]) -> int:
    """Return the index of the cheaper one of two different candidates that `rng`, in [0, 1), draws.

    There must be at least one candidate. Ties go to the first one drawn.
    """
    count = len(candidates)
    if count == 1:
        return 0
    first = int(rng() * count)
    second = (first + 1 + int(rng() * (count - 1))) % count
    return second if candidates[second].cost < candidates[first].cost else first


def sticky(key: bytes, candidates: Sequence[LoadCandidate]) -> int:
    """Return the index of the candidate that `key` belongs to.

    If its load has reached `BOUNDED_LOAD_FACTOR` times its share of all calls (this one included), the next one in the
    key's order is taken. One candidate is always below that bound.
    """
    total = sum(candidate.load for candidate in candidates) + 1
    weights = sum(candidate.weight for candidate in candidates)
    order = by_rank(key, candidates)
    for index in order:
        candidate = candidates[index]
        if candidate.load < math.ceil(BOUNDED_LOAD_FACTOR * total * candidate.weight / weights):
            return index
    return order[0]


def by_rank(key: bytes, candidates: Sequence[LoadCandidate]) -> list[int]:
    """Return the indices of the candidates in the key's order, by weighted rendezvous hashing."""
    return sorted(range(len(candidates)), key=lambda i: _rank(key, candidates[i]), reverse=True)


def _rank(key: bytes, candidate: LoadCandidate) -> float:
    """Return `-weight / ln(hash)`, with a hash in (0, 1). Each candidate ranks highest in proportion to its weight.

    Adding or removing a candidate does not change the order of the others.
    """
    digest = blake2b(candidate.name.encode(), key=key[:64], digest_size=8).digest()
    return -candidate.weight / math.log((int.from_bytes(digest) + 0.5) / 2.0**64)
