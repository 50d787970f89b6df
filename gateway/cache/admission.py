"""Whether a route's policy lets an answer be stored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.bounded_cache import BoundedCache
from gateway.config.policy.model import AdmissionRules
from gateway.messages import Admission, Call, Inspection
from gateway.ports import Clock

# Whether a route's policy lets an answer be stored. Pure.
DEFAULT_TEMPERATURE = 1.0  # of the protocols, where a request names none


def unasked(rules: AdmissionRules, temperature: float | None, roles: Iterable[object]) -> Admission | None:
    """Why no answer to this call is stored, whatever it is; None where it depends on the answer. `temperature`: of the
    call, None where it names none; `roles`: of its turns."""
    given = DEFAULT_TEMPERATURE if temperature is None else temperature
    if rules.max_temperature is not None and given > rules.max_temperature:
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


def judged(
    rules: AdmissionRules, inspection: Inspection, dollars: float, size: int = 0, largest: int | None = None
) -> Admission:
    """Of an answer that is there. `dollars`: what the call cost; `size`, `largest`: bytes that it has and may have.
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
    return Admission.TOO_LARGE if largest is not None and size > largest else Admission.STORED


# What was lately answered with something that may not be stored: whoever asks it again would wait in vain.

# Long enough that a crowd which keeps coming is not held up again and again, short enough that a backend which has
# recovered is asked once for all again soon. Varnish remembers for 120 s by default, and forgets at once, as here,
# when an answer can be stored.
REMEMBERED_S = 10.0

MAX_REMEMBERED = 10_000  # fingerprints: 2 MB


class HitForMiss:
    """Hit-for-miss: fingerprints whose requests are neither made to follow each other nor held behind a lease."""

    def __init__(self, clock: Clock, *, seconds: float = REMEMBERED_S, limit: int = MAX_REMEMBERED) -> None:
        self._clock = clock
        self._seconds = seconds
        self._until: BoundedCache[str, float] = BoundedCache(limit)  # in the order in which they are forgotten

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, fingerprint: str) -> bool:
        until = self._until.peek(fingerprint)
        return until is not None and self._clock.monotonic() < until

    def add(self, fingerprint: str) -> None:
        """Remembers it from now on. Beyond the limit the oldest is forgotten, and so is what is over."""
        self._until.put(fingerprint, self._clock.monotonic() + self._seconds)
        while (oldest := next(iter(self._until))) not in self:
            self._until.pop(oldest)

    def discard(self, fingerprint: str) -> None:
        """An answer to it has been stored."""
        self._until.pop(fingerprint)


# How often a question was asked lately: a count-min sketch in two generations. In memory, of fixed size.
#
# Ours because those on PyPI (datasketches, pyprobables) count for ever: what was asked a month ago would still be asked
# often, and in the end every question would. Fingerprints are SHA-256, so that their digits do for the hashes.

ROWS = 4

WIDTH = 2**18  # counters of a byte a row: 1 MiB a generation

WINDOW = 2**16  # questions a generation

_MOST = 255


class UseCounts:
    """What `add` says is never too low within the last `window` questions, and forgets everything after two of them.
    With the sizes above it is too high for one new question of 200 at worst: all four rows have to agree, and at most a
    quarter of the counters of each is in use in each generation."""

    def __init__(self, *, width: int = WIDTH, window: int = WINDOW) -> None:
        self._width = width
        self._window = window
        self._added = 0
        self._now, self._before = bytearray(ROWS * width), bytearray(ROWS * width)

    def add(self, fingerprint: str) -> int:
        """-> how often it was asked lately, this time included. `fingerprint`: 64 hex digits."""
        digits = [int(fingerprint[at : at + 16], 16) for at in range(0, 16 * ROWS, 16)]
        cells = [digit % self._width + row * self._width for row, digit in enumerate(digits)]
        now, low = self._now, min(self._now[cell] for cell in cells)
        if low < _MOST:
            for cell in cells:
                if now[cell] == low:  # the others are too high already (Estan and Varghese's conservative update)
                    now[cell] = low + 1
        count = min(low + 1, _MOST) + min(self._before[cell] for cell in cells)
        self._added += 1
        if self._added == self._window:
            self._added = 0
            self._before, self._now = self._now, bytearray(ROWS * self._width)
        return count
