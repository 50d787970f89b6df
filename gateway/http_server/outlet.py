"""What is written to a plain connection, as fast as its client takes it."""

from __future__ import annotations

import asyncio
import socket


class Outlet:
    """`writable`: the client has taken enough of what was written; `begun`: set once something is, for who asks whether
    it is too late for another answer."""

    __slots__ = ("_drained", "_transport", "begun", "peer", "writable")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        peer, sock = transport.get_extra_info("peername"), transport.get_extra_info("socket")
        self.peer: str = peer[0] if isinstance(peer, tuple) else ""
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._drained: asyncio.Future[None] | None = None
        self.writable = True
        self.begun = False

    def write(self, data: bytes) -> None:
        """Whoever has more to write waits for `taken` where it is not `writable` any more. Raises `ConnectionError`."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.begun = True
        self._transport.write(data)

    def cut(self) -> None:
        """The client sees that there was to be more."""
        self._transport.abort()

    async def taken(self) -> None:
        """Returns when it is writable again, or the client has left."""
        if not self.writable:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def full(self) -> None:
        self.writable = False

    def emptied(self) -> None:
        """Or closed."""
        self.writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
