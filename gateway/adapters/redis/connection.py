"""Commands and replies on one connection. Commands of one loop iteration are sent in one write; replies are matched in
order.

On a redis-py connection a command costs a lock, a turn of the pool and some sixty function calls. Each command in
flight also needs its own connection. Here a command is a future and a place in a queue. hiredis parses the replies.
Errors are those of redis-py, so callers see no difference. Measured: docs/decisions/0030.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import hiredis
from redis import asyncio as redis
from redis.asyncio.connection import DefaultParser
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.errors import StoreUnavailable

# Limits on all unanswered commands together. A burst of lookups fits several times over. While a server hangs, the
# backlog of one time limit stays small compared with a gateway's memory.
MAX_PENDING_COMMANDS = 8_192

MAX_PENDING_BYTES = 64 * 2**20

# per reply: entries are limited to store.max_entry, but other programs may have written anything
MAX_REPLY_BYTES = 256 * 2**20

INCOMPLETE: Any = object()  # the reader's result if no complete reply has arrived

Word = str | bytes | int | float

Command = tuple[Word, ...] | bytes
"""Its words, or all of it in wire form."""

# The library's annotation requires a tuple of one.
_pack: Callable[[tuple[Word, ...]], bytes] = cast("Any", hiredis.pack_command)

# The future of the reply, its deadline on the loop's clock, and the bytes of the command.
_PendingReply = tuple["asyncio.Future[Any]", float, int]


class PipelinedConnection(asyncio.Protocol):
    """`PipelinedConnection` sends commands on one connection.

    A server that owes a reply may be silent for `read_timeout_s`. `is_demotion` tells whether a reply means that this
    server is no longer the primary. The connection then ends, as it does with replies such as NOAUTH and LOADING.
    `on_close` is called once, when the connection can take no more commands.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read_timeout_s: float,
        is_demotion: Callable[[Exception], bool],
        on_close: Callable[[PipelinedConnection], None],
    ) -> None:
        self._loop = loop
        self._read_timeout_s = read_timeout_s
        self._is_demotion = is_demotion
        self._on_close = on_close
        self._writer: asyncio.StreamWriter | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=INCOMPLETE
        )
        self._pending: deque[_PendingReply] = deque()
        self._bytes = 0  # total size of the waiting commands
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = 0.0  # the timer's deadline
        self._idle_since = 0.0  # time of the last data, or of a command sent when no reply was due
        self._ended = False
        self.closed = loop.create_future()  # done once the connection is closed

    @property
    def pending_count(self) -> int:
        """The number of commands without a reply, including abandoned ones."""
        return len(self._pending)

    def attach(self, writer: asyncio.StreamWriter) -> None:
        """Take over the transport of an established connection."""
        self._writer = writer  # a reference, because a collected writer closes the transport
        self._transport = writer.transport
        self._transport.set_protocol(self)
        if self._ended:
            self._transport.abort()
        elif self._unsent:
            self._flush()

    def send(self, command: Command, timeout_s: float) -> asyncio.Future[Any]:
        """Return a future for the reply. It fails with `redis.exceptions.TimeoutError` after `timeout_s`.

        A caller that stops waiting keeps its place in the queue: the reply is dropped when it comes. Raise
        `StoreUnavailable` if too much waits.
        """
        packed = command if isinstance(command, bytes) else _pack(command)
        size = len(packed)
        if len(self._pending) >= MAX_PENDING_COMMANDS or self._bytes + size > MAX_PENDING_BYTES:
            raise StoreUnavailable(f"{len(self._pending)} commands ({self._bytes} bytes) already wait for the store")
        future: asyncio.Future[Any] = self._loop.create_future()
        now = self._loop.time()
        deadline = now + timeout_s
        if not self._pending:
            self._idle_since = now
        self._pending.append((future, deadline, size))
        self._bytes += size
        if not self._unsent and self._transport is not None:
            self._loop.call_soon(self._flush)
        self._unsent.append(packed)
        if self._timer is None or deadline < self._timer_deadline:
            self._set_timer(deadline)
        return future

    def data_received(self, data: bytes) -> None:
        self._idle_since = self._loop.time()
        reader, pending = self._reader, self._pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not INCOMPLETE:
                if not pending:
                    return self.end(RedisConnectionError("a reply without a command"))
                future, _, size = pending.popleft()
                self._bytes -= size
                if isinstance(reply, Exception):
                    if not self._fail(future, reply):
                        return None
                elif not future.done():
                    future.set_result(reply)
        except InvalidResponse as error:
            return self.end(error)
        except Exception as error:  # hiredis and redis-py raise others for errors that are no text
            return self.end(InvalidResponse(f"an unreadable reply ({type(error).__name__})"))
        if reader.len() > MAX_REPLY_BYTES:
            self.end(InvalidResponse(f"a reply of more than {MAX_REPLY_BYTES} bytes"))
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(RedisConnectionError("the server closed the connection" if exc is None else str(exc)))
        if not self.closed.done():
            self.closed.set_result(None)

    def end(self, error: Exception) -> None:
        """Fail all waiting commands with `error`, and close the connection. Further calls do nothing."""
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        else:
            self.closed.set_result(None)
        self._unsent.clear()
        for future, _, _ in self._pending:
            if not future.done():
                future.set_exception(error)
        self._pending.clear()
        self._on_close(self)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None:
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def _fail(self, future: asyncio.Future[Any], error: Exception) -> bool:
        """Fail one command. Return whether the connection stays open."""
        if not future.done():
            future.set_exception(error)
        if isinstance(error, RedisConnectionError) or self._is_demotion(error):
            self.end(RedisConnectionError(f"the server refuses commands: {error}"))
            return False
        return True

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_deadline = deadline
        self._timer = self._loop.call_at(deadline, self._expire_pending)

    def _expire_pending(self) -> None:
        """Fail the commands whose time is over.

        A connection without any data for `read_timeout_s` is closed, because its peer may be gone. It is not closed
        earlier, because other commands may have longer timeouts.
        """
        self._timer = None
        now, late, next_deadline = self._loop.time(), False, float("inf")
        for future, deadline, _ in self._pending:
            if future.done():
                continue
            if deadline <= now:
                late = True
                future.set_exception(RedisTimeoutError("no reply in time"))
            else:
                next_deadline = min(next_deadline, deadline)
        if late and now >= self._idle_since + self._read_timeout_s and self._transport is not None:
            self.end(RedisConnectionError("no reply in time to earlier commands"))
        elif next_deadline < float("inf"):
            self._set_timer(next_deadline)


