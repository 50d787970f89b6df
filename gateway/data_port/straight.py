"""Requests that pass straight through: read, asked of their backend and answered by callbacks, without the stages.

On a route without caches, limits and choices, with one upstream over HTTP, the stages decide nothing that does not
follow from the head of a request, the model that it names and the policy in force: that is found out once
(`gateway.data_port.ways`). What is left is to read the body as its dialect does, to send what was read, to keep the
books that others go by, and to write the answer.

This is the path of what goes as a rule. Whatever is otherwise is the stages': before a byte is sent, where there is
something to wait for or to refuse (a key that is not at hand, no place at the gate, a breaker that is not closed, no
connection that lies idle, anything that has to be told of the body); afterwards by giving them the call as it stands
(`Begun`): a status that is not 200, a stream, an answer that is long or of unknown length, a failure, a client that has
left. So nothing is sent twice that they would not send twice, and each such ending is decided in one place.

Measured, and why: docs/decisions/0038-straight.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import orjson

from gateway.access.keyring import Keyring
from gateway.backends.lane import CHARACTERS_PER_TOKEN
from gateway.data_port.heads import Head
from gateway.data_port.service import Service
from gateway.data_port.underway import AnswerNames, Client, Underway
from gateway.data_port.ways import Plan, Table, Way, digest_in, plan_of, way_of
from gateway.dialects.openai import OpenAI
from gateway.observing.observer import Observer
from gateway.observing.request_ids import RequestIds
from gateway.observing.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.latency import Asked

MAX_BODY = 64 * 1024  # of a request, bytes: a longer one takes its time anyway
MAX_WAYS = 2048  # of some kB each
MAX_NAME = 256  # bytes of a model's name; clients choose them
# Where a call's model most likely is. Where it is not, the call is parsed in vain, or goes through the stages.
MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')


class Straight:
    """`table`: the policy in force; `keyring` None: backends judge the credentials; `beside`: requests that are being
    answered at other ports. `service` is set before the first request."""

    def __init__(
        self,
        table: Callable[[], Table],
        observer: Observer,
        telemetry: Telemetry,
        clock: Clock,
        keyring: Keyring | None,
        beside: Callable[[], int] | None,
    ) -> None:
        self._on = not observer.traces
        self.relayed = 0  # answers that were given
        self._table = table
        self.observer = observer
        self._telemetry = telemetry
        self._clock = clock
        self.now = clock.monotonic
        self._keyring = keyring
        self._beside = beside
        self.ids = RequestIds()
        self.names = AnswerNames()
        self._under: Table | None = None
        self._any = self._calls = False  # whether there are routes that it is for, and calls that are
        self._plans: dict[bytes, Plan | None] = {}  # by `Head.decisive`
        self._count = 0  # ways that they know

    def serve(self, service: Service) -> None:
        """Whose requests they are."""
        self.service = service
        self._on = self._on and not service.fits
        self._max_inflight = service.config.max_inflight
        self.loop_time = asyncio.get_running_loop().time

    def begin(self, head: Head, body: bytes, to: Client) -> Underway | None:
        """Sends it, if it goes straight; what comes of that is told to `to`. None: the stages are to be asked."""
        if head.length > MAX_BODY:
            return None
        received, plan = self.now(), self._plan_of(head)
        if plan is None:
            return None
        if plan.dialect is not None:
            found = self._read(head, plan, plan.dialect, body)
            if found is None:
                return None
            way, sent, asked = found
        else:
            way, sent, asked = plan.passing, body, None
        service, lane, gate = self.service, way.lane, way.gate
        inflight = service.inflight if self._beside is None else service.inflight + self._beside()
        if inflight >= self._max_inflight:
            return None
        if not lane.plain(way.tenant, received) or not gate.take():
            return None
        connection = way.connections.idle()
        if connection is None:
            gate.untake()
            return None
        service.inflight += 1
        return Underway(self, connection, to, plan.table, way, head, body, received, asked, sent)

    def _read(self, head: Head, plan: Plan, dialect: OpenAI, body: bytes) -> tuple[Way, bytes, Asked | None] | None:
        """Where a call goes, what is sent of it, and what is known of it before."""
        hint = MODEL.search(body)
        if hint is not None and plan.ways.get(hint[1], plan) is None:
            return None  # as a rule that is its model, and goes through the stages: they need not be told
        read = dialect.relayed(head.path, body)
        if read is None:
            return None
        name = read.model.encode("utf-8", "surrogatepass")
        try:
            way = plan.ways[name]
        except KeyError:
            way = self._found(head, plan, name, read.model)
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
        self._count += 1
        if self._count > MAX_WAYS:
            self._forget()
        return way

    def _forget(self) -> None:
        self._plans.clear()
        self._count = 0

    def _plan_of(self, head: Head) -> Plan | None:
        table = self._table()
        if table is not self._under:
            self._under = table
            self._forget()
            directs = [chains.direct for chains in table.chains.values() if chains.direct is not None]
            self._any, self._calls = self._on and bool(directs), any(direct.calls for direct in directs)
        if not self._any:
            return None
        try:
            plan = self._plans[head.decisive]
        except KeyError:
            return self._planned(head, table)
        if plan is not None and self._keyring is not None and self._keyring.at_hand(plan.digest) is not plan.permit:
            del self._plans[head.decisive]  # it has changed, or is to be asked for
            return None
        return plan

    def _planned(self, head: Head, table: Table) -> Plan | None:
        if len(self._plans) >= MAX_WAYS:
            self._forget()
        digest, permit = "", None
        if self._keyring is not None:
            digest = digest_in(head)
            permit = self._keyring.at_hand(digest)
            if permit is None:
                return None  # may be at hand the next time
        plan = plan_of(head, table, digest, permit)
        if plan is not None and plan.dialect is not None and not self._calls:
            plan = None
        elif plan is not None and plan.dialect is None:
            way = way_of(head, plan, "", self._telemetry, self._clock)
            plan = None if way is None else plan.through(way)
        self._plans[head.decisive] = plan
        return plan
