"""What the data port leans on of aiohttp beyond its documentation. Where an upgrade breaks this, read
`gateway/http_server/connections.py` beside the new aiohttp before anything else."""

from __future__ import annotations

import asyncio
import inspect

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler


async def test_a_server_has_what_connections_is_built_on() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        raise NotImplementedError

    server = web.Server(handler, lingering_time=1.0)
    assert server._kwargs == {"lingering_time": 1.0}
    assert server._loop is not None
    assert server.connections == []
    made = list(inspect.signature(server._make_request).parameters)
    assert made == ["message", "payload", "protocol", "writer", "task"]
    assert list(inspect.signature(server.connection_lost).parameters) == ["handler", "exc"]
    assert list(inspect.signature(server.shutdown).parameters) == ["timeout"]
    assert not inspect.iscoroutinefunction(server.pre_shutdown)


def test_a_connection_may_be_handed_over_and_asked_to_close() -> None:
    for name in ("connection_made", "data_received", "handle_error"):
        assert name in vars(RequestHandler)
    assert list(inspect.signature(RequestHandler.handle_error).parameters) == [
        "self",
        "request",
        "status",
        "exc",
        "message",
    ]
    assert hasattr(RawRequestMessage, "_replace")
    assert hasattr(RawRequestMessage, "should_close")


async def test_a_connection_that_is_to_end_is_known_by_its_flags() -> None:
    """Which `Connection` lays aside for as long as what comes is of the request that is under way."""
    connection = RequestHandler(web.Server(lambda _: web.Response()), loop=asyncio.get_running_loop())  # type: ignore[arg-type,return-value]
    assert (connection._close, connection._force_close, connection._current_request) == (False, False, None)
    connection.close()
    assert connection._close
    connection.force_close()
    assert connection._force_close
