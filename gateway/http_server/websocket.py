"""Relays WebSocket connections between a client and a backend (RFC 6455), such as realtime sessions. Frames pass both
ways as they arrive, each side as fast as the other one reads. Nothing is cached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from aiohttp import WSCloseCode, WSMsgType, web

from gateway.messages import Closing, Duplex, Frame

HEARTBEAT_S = 30.0  # a side that does not answer a ping within half of this time is gone
CLOSE_S = 5.0  # how long a side may take for the closing handshake
DRAIN_PART = 0.9  # of `server.drain_timeout`: the rest is for the closing frame, before the server cuts the connection


async def relay(
    http: web.BaseRequest,
    upstream: Duplex,
    headers: Iterable[tuple[str, str]],
    *,
    max_frame: int,
    stopping: asyncio.Event,
    drain_s: float,
) -> web.WebSocketResponse:
    """Relay frames until one side closes, and close the other side with the same code. Also close when the gateway
    stops, once `upstream` allows it or `drain_s` seconds are nearly over. `headers` are those of the handshake's
    answer. A client's frame has at most `max_frame` bytes."""
    protocols = () if upstream.protocol is None else (upstream.protocol,)
    client = web.WebSocketResponse(protocols=protocols, heartbeat=HEARTBEAT_S, max_msg_size=max_frame, timeout=CLOSE_S)
    client.headers.extend(headers)
    await client.prepare(http)
    session = asyncio.create_task(_session(client, upstream, stopping, drain_s * DRAIN_PART))
    try:
        await asyncio.shield(session)
    except asyncio.CancelledError:
        # The server cancels the handler of a client that has left. The session sees that too, and closes the upstream.
        await asyncio.wait((session,), timeout=2 * CLOSE_S)
        session.cancel()
        raise
    return client


async def _session(client: web.WebSocketResponse, upstream: Duplex, stopping: asyncio.Event, drain_s: float) -> None:
    sides = (_pump_to_upstream(client, upstream), _pump_to_client(client, upstream), _stop(upstream, stopping, drain_s))
    tasks = [asyncio.create_task(side) for side in sides]
    closing = Closing(WSCloseCode.GOING_AWAY)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        closing = _outcome(next(task for task in tasks if task.done()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        with suppress(ConnectionError, RuntimeError):
            await client.close(code=closing.code, message=closing.reason.encode()[:123])
        await upstream.close(closing)


async def _pump_to_upstream(client: web.WebSocketResponse, upstream: Duplex) -> Closing:
    while True:
        message = await client.receive()
        if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
            await upstream.send(message.data)
        else:  # closed, by the client or by aiohttp after an error
            return Closing(_sendable(client.close_code), str(message.extra or ""))


async def _pump_to_client(client: web.WebSocketResponse, upstream: Duplex) -> Closing:
    while True:
        frame: Frame | Closing = await upstream.receive()
        if isinstance(frame, Closing):
            return Closing(_sendable(frame.code), frame.reason)
        await (client.send_str(frame) if isinstance(frame, str) else client.send_bytes(frame))


async def _stop(upstream: Duplex, stopping: asyncio.Event, drain_s: float) -> Closing:
    await stopping.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await upstream.drain()
    return Closing(WSCloseCode.GOING_AWAY, "the gateway stops")


def _outcome(task: asyncio.Task[Closing]) -> Closing:
    if task.exception() is not None:
        return Closing(WSCloseCode.INTERNAL_ERROR, "the other side is gone")
    return task.result()


def _sendable(code: int | None) -> int:
    """Return a code that may be sent. 1005, 1006 and 1015 stand for an end without a code, and must not be sent (RFC
    6455 section 7.4.1)."""
    if code is None or code == 1005:
        return WSCloseCode.OK
    return WSCloseCode.GOING_AWAY if code in (1006, 1015) else code
