"""Exact hits, answered without reading the request again.

The very same bytes from the very same client were read, routed and answered a moment ago: as long as the policy is the
same object and the entry is still the same and fresh, every decision would come out the same. Where it lies in memory
that is known at once; where it has made room for others, the store is asked for it (`recall`). Everything that
decides is in the key: method, target, all headers but those that only trace the request, body. Limits and observation
hold here as on the stages' path. The answer is bytes: a head whose few changing values are put in, and the body.

Measured (`make bench`, exact hit; `python -m bench.calls`): docs/performance.md.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any, NamedTuple

from aiohttp.helpers import rfc822_formatted_time

from gateway.access.permits import Permit
from gateway.cache.freshness import SKEW_S
from gateway.cache.records import frame_of
from gateway.data_port.heads import Head
from gateway.data_port.hit_heads import exact_form, hidden_form
from gateway.data_port.wire import Headers
from gateway.errors import StoreUnavailable
from gateway.messages import Entry, Request, Response, Verdict
from gateway.messages.values import value
from gateway.observing.observer import Observer
from gateway.observing.repeated import Repeated, repeated_of
from gateway.observing.request_ids import RequestIds
from gateway.ports import Clock, NearStore

MAX_KNOWN = 4096  # of some kB each, and what they refer to lies in the front store anyway
# To hash one of 256 KiB takes 0.14 ms, and to read it in the stages three times as much; longer ones are not plain.
MAX_BODY = 256 * 1024
# Of answers in a form that is not the stored one, which lie here alone: streams, and wholes put together from them.
MAX_FORMED_BYTES = 32 * 1024 * 1024
MAX_FORMED = 512 * 1024  # of one of them
# An answer that was fetched anew differs in when, to the microsecond.
_identity = attrgetter(
    "created", "upstream_s", "scope", "backend", "content_type", "input_tokens", "output_tokens", "cost_dollars"
)


@value(frozen=True, slots=True)
class _Known:
    """A request that ended in an exact hit, and its answer in the form in which it went out."""

    table: object
    told: Repeated
    created: float  # of the entry: wall clock
    ttl_s: float  # its own, under the policy
    form: bytes  # of the head (`hit_heads`)
    length: int
    body: bytes | None  # None: it is the entry's own, which does not lie in memory
    asked: tuple[bytes, int]  # `Head.decisive`, and how long the request's body is
    frame: tuple[bytes, bytes] | None = None  # of the record, where its entry has no room in memory

    @property
    def formed(self) -> int:
        """Bytes that lie here alone."""
        if self.frame is not None:
            return len(self.frame[0]) + len(self.frame[1])
        return 0 if self.as_stored or self.body is None else len(self.body)

    @property
    def as_stored(self) -> bool:
        """Whether the answer is what the store has, byte for byte."""
        payload = self.told.entry.payload
        return not payload or self.body is payload[0]

    def lean(self, *, framed: bool) -> _Known:
        """Without what is large: for an entry that does not lie in memory. `framed`: nor ever will."""
        entry = self.told.entry
        frame = frame_of(entry) if framed else None
        told = self.told._replace(entry=replace(entry, payload=(), question=None))
        return replace(self, told=told, body=None, frame=frame)

    def in_record(self, record: bytes) -> bytes | None:
        """The answer, where the record is that of the entry which was answered with."""
        assert self.frame is not None
        before, behind = self.frame
        if len(record) != len(before) + self.length + len(behind):
            return None
        return record[len(before) : -len(behind)] if record.startswith(before) and record.endswith(behind) else None

    def of(self, entry: Entry) -> _Known:
        return replace(self, told=self.told._replace(entry=entry), body=entry.payload[0], frame=None)

    def means(self, entry: Entry) -> bool:
        """Whether that is the entry which was answered with, as far as the answer and what is told of it go."""
        return (
            self.as_stored
            and _identity(entry) == _identity(self.told.entry)
            and not entry.streamed
            and len(entry.payload[0]) == self.length
        )

    def answer(self, request_id: str, age_s: float, left_s: float, seconds: float, date: bytes, body: bytes) -> bytes:
        """What `answer_headers` and `head_of` make of it. A request's id has no line break."""
        named, also = request_id.encode(), self.told.dialect.id_header
        if also is not None:
            named = b"%b\r\n%b: %b" % (named, also.encode(), named)
        if not self.told.expose_headers:
            return self.form % (named, self.length, date, body)
        return self.form % (named, left_s, age_s, 1e3 * seconds, self.length, date, body)


class Recall(NamedTuple):
    """A known request whose entry does not lie in memory."""

    key: bytes
    known: _Known
    head: Head
    received: float


