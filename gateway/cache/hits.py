"""Turn stored entries into responses: whole, as a stream, or replayed at the pace of a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from gateway.bounded_cache import BoundedCache
from gateway.cache.freshness import Freshness
from gateway.calls import Call, Decisive, Dialect
from gateway.config.policy.model import ReplaySettings
from gateway.context import RequestContext
from gateway.entries import Entry
from gateway.messages import Event, EventStream, FullBody, Provenance, Response
from gateway.outcomes import Basis, Verdict
from gateway.ports import Clock
from gateway.streams import BufferedStream


def response_from_entry(
    request: RequestContext,
    entry: Entry,
    freshness: Freshness,
    verdict: Verdict,
    similarity: float | None = None,
    basis: Basis | None = None,
) -> Response:
    """Return the entry in its stored form. `Render` converts it to the form that the client wants."""
    call = request.call
    if entry.streamed and call is not None:
        body: FullBody | EventStream = EventStream(
            BufferedStream(tuple(call.dialect.event(call, data) for data in entry.payload))
        )
    else:
        body = FullBody(entry.payload[0])
    headers = (("Content-Type", entry.content_type),)
    return Response(200, headers, body, provenance_of(entry, freshness, verdict, similarity, basis))


def provenance_of(
    entry: Entry,
    freshness: Freshness,
    verdict: Verdict,
    similarity: float | None = None,
    basis: Basis | None = None,
) -> Provenance:
    """Return the origin of a hit and its savings."""
    return Provenance(
        verdict,
        basis,
        similarity=similarity,
        age_s=freshness.age_s,
        ttl_s=freshness.ttl_s,
        backend=entry.backend,
        saved_tokens=entry.input_tokens + entry.output_tokens,
        saved_dollars=entry.cost_dollars,
        output_tokens=entry.output_tokens,
        fingerprint=entry.fingerprint,
        upstream_s=entry.upstream_s,
    )


# A stored answer can be replayed as a stream: at once, or at the pace of a model.
Sleep = Callable[[float], Awaitable[None]]  # seconds

MAX_REPLAY_S = 60.0  # a client that is served from the cache never waits longer

DEFAULT_TOKEN_RATE = 50.0  # tokens per second if neither policy nor entry tells: a small model on one GPU


def replay_duration_s(rule: ReplaySettings, origin: Provenance, events: int, remaining_s: float | None) -> float:
    """Return the seconds from the first event to the last, in [0, `MAX_REPLAY_S`].

    The result is at most `remaining_s`, the rest of the client's deadline. The entry's own pace includes its time to
    first token.
    """
    tokens = origin.output_tokens or events
    is_measured = origin.output_tokens > 0 and origin.upstream_s > 0
    rate = rule.rate or (origin.output_tokens / origin.upstream_s if is_measured else DEFAULT_TOKEN_RATE)
    longest = MAX_REPLAY_S if remaining_s is None else max(0.0, min(MAX_REPLAY_S, remaining_s))
    return min(tokens / rate, longest)


async def paced(
    events: tuple[Event, ...], duration_s: float, clock: Clock, sleep: Sleep
) -> AsyncGenerator[Event, None]:
    """Yield the first event at once and the others at even intervals.

    A late event follows without a pause, so delays do not add up.
    """
    started = clock.monotonic()
    gap = duration_s / max(1, len(events) - 1)
    for index, event in enumerate(events):
        wait = started + index * gap - clock.monotonic()
        if wait > 0:
            await sleep(wait)
        yield event


# A whole stored answer, split into stream events. Popular answers are split once and kept.
#
# Splitting an answer of 74 events takes 200 us, a lookup here 1 us. The events follow from the answer's bytes, dialect
# and operation alone, so every client that gets these bytes may get these events. Bans were checked when the entry was
# found.

MAX_BYTES = 16 * 1024 * 1024

MAX_ANSWER_BYTES = 1024 * 1024  # of one answer, so that a huge one does not evict all popular ones

EVENT_BYTES = 120  # overhead of an event in memory


class SplitCache:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_answer_bytes = min(MAX_ANSWER_BYTES, max_bytes)
        self._cache: BoundedCache[tuple[str, str, bytes], _Split] = BoundedCache(
            max_bytes, max_weight=max_bytes, weigh=_size
        )

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """Split an answer. See `Dialect.events`. Raise `MalformedResponse`."""
        key = call.dialect.name, call.operation, whole
        split = self._cache.get(key)
        if split is not None:
            return split.events
        events = call.dialect.events(call, whole)
        size = len(whole) + sum([EVENT_BYTES + len(event.data) for event in events])
        if size <= self._max_answer_bytes:
            self._cache.put(key, _Split(events, size))
        return events


class _Split(NamedTuple):
    events: tuple[Event, ...]
    size: int  # bytes


def _size(split: _Split) -> int:
    return split.size


def call_of(entry: Entry, dialect: Dialect) -> Call:
    """Return a call with the fields that are needed to read its answer."""
    return Call(
        dialect=dialect,
        operation=entry.operation,
        body={},
        model=entry.model,
        stream=entry.streamed,
        decisive_source=Decisive(b"", b"", entry.question),
        prompt_source="",
        max_tokens=None,
        user=None,
    )
