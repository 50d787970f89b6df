"""Requests that pass straight through: read, asked of their backend and answered by callbacks, without the stages.

On a route without caches, limits and choices, with one upstream over HTTP, the stages decide nothing that does not
follow from the head of a request, the model that it names and the policy in force: that is found out once
(`gateway.data_port.ways`). What is left is to read the body as its dialect does, to send what was read, to keep the
books that others go by, and to write the answer.

This is the path of what goes as a rule. Whatever is otherwise is the stages': before a byte is sent, where there is
something to wait for or to refuse (a key that is not at hand, no place at the gate, a breaker that is not closed,
anything that has to be told of the body); afterwards by giving them the call as it stands (`Begun`): no connection to
be had, a status that is not 200, a stream, an answer that is long or of unknown length, a failure, a client that has
left. So nothing is sent twice that they would not send twice, and each such ending is decided in one place.

Measured, and why: docs/decisions/0038-straight.md.
"""

from __future__ import annotations

import asyncio

import orjson

from gateway.backends.lane import CHARACTERS_PER_TOKEN
from gateway.data_port.heads import Head
from gateway.data_port.plans import LOOKED_AT, MAX_NAME, Plan, Plans
from gateway.data_port.service import Service
from gateway.data_port.underway import Client, Relaying, ReturnedHeads
from gateway.data_port.ways import Way, way_of
from gateway.dialects.openai import OpenAI
from gateway.observing.observer import Observer
from gateway.observing.request_ids import RequestIds
from gateway.observing.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.latency import Asked


class Straight:
    """`service` is set before the first request."""

    def __init__(
        self,
        plans: Plans,
        observer: Observer,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._on = not observer.traces
        self.relayed = 0  # answers that were given
        self.plans = plans
        self.observer = observer
        self._telemetry = telemetry
        self._clock = clock
        self.now = clock.monotonic
        self.ids = RequestIds()
        self.returned = ReturnedHeads()

    def serve(self, service: Service) -> None:
        """Whose requests they are."""
        self.service = service
        self._on = self._on and not service.fits
        self._max_inflight = service.config.max_inflight
        self.loop_time = asyncio.get_running_loop().time

    def begin(self, plan: Plan, hint: bytes, head: Head, body: bytes, to: Client) -> Relaying | None:
        """Sends it, if it goes straight; what comes of that is told to `to`. `hint`: of its model, empty where there is
        none. None: the stages are to be asked."""
        if head.length > LOOKED_AT or not self._on:
            return None
        received, plans = self.now(), self.plans
        if not (plans.passing if plan.dialect is None else plans.calls):
            return None
        found = self._read(head, plan, plan.dialect, hint, body)
        if found is None:
            return None
        way, sent, asked = found
        service, lane, gate = self.service, way.lane, way.gate
        # As `Service.full`: a call that all of them pay.
        inflight = service.inflight if service.beside is None else service.inflight + service.beside()
        if inflight >= self._max_inflight:
            return None
        if not lane.plain(way.tenant, received) or not gate.take():
            return None
        service.inflight += 1
        request_id, idle = self.ids.of(head.headers), way.connections.idle()
        return Relaying(self, to, plan.table, way, head, body, request_id, received, asked, sent, idle)

    def _read(
        self, head: Head, plan: Plan, dialect: OpenAI | None, hint: bytes, body: bytes
    ) -> tuple[Way, bytes, Asked | None] | None:
        """Where a request goes, what is sent of it, and what is known of it before."""
        if dialect is None:
            passing = plan.ways[b""] if b"" in plan.ways else self._found(head, plan, b"", "")
            return None if passing is None else (passing, body, None)
        if hint and plan.ways.get(hint, plan) is None:
            return None  # as a rule that is its model, and goes through the stages: they need not be told
        read = dialect.relayed(head.path, body)
        if read is None:
            return None
        name = read.model.encode("utf-8", "surrogatepass")
        way = plan.ways[name] if name in plan.ways else self._found(head, plan, name, read.model)
        if way is None:
            return None
        sent = read.written
        if way.model is not None:
            read.body["model"] = way.model
            sent = orjson.dumps(read.body)
        known = Asked(False, read.prompt / CHARACTERS_PER_TOKEN, read.max_tokens, way.route) if way.learns else None
        return way, sent, known

    def _found(self, head: Head, plan: Plan, name: bytes, model: str) -> Way | None:
        if len(name) > MAX_NAME:
            return None
        way = plan.ways[name] = way_of(head, plan, model, self._telemetry, self._clock)
        self.plans.noted()
        return way
