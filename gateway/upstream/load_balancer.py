"""Chooses an upstream: power of two choices by peak EWMA, with a conversation's own upstream first. Pure.

Two rules. *The cheaper of two drawn at random*, by what a call is expected to take times the calls that are on their
way (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001, with the load metric of Finagle's and
linkerd's balancer, peak EWMA). *Sticky*: the same key goes to the same upstream, by weighted rendezvous hashing
(Thaler and Ravishankar 1998; weights: Schindelhauer and Schomaker 2005), unless that one already has more than its part
of the calls (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson

from gateway.messages import Call

# What says that two calls belong together, so that the second finds the first one's KV cache. Pure.
Sticky = Literal["off", "conversation", "user"]

OPENING_CHARACTERS = 1024  # of a prompt that is no conversation: what comes later varies

SYSTEM_KEYS = ("system", "instructions")  # where dialects have the system prompt beside the messages

TURN_KEYS = ("messages", "input")


def sticky_key(call: Call, tenant: str, sticky: Sticky) -> bytes | None:
    """None: any upstream will do.

    `user`: who asks: the tenant and the end user that the body names. `conversation`: beside them the model, the system
    prompt and all up to the first turn of the user, which every later turn repeats."""
    if sticky == "off" or call.operation == "embeddings":
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

UNKNOWN_S = 1.0  # where nothing is known of any upstream: all are the same, whatever it says

UNKNOWN_DISCOUNT = 0.9  # of what the best takes: so an unknown one is tried before a known one that has as many calls

MIN_COST_S = 0.001  # what is shorter counts as that: the load decides then, not chance

BOUNDED_LOAD_FACTOR = (
    1.25  # of the mean load: what Google's and Vimeo's balancers use; 1 moves too much, 2 hardly bounds
)


class PeakEwma:
    """Seconds that an upstream takes. A slower answer than expected counts in full at once; faster ones bring it down
    by a time constant, so that one lucky answer does not draw a crowd (Finagle's `PeakEwma`)."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._at = 0.0

    def observe(self, seconds: float, now: float) -> None:
        old = self._seconds
        if old is None or seconds >= old:
            self._seconds = seconds
        else:
            weight = math.exp(-max(0.0, now - self._at) / TIME_CONSTANT_S)
            self._seconds = seconds + (old - seconds) * weight
        self._at = now

    def observe_censored(self, seconds: float, now: float) -> None:
        """It failed, or was given up, after so long: that makes nothing faster."""
        if self._seconds is not None and seconds > self._seconds:
            self.observe(seconds, now)

    @property
    def seconds(self) -> float | None:
        """What was observed, as it was then. None: nothing yet."""
        return self._seconds

    def expected(self, best_s: float, now: float) -> float:
        """What a call is expected to take. What nobody has observed for a while is forgotten: it drifts to `best_s`,
        what the best upstream takes, so that one which was slow is tried again, at par. (Finagle lets it drift to 0,
        and one that was idle longest would draw a whole burst of calls that take longer than the time constant.)"""
        if self._seconds is None:
            return UNKNOWN_DISCOUNT * best_s
        weight = math.exp(-max(0.0, now - self._at) / TIME_CONSTANT_S)
        return best_s + (self._seconds - best_s) * weight


@dataclass(frozen=True, slots=True)
class LoadCandidate:
    """An upstream that may be asked."""

    name: str  # tells it from the others, over restarts too
    load: int  # calls that are not over
    weight: float  # more than 0: its part of the calls, against the others'
    expected_s: float = UNKNOWN_S

    @property
    def cost(self) -> float:
        return max(MIN_COST_S, self.expected_s) * (self.load + 1) / self.weight


def power_of_two_choices(candidates: Sequence[LoadCandidate], rng: Callable[[], float]) -> int:
    """The index of the cheaper one of two different candidates that `rng`, in [0, 1), chooses; of equal ones either.
    There is at least one candidate."""
    count = len(candidates)
    if count == 1:
        return 0
    first = int(rng() * count)
    second = (first + 1 + int(rng() * (count - 1))) % count
    return second if candidates[second].cost < candidates[first].cost else first


def sticky(key: bytes, candidates: Sequence[LoadCandidate]) -> int:
    """The index of the candidate that `key` belongs to; the next one in the key's own order where that one's load has
    reached `BOUNDED_LOAD_FACTOR` times its part of all calls, this one included. One of them is always below that."""
    total = sum(candidate.load for candidate in candidates) + 1
    weights = sum(candidate.weight for candidate in candidates)
    order = sorted(range(len(candidates)), key=lambda i: _rank(key, candidates[i]), reverse=True)
    for index in order:
        candidate = candidates[index]
        if candidate.load < math.ceil(BOUNDED_LOAD_FACTOR * total * candidate.weight / weights):
            return index
    return order[0]


def _rank(key: bytes, candidate: LoadCandidate) -> float:
    """The highest of `-weight / ln(hash)`, with hashes in (0, 1), falls to each by its weight, and a candidate that
    comes or goes changes nothing between the others."""
    digest = blake2b(candidate.name.encode(), key=key[:64], digest_size=8).digest()
    return -candidate.weight / math.log((int.from_bytes(digest) + 0.5) / 2.0**64)
