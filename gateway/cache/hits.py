"""Stored entries as responses: whole, as a stream, or replayed at the pace of a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from gateway.bounded_cache import BoundedCache
from gateway.cache.freshness import Freshness
from gateway.config.policy.model import ReplaySettings
from gateway.context import RequestContext
from gateway.messages import Call, Entry, Event, EventStream, FullBody, Provenance, Response, Verdict
from gateway.ports import Clock
from gateway.streams import BufferedStream


def response_from_entry(
    request: RequestContext, entry: Entry, freshness: Freshness, verdict: Verdict, similarity: float | None = None
) -> Response:
    """In the form in which it was stored; `Render` turns it into the one the client wants."""
    call = request.call
    if entry.streamed and call is not None:
        body: FullBody | EventStream = EventStream(
            BufferedStream(tuple(call.dialect.event(call, data) for data in entry.payload))
        )
    else:
        body = FullBody(entry.payload[0])
    headers = (("Content-Type", entry.content_type),)
    return Response(200, headers, body, provenance_of(entry, freshness, verdict, similarity))


def provenance_of(entry: Entry, freshness: Freshness, verdict: Verdict, similarity: float | None = None) -> Provenance:
    """Where a hit came from, and what it did not cost."""
    return Provenance(
        verdict,
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


# A stored answer played back as a stream: at once, or at the pace of a model. Pure but for the sleeper it is given.
Sleep = Callable[[float], Awaitable[None]]  # seconds

MAX_REPLAY_S = 60.0  # a slow model's longest answer: who is served from a cache does not wait longer than this

DEFAULT_TOKEN_RATE = 50.0  # tokens a second where neither the policy nor the entry tells; a small model's on one GPU


def replay_duration_s(rule: ReplaySettings, origin: Provenance, events: int, remaining_s: float | None) -> float:
    """How long the stream takes from its first event to its last; seconds in [0, `MAX_REPLAY_S`], and at most
    `remaining_s`, which is what the client's deadline leaves. The entry's own pace counts its time to the first token
    in."""
    tokens = origin.output_tokens or events
    known = origin.output_tokens > 0 and origin.upstream_s > 0
    rate = rule.rate or (origin.output_tokens / origin.upstream_s if known else DEFAULT_TOKEN_RATE)
    longest = MAX_REPLAY_S if remaining_s is None else max(0.0, min(MAX_REPLAY_S, remaining_s))
    return min(tokens / rate, longest)


async def paced(
    events: tuple[Event, ...], duration_s: float, clock: Clock, sleep: Sleep
) -> AsyncGenerator[Event, None]:
    """The first event at once, the others evenly after it. What is late goes out without a pause, so that pauses that
    take too long do not add up."""
    started = clock.monotonic()
    gap = duration_s / max(1, len(events) - 1)
    for index, event in enumerate(events):
        wait = started + index * gap - clock.monotonic()
        if wait > 0:
            await sleep(wait)
        yield event


# Stored answers that are whole, as the events of a stream: one that is asked for often is taken apart once. Pure.
#
# To take an answer of 74 events apart costs 200 us, to find it here one. It follows from the bytes of the answer, its
# dialect and its operation alone, so whoever is served these bytes may be given these events; that nothing removed is
# served was seen to when the bytes were found.

MAX_BYTES = 16 * 1024 * 1024

MAX_ANSWER_BYTES = 1024 * 1024  # of one of them: a single huge answer must not push out all that is asked for often

EVENT_BYTES = 120  # what an event takes beside its data


class SplitCache:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_answer_bytes = min(MAX_ANSWER_BYTES, max_bytes)
        self._cache: BoundedCache[tuple[str, str, bytes], _Split] = BoundedCache(
            max_bytes, max_weight=max_bytes, weigh=_size
        )

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """As `Dialect.events`. Raises `MalformedResponse`."""
        key = call.dialect.name, call.operation, whole
        known = self._cache.get(key)
        if known is not None:
            return known.events
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
