"""Stores what may be stored, before the flight lands: who comes next finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.cache.admission import judged, roles_of, unasked
from gateway.cache.frequency import Frequency
from gateway.cache.lifetimes import longest_lifetime_s
from gateway.cache.price import Price
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
    Verdict,
    Whole,
)
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Inspected
from gateway.pipeline import Handler
from gateway.policy.model import Route
from gateway.ports import Clock, Inspection
from gateway.stages.storing import Storing

MAX_TAGS, MAX_TAG_LENGTH = 32, 128
UNPRICED = Price()
JSON = "application/json"


class Said(NamedTuple):
    """What the headers of an answer say of storing it. `forbidden`: `Cache-Control: no-store` (RFC 9111, section
    5.2.2.5)."""

    forbidden: bool
    content_type: str
    tags: tuple[str, ...]


def said_of(headers: Sequence[tuple[str, str]]) -> Said:
    forbidden, content_type, tags = False, "", list[str]()
    for name, value in headers:
        low = name.lower()
        if low == "cache-control":
            forbidden = forbidden or any(part.strip().lower() == "no-store" for part in value.split(","))
        elif low == "content-type":
            content_type = content_type or value
        elif low == "cache-tag":
            tags.append(value)
    return Said(forbidden, content_type or JSON, tuple(tags))


class Admit:
    """Stores answers of backends alone: of semantic hits, errors would spread from neighbour to neighbour.
    `unstorable` hears of those that may not be stored."""

    def __init__(
        self,
        storing: Storing,
        clock: Clock,
        telemetry: Telemetry,
        route: Route,
        *,
        max_entry: int,
        prices: Mapping[str, Price],
        unstorable: Unstorable,
        frequency: Frequency,
    ) -> None:
        self.storing = storing
        self._clock = clock
        self._telemetry = telemetry
        self._route = route
        self._rules = route.admission
        self._max_entry = min(max_entry, route.admission.max_size or max_entry)
        self._prices = prices
        self._unstorable = unstorable
        self._frequency = frequency
        self._lifetime_s = longest_lifetime_s(route)
        # Whether it depends on the question: as a rule it does not.
        self._picks = route.admission.max_temperature is not None or route.admission.roles is not None
        miss = Provenance(Verdict.MISS)
        self._as_stored = (miss, miss.as_stored())  # the last one, as a rule always the same, and as its answer says it

    async def __call__(self, request: Request, forward: Handler) -> Response:
        begun = request.begun  # a removal that came before it was handed over means its answer, too
        asked = self._clock.monotonic() if begun is None else begun.at
        response = await forward(request)
        call = request.call
        if call is None or not request.fingerprint or response.provenance.verdict is not Verdict.MISS:
            return response
        if response.status != 200:
            self._refuse(request, Admission.ERROR_STATUS)
            return response
        said, body = said_of(response.headers), response.body
        if isinstance(body, Whole):
            entry = self.whole(request, call, said, body.data, response.provenance, asked)
            if entry is None or not await self.storing.put(request, entry):
                return response
        elif not self._wanted(request, call, said):
            return response
        elif isinstance(body, EventStream):
            recording = self._recording(request, call, said, response.provenance, asked)
            body = EventStream(tapped(body.events, recording))
        else:
            self._refuse(request, Admission.TOO_LARGE)
            return response
        return Response(response.status, response.headers, body, self.as_stored(response.provenance))

    def whole(
        self, request: Request, call: Call, said: Said, data: bytes, origin: Provenance, asked: float
    ) -> Entry | None:
        """What is to be stored of an answer with status 200 that is all there; None where it may not be. `asked`:
        before its backend was."""
        if not self._wanted(request, call, said):
            return None
        return self._admitted(request, call, said, (data,), origin, asked, streamed=False)

    def as_stored(self, provenance: Provenance) -> Provenance:
        if provenance is not self._as_stored[0]:
            self._as_stored = provenance, provenance.as_stored()
        return self._as_stored[1]

    def _wanted(self, request: Request, call: Call, said: Said) -> bool:
        """Whether its backend lets it be stored, and the policy wants an answer to this request at all, and to a
        question that is asked this often."""
        if said.forbidden:
            self._refuse(request, Admission.NO_STORE)
            return False
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

    def _recording(self, request: Request, call: Call, said: Said, origin: Provenance, asked: float) -> Tap[Event]:
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
                entry = self._admitted(request, call, said, tuple(payload), origin, asked, streamed=True)
                if entry is not None:
                    await self.storing.put(request, entry)

        return Tap(saw, ended)

    def _admitted(
        self,
        request: Request,
        call: Call,
        said: Said,
        payload: tuple[bytes, ...],
        origin: Provenance,
        asked: float,
        *,
        streamed: bool,
    ) -> Entry | None:
        """What is to be stored of a complete answer; None where the rules refuse it."""
        inspection = call.dialect.inspect(call, payload, streamed)
        dollars, size = self._cost(origin, inspection), sum(map(len, payload))
        seconds = self._clock.monotonic() - asked
        request.trace.inspected = Inspected(inspection, dollars, size, seconds)
        admission = judged(self._rules, inspection, dollars, size, self._max_entry)
        if admission is not Admission.STORED:
            self._refuse(request, admission)
            return None
        now, tags = self._clock.wall(), request.headers.get("cache-tag")
        return entry_of(
            request,
            streamed,
            payload,
            said.content_type,
            now,
            now + self._lifetime_s,
            origin.backend or "",
            inspection.input_tokens,
            inspection.output_tokens,
            dollars,
            seconds,
            # The backend's first: within their bound a client cannot push them out.
            () if tags is None and not said.tags else tags_of(*said.tags, tags),
        )

    def _cost(self, origin: Provenance, inspection: Inspection) -> float:
        """Of all calls that were made for the answer."""
        price = self._prices.get(origin.backend or "", UNPRICED)
        dollars = price.of(inspection.input_tokens, inspection.output_tokens)
        for usage in origin.beside:
            dollars += self._prices.get(usage.backend, UNPRICED).of(usage.input_tokens, usage.output_tokens)
        return dollars

    def _refuse(self, request: Request, admission: Admission) -> None:
        self._unstorable.add(request.fingerprint)
        self._count(admission)

    def _count(self, admission: Admission) -> None:
        self._telemetry.admissions.add(self._route.name, admission)


def tags_of(*headers: str | None) -> tuple[str, ...]:
    """The tags of `Cache-Tag` headers; what exceeds the bounds is dropped."""
    tags: list[str] = []
    for header in headers:
        if header:
            tags += [tag.strip() for tag in header.split(",")]
    if not tags:
        return ()
    return tuple(dict.fromkeys(tag for tag in tags if 0 < len(tag) <= MAX_TAG_LENGTH))[:MAX_TAGS]