class Front:
    """`table` returns the policy in force; it is compared by identity. `holds`: whether a key is still as good as when
    it was looked at; where that is not known, the stages ask."""

    def __init__(
        self,
        store: NearStore,
        table: Callable[[], object],
        observer: Observer,
        clock: Clock,
        holds: Callable[[Permit], bool],
    ) -> None:
        self._holds = holds
        self._store = store
        self._table = table
        self._observer = observer
        self._clock = clock
        self._ids = RequestIds()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asked: Counter[tuple[bytes, int]] = Counter()  # of the known ones
        self._formed_bytes = 0

    def answer(self, head: Head, body: bytes) -> bytes | Recall | None:
        """The whole answer to a request on a connection that goes on; it is counted and logged. A `Recall`: the store
        is to be asked for it. None: the stages are to be asked."""
        if (head.decisive, head.length) not in self._asked:  # not worth a digest
            return None
        key = sha256(head.decisive + body).digest()
        known = self._known.get(key)
        if known is None:
            return None
        received = self._clock.monotonic()
        entry = self._store.peek(known.told.entry.fingerprint)
        if known.table is not self._table():
            self._forget(key)
            return None
        if entry is None and known.as_stored:
            if known.body is not None:
                known = self._lean(known)
                self._remember(key, known)
            return Recall(key, known, head, received)
        if entry is not known.told.entry:
            if entry is None or not known.means(entry):
                self._forget(key)
                return None
            known = known.of(entry)
            self._remember(key, known)
        assert known.body is not None  # as its entry lies in memory
        return self._answered(known, head, received, known.body)

    def recall(self, what: Recall, then: Callable[[bytes | None], None]) -> Future[Any] | None:
        """Asks the store; `then` is given what `answer` would have returned, None too where the future that is returned
        is cancelled. None: the store cannot be asked. Measured: docs/decisions/0031."""
        try:
            asked = self._store.seek(what.known.told.entry.fingerprint)
        except StoreUnavailable:
            return None
        asked.add_done_callback(partial(self._recalled, what, then))
        return asked

    def _recalled(self, what: Recall, then: Callable[[bytes | None], None], asked: Future[Any]) -> None:
        if asked.cancelled():
            then(None)
            return
        known, body = what.known, None
        current = self._known.get(what.key) is known
        try:
            record = self._store.sought(asked)
        except StoreUnavailable:  # the stages find out, and say so
            record = None
        if record is not None and known.table is self._table():
            body = self._body_in(record, known, what.key if current else None)
        if body is not None:
            then(self._answered(known, what.head, what.received, body))
            return
        if current:
            self._forget(what.key)
        then(None)

    def _body_in(self, record: bytes, known: _Known, key: bytes | None) -> bytes | None:
        """The answer; None where the entry is another one, or has been removed. `key`: where to note that it
        lies in memory again."""
        told = known.told.entry
        if known.frame is not None:
            return None if self._store.banned(told) else known.in_record(record)
        entry = self._store.entry_in(record, told.fingerprint)
        if entry is None or not known.means(entry):
            return None
        if key is not None and self._store.peek(entry.fingerprint) is entry:
            self._remember(key, known.of(entry))
        return entry.payload[0]

    def _answered(self, known: _Known, head: Head, received: float, body: bytes) -> bytes | None:
        """None where it may not be served: the stages say why."""
        told = known.told
        if told.permit is not None and not self._holds(told.permit):
            return None
        # As `freshness_of` decides where the client says nothing of ages.
        wall = self._clock.wall()
        age_s = wall - known.created
        left_s = known.ttl_s - age_s if age_s > 0 else known.ttl_s
        if left_s <= 0 or age_s < -SKEW_S:
            return None
        request_id = self._ids.of(head.headers)
        seconds = self._clock.monotonic() - received
        self._observer.hit(told, request_id, head.headers, received, seconds, wall)
        date = rfc822_formatted_time().encode()
        return known.answer(request_id, age_s if age_s > 0 else 0.0, left_s, seconds, date, body)

    def learn(
        self, head: Head, body: bytes, table: object, request: Request, response: Response, answer: bytes
    ) -> None:
        """Remembers a request that has just ended in an exact hit on the stages' path, under the policy `table`.
        `answer`: the bytes of the response's body."""
        trace, served = request.trace, request.trace.served
        if served is None or trace.dialect is None or head.method != "POST" or len(body) > MAX_BODY:
            return
        if response.provenance.verdict is not Verdict.EXACT or request.headers.get("cache-control") is not None:
            return
        entry, lifetime = served
        told = repeated_of(
            trace.dialect, entry, lifetime, route=trace.route, tenant=trace.tenant, path=request.path,
            permit=trace.permit, expose_headers=trace.expose_headers, facts=trace.facts,
        )  # fmt: skip
        self.remember(head, body, table, told, response.headers, answer)

    def remember(self, head: Head, body: bytes, table: object, told: Repeated, headers: Headers, answer: bytes) -> None:
        """Remembers a request that has just ended in the exact hit `told`, answered with `headers` and `answer`."""
        entry = told.entry
        if answer is not entry.payload[0] and len(answer) > MAX_FORMED:
            return
        key = sha256(head.decisive + body).digest()
        known = _Known(
            table,
            told,
            entry.created,
            told.lifetime.ttl_of(entry),
            exact_form(headers, told.route[0]) if told.expose_headers else hidden_form(headers),
            len(answer),
            answer,
            (head.decisive, len(body)),
        )
        if self._store.peek(entry.fingerprint) is not entry:  # it has no room in memory, or has made room already
            if not known.as_stored:
                return
            known = self._lean(known)
        self._remember(key, known)

    def _lean(self, known: _Known) -> _Known:
        return known.lean(framed=not self._store.keeps(known.told.entry.size))

    def _remember(self, key: bytes, known: _Known) -> None:
        self._forget(key)
        self._known[key] = known
        self._asked[known.asked] += 1
        self._formed_bytes += known.formed
        while len(self._known) > MAX_KNOWN or self._formed_bytes > MAX_FORMED_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, key: bytes) -> None:
        known = self._known.pop(key, None)
        if known is None:
            return
        self._formed_bytes -= known.formed
        self._asked[known.asked] -= 1
        if not self._asked[known.asked]:
            del self._asked[known.asked]
