"""What the stages answer to a request that came plainly, written to its connection."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gateway.bodies import AtHand
from gateway.data_port.heads import Head
from gateway.data_port.outlet import Outlet
from gateway.data_port.refusals import refused
from gateway.data_port.relaying import send, send_whole
from gateway.data_port.service import at_hand
from gateway.data_port.wire import whole_answer
from gateway.errors import StreamBroken
from gateway.messages import Request, Whole

if TYPE_CHECKING:
    from gateway.data_port.connections import Connections

LOG = logging.getLogger("nearhit")


class Lasting(Protocol):
    @property
    def goes_on(self) -> bool:
        """Whether there may be another request on this connection."""


def request_of(server: Connections, out: Outlet, head: Head, body: bytes) -> Request:
    return server.service.request(head.method, head.path, head.query, head.headers, AtHand(body), out.peer)


async def staged(
    connection: Lasting, server: Connections, out: Outlet, head: Head, body: bytes, request: Request | None
) -> bool:
    """Whether the client was told that the connection goes on. `request`: where something of it was found out before.
    Raises `CancelledError` alone."""
    out.begun = False
    server.service.inflight += 1
    try:
        return await _responded(connection, server, out, head, body, request)
    except asyncio.CancelledError:
        out.cut()
        raise
    except (StreamBroken, ConnectionError):
        # No dialect to say it in: the connection is cut, so that the client sees an incomplete body.
        out.cut()
    except Exception as error:
        _fail(out, error)
    finally:
        if request is not None and request.begun is not None:
            request.begun.release()
        server.service.inflight -= 1
    return False


def _fail(out: Outlet, error: Exception) -> None:
    """Nothing that a stage raises comes here: `Protect` has answered it."""
    LOG.error("a request was not answered", extra={"fields": {"error": type(error).__name__}})
    if out.begun:
        out.cut()
        return
    _, headers, data = refused(500, "the request cannot be handled")
    with suppress(ConnectionError):
        out.write(whole_answer("", 500, headers, data, keep_alive=False))


async def _responded(
    connection: Lasting, server: Connections, out: Outlet, head: Head, body: bytes, request: Request | None
) -> bool:
    service = server.service
    early = None if head.method == "POST" else await service.early(head.method, head.path, head.headers)
    if early is not None and isinstance(early.body, Whole):
        data, goes_on = early.body.data, connection.goes_on
        return await send_whole(out, head.method, early.status, early.headers, data, keep_alive=goes_on)
    table = (None if request is None else request.table) or server.table()
    if request is None:
        request = request_of(server, out, head, body)
    response = await service.answer(request)
    answer = at_hand(response.body)
    if answer is not None:
        server.front.learn(head, body, table, request, response, answer)
    return await send(out, request, response, answer, keep_alive=connection.goes_on)
