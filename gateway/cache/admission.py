"""Decide whether a response is stored, by the policy's rules, hit-for-miss and how often it was requested. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.bounded_cache import BoundedCache
from gateway.calls import Call, Inspection
from gateway.config.policy.schema import AdmitRule
from gateway.outcomes import Admission
from gateway.ports import Clock

DEFAULT_TEMPERATURE = 1.0  # the protocols' default where a request names none


def refuse_request(rules: AdmitRule, temperature: float | None, roles: Iterable[object]) -> Admission | None:
    """Return why no answer to this call is stored, or None if the answer decides.

    `temperature` is None where the call names none. `roles` are those of its turns.
    """
    effective_temperature = DEFAULT_TEMPERATURE if temperature is None else temperature
    if rules.max_temperature is not None and effective_temperature > rules.max_temperature:
        return Admission.TEMPERATURE
    if rules.roles is not None and any(role not in rules.roles for role in roles):
        return Admission.ROLE
    return None


def roles_of(call: Call) -> Iterator[object]:
    """Yield the role of each turn, in any field that a protocol keeps turns in."""
    body = call.body
    if call.embeds or call.passes:
        return
    if any(body.get(key) for key in ("system", "instructions", "systemInstruction")):
        yield "system"
    if isinstance(body.get("input"), str):  # in the Responses API, the user's text
        yield "user"
    for key in ("messages", "input"):
        turns = body.get(key)
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict) and ("role" in turn or key == "messages"):
                yield turn.get("role")
    for content in body["contents"] if isinstance(body.get("contents"), list) else ():  # of Gemini
        role = content.get("role") or "user"
        yield "assistant" if role == "model" else role


def admit_response(
    rules: AdmitRule,
    inspection: Inspection,
    dollars: float,
    size: int = 0,
    max_size: int | None = None,
    *,
    tools: bool = False,
) -> Admission:
    """Decide on a finished answer. The call cost `dollars`. `size` and `max_size` are in bytes.

    With `tools` it may call tools; `cache.tool_calls` judges their names and arguments.

    Token bounds do not apply to an answer that does not report its tokens.
    """
    if inspection.admission is not Admission.STORED and not (inspection.admission is Admission.TOOLS and tools):
        return inspection.admission
    tokens = inspection.output_tokens
    if rules.min_tokens is not None and 0 < tokens < rules.min_tokens:
        return Admission.TOO_SHORT
    if rules.max_tokens is not None and tokens > rules.max_tokens:
        return Admission.TOO_LONG
    if rules.min_cost is not None and dollars < rules.min_cost:
        return Admission.TOO_CHEAP
    return Admission.TOO_LARGE if max_size is not None and size > max_size else Admission.STORED


# Hit-for-miss remembers keys whose answer could not be stored, since followers would wait for nothing.

# Long enough that a steady crowd is not held up repeatedly. Short enough that requests are coalesced again soon after a
# backend recovers. Varnish keeps 120 s by default and also forgets at once when an answer can be stored.
HIT_FOR_MISS_TTL_S = 10.0

MAX_HIT_FOR_MISS = 10_000  # fingerprints: 2 MB


class HitForMiss:
    """Fingerprints whose requests neither follow each other nor wait for a lease."""

    def __init__(self, clock: Clock, *, ttl_s: float = HIT_FOR_MISS_TTL_S, limit: int = MAX_HIT_FOR_MISS) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._expiries: BoundedCache[str, float] = BoundedCache(limit)  # oldest first

    def __len__(self) -> int:
        return len(self._expiries)

    def __contains__(self, fingerprint: str) -> bool:
        expires_at = self._expiries.peek(fingerprint)
        return expires_at is not None and self._clock.monotonic() < expires_at

    def add(self, fingerprint: str) -> None:
        """Remember a fingerprint for the TTL. Drop expired ones, and the oldest beyond the limit."""
        self._expiries.put(fingerprint, self._clock.monotonic() + self._ttl_s)
        while (oldest := next(iter(self._expiries))) not in self:
            self._expiries.pop(oldest)

    def discard(self, fingerprint: str) -> None:
        """Forget a fingerprint, as an answer to it was stored."""
        self._expiries.pop(fingerprint)


# A count-min sketch in two generations, in memory and of fixed size.
#
# It replaces those on PyPI (datasketches, pyprobables), which never forget: in the end every question would count as
# frequent. Fingerprints are SHA-256, so their digits serve as the hashes.

ROWS = 4

WIDTH = 2**18  # one-byte counters per row: 1 MiB per generation

WINDOW = 2**16  # questions per generation

_MAX_COUNT = 255


class UseCounts:
    """`UseCounts` counts how often each question came lately.

    A count is never too low within the last `window` questions, and is forgotten after two windows. At the default
    sizes it is too high for at most one new question in 200. All four rows have to agree, and each generation uses at
    most a quarter of each row's counters.
    """

    def __init__(self, *, width: int = WIDTH, window: int = WINDOW) -> None:
        self._width = width
        self._window = window
        self._added = 0
        self._current, self._previous = bytearray(ROWS * width), bytearray(ROWS * width)

    def add(self, fingerprint: str) -> int:
        """Count a question and return how often it came lately, this time included. `fingerprint` has 64 hex digits."""
        digits = [int(fingerprint[at : at + 16], 16) for at in range(0, 16 * ROWS, 16)]
        cells = [digit % self._width + row * self._width for row, digit in enumerate(digits)]
        current, low = self._current, min(self._current[cell] for cell in cells)
        if low < _MAX_COUNT:
            for cell in cells:
                # conservative update (Estan and Varghese): higher counters are too high already
                if current[cell] == low:
                    current[cell] = low + 1
        count = min(low + 1, _MAX_COUNT) + min(self._previous[cell] for cell in cells)
        self._added += 1
        if self._added == self._window:
            self._added = 0
            self._previous, self._current = self._current, bytearray(ROWS * self._width)
        return count
