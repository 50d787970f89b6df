"""Tell whether a connection has bytes that nobody has read yet.

HTTP/1.1 matches answers to requests by their order alone. Some servers send more than was asked for, such as a second
answer, or a 408 to an idle connection. It would be taken for the answer to the next request. So a connection with
unread bytes serves no further request. Bytes that arrive later than the request look like its answer, to every client.
"""

from __future__ import annotations

import asyncio
import select


class UnreadBytes:
    """`UnreadBytes` looks at the socket of `transport`. A look costs 0.4 us."""

    __slots__ = ("_poll",)

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        self._poll: select.poll | None = None
        if sock is not None and hasattr(select, "poll"):  # Windows has none
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def __bool__(self) -> bool:
        """Return whether the kernel has bytes, or the server's end of the connection. The socket must be open."""
        return self._poll is not None and bool(self._poll.poll(0))
