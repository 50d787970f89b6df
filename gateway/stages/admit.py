"""Stores what may be stored, before the flight lands: who comes next finds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from gateway.cache.admission import judged, roles_of, unasked
from gateway.cache.frequency import Frequency
from gateway.cache.lifetimes import longest_lifetime_s
from gateway.cache.price import Price
from gateway.errors import StoreUnavailable
from gateway.flights.aloft import entry_of
from gateway.flights.unstorable import Unstorable
from gateway.flow import Tap, tapped
from gateway.messages import (
    Admission,
    Call,
    Entry,
    Event,
    EventStream,
    Provenance,
    Request,
    Response,
    Vector,
    Verdict,
    Whole,
)
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Inspected
from gateway.pipeline import Handler
from gateway.policy.model import Route
from gateway.ports import Clock, Inspection, NearStore, VectorIndex

LOG = logging.getLogger("nearhit.store")
MAX_TAGS, MAX_TAG_LENGTH = 32, 128
UNPRICED = Price()


class Admit:
    """Stores answers of backends alone: of semantic hits, errors would spread from neighbour to neighbour. `told` hears
    of every answer that has been stored, `unstorable` of those that may not be."""

    def __init__(
        self,
        store: NearStore,
        index: VectorIndex,
        clock: Clock,
        telemetry: Telemetry,
        route: Route,
        *,
        max_entry: int,
        prices: Mapping[str, Price],
        unstorable: Unstorable,
        frequency: Frequency,
        told: Callable[[Request, Entry], None] | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._telemetry = telemetry
        self._route = route
        self._rules = route.admission
        self._max_entry = min(max_entry, route.admission.max_size or max_entry)
        self._prices = prices
        self._unstorable = unstorable
        self._frequency = frequency
        self._told = told
        self._lifetime_s = longest_lifetime_s(route)
        # Whether it depends on the question: as a rule it does not.
        self._picks = route.admission.max_temperature is not None or route.admission.roles is not None
        miss = Provenance(Verdict.MISS)
        self._as_stored = (miss, miss.as_stored())  # the last one, as a rule always the same, and as its answer says it

    async def __call__(self, request: Request, forward: Handler) -> Response:
        asked = self._clock.monotonic()
        response = await forward(request)
        call = request.call
        if call is None or not request.fingerprint or response.provenance.verdict is not Verdict.MISS:
            return response
        if response.status != 200:
            self._refuse(request, Admission.ERROR_STATUS)
            return response
        if forbids_storing(response.headers):
            self._refuse(request, Admission.NO_STORE)
            return response
        if not self._asked_for(request, call):
            return response
        body = response.body
        if isinstance(body, Whole):
            entry = self._admitted(request, call, response, (body.data,), asked, streamed=False)
            if entry is None or not await self._put(request, entry):
                return response
        elif isinstance(body, EventStream):
            body = EventStream(tapped(body.events, self._recording(request, call, response, asked)))
        else:
            self._refuse(request, Admission.TOO_LARGE)
            return response
        return Response(response.status, response.headers, body, self._stored(response.provenance))

    def _stored(self, provenance: Provenance) -> Provenance:
        if provenance is not self._as_stored[0]:
            self._as_stored = provenance, provenance.as_stored()
        return self._as_stored[1]

    def _asked_for(self, request: Request, call: Call) -> bool:
        """Whether the policy wants an answer to this request at all, and to a question that is asked this often."""
        reason = unasked(self._rules, call.body.get("temperature"), roles_of(call)) if self._picks else None
        if reason is not None:
            self._refuse(request, reason)
            return False
        if self._rules.after == 1 or request.directives.no_cache:  # which asks for the answer to be replaced
            return True
        often = self._frequency.add(request.fingerprint) >= self._rules.after
        if not often:
            self._count(Admission.RARE)  # the next one may be stored: nothing to tell `unstorable`
        return often

    def _recording(self, request: Request, call: Call, response: Response, asked: float) -> Tap[Event]:
        """Keeps the events until there are too many; stored when the stream is complete."""
        payload: list[bytes] = []
        size = 0

        def saw(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal size
            for event in events:
                size += len(event.data)
                if size <= self._max_entry:
                    payload.append(event.data)
                elif size - len(event.data) <= self._max_entry:  # known from here on: nobody has to wait for its end
                    payload.clear()
                    self._refuse(request, Admission.TOO_LARGE)
            return events

        async def ended() -> None:
            if size <= self._max_entry:
                entry = self._admitted(request, call, response, tuple(payload), asked, streamed=True)
                if entry is not None:
                    await self._put(request, entry)

        return Tap(saw, ended)

    def _admitted(
        self,
        request: Request,
        call: Call,
        response: Response,
        payload: tuple[bytes, ...],
        asked: float,
        *,
        streamed: bool,
    ) -> Entry | None:
        """What is to be stored of a complete answer; None where the rules refuse it."""
        inspection = call.dialect.inspect(call, payload, streamed)
        dollars, size = self._cost(response, inspection), sum(map(len, payload))
        request.trace.inspected = Inspected(inspection, dollars, size, self._clock.monotonic() - asked)
        admission = judged(self._rules, inspection, dollars, size, self._max_entry)
        if admission is not Admission.STORED:
            self._refuse(request, admission)
            return None
        return self._entry(request, response, payload, inspection, dollars, asked, streamed=streamed)

    def _entry(
        self,
        request: Request,
        response: Response,
        payload: tuple[bytes, ...],
        inspection: Inspection,
        dollars: float,
        asked: float,
        *,
        streamed: bool,
    ) -> Entry:
        now = self._clock.wall()
        return entry_of(
            request,
            streamed=streamed,
            payload=payload,
            content_type=response.content_type or "application/json",
            created=now,
            expires=now + self._lifetime_s,
            backend=response.provenance.backend or "",
            input_tokens=inspection.input_tokens,
            output_tokens=inspection.output_tokens,
            cost_dollars=dollars,
            upstream_s=self._clock.monotonic() - asked,
            tags=tags_of(  # the backend's first: within their bound a client cannot push them out
                *[value for name, value in response.headers if name.lower() == "cache-tag"],
                request.headers.get("cache-tag"),
            ),
        )

    def _cost(self, response: Response, inspection: Inspection) -> float:
        """Of all calls that were made for the answer."""
        origin = response.provenance
        price = self._prices.get(origin.backend or "", UNPRICED)
        dollars = price.of(inspection.input_tokens, inspection.output_tokens)
        for usage in origin.beside:
            dollars += self._prices.get(usage.backend, UNPRICED).of(usage.input_tokens, usage.output_tokens)
        return dollars

    def _vector(self, request: Request) -> Vector | None:
        """What the entry is found by in other words; None where it is not."""
        embedding = request.embedding
        if embedding is None or embedding.partial or self._route.semantic is None:
            return None
        return embedding.vector

    async def _put(self, request: Request, entry: Entry) -> bool:
        """Whether it can be found from now on."""
        vector = self._vector(request)
        if self._store.banned(entry, vector):
            self._count(Admission.PURGED)
            return False
        self._count(Admission.STORED)
        began = self._clock.monotonic()
        try:
            if not await self._store.put(entry, vector, request.lease):
                if request.lease:
                    self._telemetry.crowds.add("superseded")
                return False
            if vector is not None:
                await self._index.add(entry.fingerprint, entry.scope, vector, entry.expires)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            LOG.warning("an answer was not stored", extra={"fields": {**request.named, "error": str(error)}})
            return False
        finally:
            request.trace.since("store", began)
        request.trace.stored = entry
        self._unstorable.discard(entry.fingerprint)
        if self._told is not None:
            self._told(request, entry)
        return True

    def _refuse(self, request: Request, admission: Admission) -> None:
        self._unstorable.add(request.fingerprint)
        self._count(admission)

    def _count(self, admission: Admission) -> None:
        self._telemetry.admissions.add(self._route.name, admission)


def forbids_storing(headers: Sequence[tuple[str, str]]) -> bool:
    """Whether a backend says `Cache-Control: no-store` (RFC 9111, section 5.2.2.5)."""
    for name, value in headers:
        if name.lower() == "cache-control" and any(part.strip().lower() == "no-store" for part in value.split(",")):
            return True
    return False


def tags_of(*headers: str | None) -> tuple[str, ...]:
    """The tags of `Cache-Tag` headers; what exceeds the bounds is dropped."""
    tags: list[str] = []
    for header in headers:
        if header:
            tags += [tag.strip() for tag in header.split(",")]
    if not tags:
        return ()
    return tuple(dict.fromkeys(tag for tag in tags if 0 < len(tag) <= MAX_TAG_LENGTH))[:MAX_TAGS]
