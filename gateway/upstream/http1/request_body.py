"""A request's body on its way to the server, while the answer may already come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.upstream.http1.errors import UploadFailed


class Upload:
    """Sends at once, and no faster than the server takes it. `length` in bytes; None: in chunks. `failed` is told once
    where `body` raises, or is not of that length."""

    def __init__(
        self,
        transport: asyncio.Transport,
        body: AsyncIterator[bytes],
        length: int | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._transport = transport
        self._body = body
        self._length = length
        self._failed = failed
        self._room = asyncio.Event()
        self._room.set()
        self._task = asyncio.create_task(self._run())

    @property
    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    def pause(self) -> None:
        self._room.clear()

    def resume(self) -> None:
        self._room.set()

    async def _run(self) -> None:
        try:
            await self._send()
        except Exception as error:
            self._failed(error)

    async def _send(self) -> None:
        sent = 0
        async for piece in self._body:
            sent += len(piece)
            if self._length is None:
                if piece:  # an empty one would be the end
                    self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            elif sent > self._length:
                raise UploadFailed("the body is longer than its Content-Length")
            else:
                self._transport.write(piece)
            await self._room.wait()
        if self._length is None:
            self._transport.write(b"0\r\n\r\n")
        elif sent < self._length:
            raise UploadFailed("the body is shorter than its Content-Length")
