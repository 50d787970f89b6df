"""Decides whether a response is stored: the rules of the policy, hit-for-miss, and how often it was asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.bounded_cache import BoundedCache
from gateway.config.policy.model import AdmissionRules
from gateway.messages import Admission, Call, Inspection
from gateway.ports import Clock

DEFAULT_TEMPERATURE = 1.0  # of the protocols, where a request names none


def refuse_request(rules: AdmissionRules, temperature: float | None, roles: Iterable[object]) -> Admission | None:
    """Why no answer to this call is stored, whatever it is; None where it depends on the answer. `temperature`: of the
    call, None where it names none; `roles`: of its turns."""
    effective_temperature = DEFAULT_TEMPERATURE if temperature is None else temperature
    if rules.max_temperature is not None and effective_temperature > rules.max_temperature:
        return Admission.TEMPERATURE
    if rules.roles is not None and any(role not in rules.roles for role in roles):
        return Admission.ROLE
    return None


def roles_of(call: Call) -> Iterator[object]:
    """Of all turns, in whatever field a protocol has them."""
    body = call.body
    if call.operation == "embeddings":
        return
    if any(body.get(key) for key in ("system", "instructions")):
        yield "system"
    if isinstance(body.get("input"), str):  # of a response: the user's
        yield "user"
    for key in ("messages", "input"):
        turns = body.get(key)
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict) and ("role" in turn or key == "messages"):
                yield turn.get("role")


def admit_response(
    rules: AdmissionRules, inspection: Inspection, dollars: float, size: int = 0, max_size: int | None = None
) -> Admission:
    """Of an answer that is there. `dollars`: what the call cost; `size`, `max_size`: bytes that it has and may have.
    Bounds on tokens are not held against an answer that does not tell its own."""
    if inspection.admission is not Admission.STORED and not (inspection.admission is Admission.TOOLS and rules.tools):
        return inspection.admission
    tokens = inspection.output_tokens
    if rules.min_tokens is not None and 0 < tokens < rules.min_tokens:
        return Admission.TOO_SHORT
    if rules.max_tokens is not None and tokens > rules.max_tokens:
        return Admission.TOO_LONG
    if rules.min_cost is not None and dollars < rules.min_cost:
        return Admission.TOO_CHEAP
    return Admission.TOO_LARGE if max_size is not None and size > max_size else Admission.STORED


# What was lately answered with something that may not be stored: whoever asks it again would wait in vain.

# Long enough that a crowd which keeps coming is not held up again and again, short enough that a backend which has
# recovered is asked once for all again soon. Varnish remembers for 120 s by default, and forgets at once, as here,
# when an answer can be stored.
HIT_FOR_MISS_TTL_S = 10.0

MAX_HIT_FOR_MISS = 10_000  # fingerprints: 2 MB


class HitForMiss:
    """Hit-for-miss: fingerprints whose requests are neither made to follow each other nor held behind a lease."""

    def __init__(self, clock: Clock, *, ttl_s: float = HIT_FOR_MISS_TTL_S, limit: int = MAX_HIT_FOR_MISS) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._expiries: BoundedCache[str, float] = BoundedCache(limit)  # in the order in which they are forgotten

    def __len__(self) -> int:
        return len(self._expiries)

    def __contains__(self, fingerprint: str) -> bool:
        expires_at = self._expiries.peek(fingerprint)
        return expires_at is not None and self._clock.monotonic() < expires_at

    def add(self, fingerprint: str) -> None:
        """Remembers it from now on. Beyond the limit the oldest is forgotten, and so is what is over."""
        self._expiries.put(fingerprint, self._clock.monotonic() + self._ttl_s)
        while (oldest := next(iter(self._expiries))) not in self:
            self._expiries.pop(oldest)

    def discard(self, fingerprint: str) -> None:
        """An answer to it has been stored."""
        self._expiries.pop(fingerprint)


# How often a question was asked lately: a count-min sketch in two generations. In memory, of fixed size.
#
# Ours because those on PyPI (datasketches, pyprobables) count for ever: what was asked a month ago would still be asked
# often, and in the end every question would. Fingerprints are SHA-256, so that their digits do for the hashes.

ROWS = 4

WIDTH = 2**18  # counters of a byte a row: 1 MiB a generation

WINDOW = 2**16  # questions a generation

_MAX_COUNT = 255


class UseCounts:
    """What `add` says is never too low within the last `window` questions, and forgets everything after two of them.
    With the sizes above it is too high for one new question of 200 at worst: all four rows have to agree, and at most a
    quarter of the counters of each is in use in each generation."""

    def __init__(self, *, width: int = WIDTH, window: int = WINDOW) -> None:
        self._width = width
        self._window = window
        self._added = 0
        self._current, self._previous = bytearray(ROWS * width), bytearray(ROWS * width)

    def add(self, fingerprint: str) -> int:
        """-> how often it was asked lately, this time included. `fingerprint`: 64 hex digits."""
        digits = [int(fingerprint[at : at + 16], 16) for at in range(0, 16 * ROWS, 16)]
        cells = [digit % self._width + row * self._width for row, digit in enumerate(digits)]
        current, low = self._current, min(self._current[cell] for cell in cells)
        if low < _MAX_COUNT:
            for cell in cells:
                if current[cell] == low:  # the others are too high already (Estan and Varghese's conservative update)
                    current[cell] = low + 1
        count = min(low + 1, _MAX_COUNT) + min(self._previous[cell] for cell in cells)
        self._added += 1
        if self._added == self._window:
            self._added = 0
            self._previous, self._current = self._current, bytearray(ROWS * self._width)
        return count
