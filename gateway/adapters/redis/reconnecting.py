"""The connection that all commands of a request share: opened when the first one asks, and anew once it was lost.

Who to connect to and as whom, with TLS, passwords, databases and sentinels, stays redis-py's: a connection of its pool
is opened and signed in by it, and then taken over.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from redis import asyncio as redis
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.adapters.redis.connection import Command, Exchange

CLOSE_S = 0.5  # for what is still to be answered when the gateway ends
# A server that takes connections and does not answer: redis-py bounds the first part alone.
SIGN_IN = 2.0  # times the limit of connecting
# The older protocol has no messages that nobody asked for.
PLAINLY = {
    "protocol": 2,
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    "maint_notifications_pool_handler": None,
}


class Line:
    """`client`: redis-py's, of one server or of those that sentinels watch over. `patience_s`: as of `Exchange`."""

    def __init__(self, client: redis.Redis, patience_s: float) -> None:
        self._patience_s = patience_s
        self._pool: Any = client.connection_pool
        self._exchange: Exchange | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        # The one that sentinels named is another one's replica by now: the next connection asks them again.
        watched = isinstance(self._pool, SentinelConnectionPool)
        self._demoted = _read_only if watched else _never

    def ask(self, command: Command, timeout_s: float) -> asyncio.Future[Any]:
        """As `Exchange.ask`, within `timeout_s`."""
        loop = asyncio.get_running_loop()
        exchange = self._exchange if self._exchange is not None else self._opened(loop)
        return exchange.ask(command, timeout_s)

    async def close(self) -> None:
        """What was asked is answered first, if that takes no longer than `CLOSE_S`."""
        self._closed = True
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.unanswered:
            with suppress(RedisError):
                await self.ask(("PING",), CLOSE_S)  # replies come in order
        exchange.end(RedisConnectionError("the gateway ends"))
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await asyncio.wait([exchange.lost], timeout=CLOSE_S)

    def _opened(self, loop: asyncio.AbstractEventLoop) -> Exchange:
        if self._closed:
            raise RedisConnectionError("the gateway ends")
        exchange = self._exchange = Exchange(loop, self._patience_s, self._demoted, self._gone)
        self._opening = loop.create_task(self._open(exchange))
        return exchange

    def _gone(self, exchange: Exchange) -> None:
        if self._exchange is exchange:
            self._exchange = None

    async def _open(self, exchange: Exchange) -> None:
        connection = self._pool.connection_class(**{**self._pool.connection_kwargs, **PLAINLY})
        try:
            async with asyncio.timeout(SIGN_IN * connection.socket_connect_timeout):
                await connection.connect()
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            exchange.end(error if str(error) else RedisTimeoutError("no connection in time"))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        else:
            # There is no public way to be given the streams (redis-py 8.1): tests/adapters/test_redis_line.py holds
            # that this one leads to them.
            writer, connection._writer, connection._reader = connection._writer, None, None
            exchange.began(writer)
        finally:
            self._opening = None


def _read_only(error: Exception) -> bool:
    return isinstance(error, ReadOnlyError)


def _never(_: Exception) -> bool:
    return False