# The connection that all requests share. It is opened by the first command, and again after a loss.
#
# redis-py handles addresses, TLS, passwords, databases and sentinels. It opens and authenticates a connection of its
# pool, which is then taken over.
CLOSE_S = 0.5  # seconds for outstanding replies when the gateway stops

# For a server that accepts connections and does not answer: redis-py limits only the time to connect.
HANDSHAKE_TIMEOUT_FACTOR = 2.0  # times the connect timeout

# RESP2 has no push messages.
RESP2_OPTIONS = {
    "protocol": 2,
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    "maint_notifications_pool_handler": None,
}


class ReconnectingConnection:
    """`ReconnectingConnection` opens a connection on the first command, and again after a loss.

    `client` is redis-py's client of one server, or of one with sentinels. `read_timeout_s` is as in
    `PipelinedConnection`.
    """

    def __init__(self, client: redis.Redis, read_timeout_s: float) -> None:
        self._read_timeout_s = read_timeout_s
        self._pool: Any = client.connection_pool
        self._exchange: PipelinedConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        # With sentinels, a read-only error means that the server is now a replica: the next connection asks them again.
        has_sentinels = isinstance(self._pool, SentinelConnectionPool)
        self._is_demotion = _is_read_only if has_sentinels else _never_demotes

    def send(self, command: Command, timeout_s: float) -> asyncio.Future[Any]:
        """Return a future for the reply, as `PipelinedConnection.send`."""
        loop = asyncio.get_running_loop()
        exchange = self._exchange if self._exchange is not None else self._open_connection(loop)
        return exchange.send(command, timeout_s)

    def drop(self, error: Exception) -> None:
        """Close the connection. Commands without a reply fail with `error`; the next command opens another one."""
        if self._exchange is not None:
            self._exchange.end(error)

    async def close(self) -> None:
        """Close the connection. Wait up to `CLOSE_S` for outstanding replies."""
        self._closed = True
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.pending_count:
            with suppress(RedisError):
                await self.send(("PING",), CLOSE_S)  # replies come in order
        exchange.end(RedisConnectionError("the gateway is stopping"))
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await asyncio.wait([exchange.closed], timeout=CLOSE_S)

    def _open_connection(self, loop: asyncio.AbstractEventLoop) -> PipelinedConnection:
        if self._closed:
            raise RedisConnectionError("the gateway is stopping")
        exchange = self._exchange = PipelinedConnection(loop, self._read_timeout_s, self._is_demotion, self._on_close)
        self._opening = loop.create_task(self._connect(exchange))
        return exchange

    def _on_close(self, exchange: PipelinedConnection) -> None:
        if self._exchange is exchange:
            self._exchange = None

    async def _connect(self, exchange: PipelinedConnection) -> None:
        connection = self._pool.connection_class(**{**self._pool.connection_kwargs, **RESP2_OPTIONS})
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_FACTOR * connection.socket_connect_timeout):
                await connection.connect()
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            exchange.end(error if str(error) else RedisTimeoutError("no connection in time"))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        else:
            # redis-py 8.1 has no public access to the streams; tests/adapters/test_redis_reconnecting.py checks that
            # this private one works.
            writer, connection._writer, connection._reader = connection._writer, None, None
            exchange.attach(writer)
        finally:
            self._opening = None


def _is_read_only(error: Exception) -> bool:
    return isinstance(error, ReadOnlyError)


def _never_demotes(_: Exception) -> bool:
    return False
