"""`GET /admin/decisions`: the decision on each request as a server-sent event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import NO_STORE, json_errors
from gateway.observability.live_events import Decision, Subscription

if TYPE_CHECKING:
    from gateway.admin.on_demand import AdminCore

POLL_S = 1.0  # seconds until a closed connection is noticed
POLLS_PER_HEARTBEAT = 15  # polls between two comments that keep the connection open
BATCH_S = 0.1  # events of this time are sent together
STALL_S = 30.0  # seconds that a reader may take for one write


class DecisionsQuery(TypedDict, total=False):
    route: str
    verdict: str
    tenant: str
    backend: str


class LiveAdmin:
    """`LiveAdmin` serves the live view."""

    def __init__(self, core: AdminCore) -> None:
        self._decisions = core.decisions

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/decisions", json_errors(self._get))]

    @operation(str, query=DecisionsQuery, returns_type="text/event-stream")
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Stream the decision on each request as server-sent events. The parameters filter them.

        Event `decision` has the fields of the access log. Event `dropped` has the number of decisions that came faster
        than the client read them.
        """
        wanted = {name: request.query[name] for name in DecisionsQuery.__annotations__ if request.query.get(name)}
        try:
            with self._decisions.watch() as watch:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **NO_STORE})
                await response.prepare(request)
                await response.write(b"retry: 2000\n\n")
                await _send_events(request, response, watch, wanted)
                return response
        except (ConnectionError, TimeoutError):  # the reader has closed the connection, or does not read
            if request.transport is not None:
                request.transport.abort()
            return web.Response()


async def _send_events(
    request: web.Request, response: web.StreamResponse, watch: Subscription, wanted: Mapping[str, str]
) -> None:
    idle_polls = 0
    while not watch.is_closed and request.transport is not None and not request.transport.is_closing():
        taken = await watch.take(POLL_S)
        events = _encode_events([decision for decision in taken if _passes_filters(decision, wanted)], watch.dropped)
        watch.dropped = 0
        idle_polls = 0 if events else idle_polls + 1
        if events or idle_polls % POLLS_PER_HEARTBEAT == 0:
            async with asyncio.timeout(STALL_S):
                await response.write(events or b": still here\n\n")
        await asyncio.sleep(BATCH_S)


def _passes_filters(decision: Decision, wanted: Mapping[str, str]) -> bool:
    return all(_value_matches(decision.get(name), value) for name, value in wanted.items())


def _value_matches(value: Any, wanted: str) -> bool:
    return isinstance(value, str) and value == wanted


def _encode_events(decisions: list[Decision], dropped: int) -> bytes:
    events = [b"event: decision\ndata: " + orjson.dumps(decision) + b"\n\n" for decision in decisions]
    if dropped:
        events.append(b"event: dropped\ndata: %d\n\n" % dropped)
    return b"".join(events)
