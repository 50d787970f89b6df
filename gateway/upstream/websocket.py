"""A WebSocket to an HTTP backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp import ClientWSTimeout, WSMsgType
from yarl import URL

from gateway.context import RequestContext
from gateway.credentials import PROTOCOLS, keys_in_protocols
from gateway.messages import Closing, Frame
from gateway.upstream.concurrency_limiter import ConcurrencyPermit

MAX_FRAME_BYTES = 16 * 1024 * 1024
HEARTBEAT_S = 30.0  # seconds between pings; a backend that does not answer within half of it is gone
CLOSE_S = 5.0  # seconds for the closing handshake
# These headers belong to one connection, so each side has its own.
HANDSHAKE = frozenset(
    {"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"}
)


@dataclass(slots=True, eq=False)
class HttpWebSocket:
    """`HttpWebSocket` implements `Duplex`; it holds its permit until it is closed."""

    socket: aiohttp.ClientWebSocketResponse
    permit: ConcurrencyPermit

    @property
    def protocol(self) -> str | None:
        return self.socket.protocol

    async def send(self, frame: Frame) -> None:
        await (self.socket.send_str(frame) if isinstance(frame, str) else self.socket.send_bytes(frame))

    async def receive(self) -> Frame | Closing:
        message = await self.socket.receive()
        if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
            frame: Frame = message.data
            return frame
        return Closing(self.socket.close_code or aiohttp.WSCloseCode.OK, str(message.extra or ""))

    async def drain(self) -> None:
        """Return at once: a session may last an hour, too long to wait for."""

    async def close(self, closing: Closing) -> None:
        try:
            await self.socket.close(code=closing.code, message=closing.reason.encode()[:123])
        except (ConnectionError, RuntimeError):
            pass  # already closed by the backend
        finally:
            self.permit.release()


def protocols_of(request: RequestContext, *, with_keys: bool) -> list[str]:
    """Return the subprotocols that a client offers. Browsers put a key among them."""
    offered = [name.strip() for name in request.headers.get(PROTOCOLS, "").split(",")]
    return [name for name in offered if name and (with_keys or not keys_in_protocols(name))]


async def open_websocket(
    session: aiohttp.ClientSession, url: URL, headers: Sequence[tuple[str, str]], protocols: Sequence[str]
) -> aiohttp.ClientWebSocketResponse:
    """Open a WebSocket. Raise aiohttp's errors; `WSServerHandshakeError` if the backend answers without an upgrade."""
    return await session.ws_connect(
        url,
        protocols=protocols,
        headers=[(name, value) for name, value in headers if name.lower() not in HANDSHAKE],
        heartbeat=HEARTBEAT_S,
        max_msg_size=MAX_FRAME_BYTES,
        timeout=ClientWSTimeout(ws_close=CLOSE_S),
    )
