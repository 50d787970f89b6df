"""Access to the store's server: within a time limit, behind one breaker, on the shortest path.

For a single server, also one with sentinels, commands that requests wait for use a `ReconnectingConnection`. Everything
else uses redis-py, and so does a cluster, whose slots are on several servers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError

from gateway.adapters.redis.cluster import Cluster, refresh_topology
from gateway.adapters.redis.connection import ReconnectingConnection, Word
from gateway.adapters.redis.replies import UNREADABLE, Reader
from gateway.circuit_breaker import BreakerState, CircuitBreaker
from gateway.errors import StoreUnavailable
from gateway.ports import Clock

LOG = logging.getLogger("nearhit.store")
# Five failures in a row open the breaker. One probe a second can close it, so hits are back 1 s after the store.
FAILURES = 5
COOLDOWN_S = 1.0
# Concurrent redis-py operations, each on its own connection; further ones wait within their time limit. At a
# millisecond each this is more than one process can use. A burst opens no more connections than it can in that time.
MAX_CONNECTIONS = 16
T = TypeVar("T")


class Script:
    """Lua that the server knows by its digest after the first run."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class StoreClient:
    """`StoreClient` runs commands. `timeout_s` applies to operations without their own limit. Every failure is
    `StoreUnavailable`."""

    def __init__(self, client: Any, timeout_s: float, clock: Clock) -> None:
        self._client = client  # redis.asyncio.Redis; its annotations mix the synchronous and the asyncio results
        self._connection = None if isinstance(client, Cluster) else ReconnectingConnection(client, timeout_s)
        self._timeout_s = timeout_s
        self._clock = clock
        self._breaker = CircuitBreaker(FAILURES, COOLDOWN_S)
        self._unavailable_since: float | None = None  # set once the failure is logged
        self._connection_limiter = asyncio.Semaphore(MAX_CONNECTIONS)

    @property
    def breaker(self) -> BreakerState:
        return self._breaker.state(self._clock.monotonic())

    async def send(self, *words: Word, timeout_s: float | None = None) -> Any:
        """Return the server's reply to a command."""
        if self._connection is None:
            return await self.execute(lambda client: client.execute_command(*words), timeout_s, read=_as_it_is)
        self._check_breaker()
        try:
            reply = await self._connection.send(words, timeout_s or self._timeout_s)
        except (RedisError, OSError) as error:
            raise self._record_failure(error) from None
        self._breaker.succeeded()
        return reply

    async def send_packed(self, command: bytes) -> Any:
        """Send a command in wire form to one server, as `send`. Return None if the server does not know the script that
        it names."""
        assert self._connection is not None
        self._check_breaker()
        try:
            reply = await self._connection.send(command, self._timeout_s)
        except NoScriptError:
            reply = None  # the server answers, so the breaker stays closed
        except (RedisError, OSError) as error:
            raise self._record_failure(error) from None
        self._breaker.succeeded()
        return reply

    async def poll(self, *words: Word, timeout_s: float) -> Any:
        """Send a command, as `send`, without the breaker. For periodic commands, which would take the probe of a
        half-open breaker from a request."""
        try:
            if self._connection is not None:
                return await self._connection.send(words, timeout_s)
            async with asyncio.timeout(timeout_s):
                return await self._client.execute_command(*words)
        except (RedisError, OSError, TimeoutError, *UNREADABLE) as error:
            raise StoreUnavailable(f"the store failed: {type(error).__name__}") from None

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Word], timeout_s: float | None = None
    ) -> Any:
        """Return the result of a script. In a cluster all its keys must be in one slot."""
        if self._connection is None:
            words = (len(keys), *keys, *arguments)
            return await self.execute(lambda client: _run(client, script, words), timeout_s, read=_as_it_is)
        self._check_breaker()
        limit = timeout_s or self._timeout_s
        try:
            try:
                reply = await self._connection.send(("EVALSHA", script.digest, len(keys), *keys, *arguments), limit)
            except NoScriptError:  # the server was restarted
                reply = await self._connection.send(("EVAL", script.text, len(keys), *keys, *arguments), limit)
        except (RedisError, OSError) as error:
            raise self._record_failure(error) from None
        self._breaker.succeeded()
        return reply

    async def execute(
        self, operation: Callable[[Any], Awaitable[Any]], timeout_s: float | None = None, *, read: Reader[T]
    ) -> T:
        """Run `operation` with redis-py's client, and return its result as `read` reads it.

        redis-py, the operation and `read` may find a reply of another form than the command's. That is a failure of the
        store (`gateway.adapters.redis.replies`).
        """
        self._check_breaker()
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s), self._connection_limiter:
                reply = await operation(self._client)
            result = read(reply)
        except (RedisError, OSError, TimeoutError) as error:
            raise self._record_failure(error) from None
        except StoreUnavailable:  # the operation has found a refusal, so the server answers
            self._breaker.succeeded()
            raise
        except UNREADABLE as error:
            raise self._record_failure(InvalidResponse(f"an unreadable reply ({type(error).__name__})")) from None
        self._breaker.succeeded()
        return result

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Surround what reads a reply. A reply of another form than the command's is a failure of the store.

        It may be the reply to another command, and so may all that follow it. So their connection is closed.
        """
        try:
            yield
        except UNREADABLE as error:
            strange = InvalidResponse(f"a reply has an unexpected form ({type(error).__name__})")
            if self._connection is not None:
                self._connection.drop(strange)
            raise self._record_failure(strange) from None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        await self._client.aclose()

    def _check_breaker(self) -> None:
        if self._unavailable_since is not None and self._breaker.failures == 0:
            away_s = round(self._clock.monotonic() - self._unavailable_since, 3)
            self._unavailable_since = None
            LOG.warning("the store is back", extra={"fields": {"away_s": away_s}})
        if not self._breaker.allow(self._clock.monotonic()):
            raise StoreUnavailable("the store has failed repeatedly and is not called for a moment")

    def _record_failure(self, error: Exception) -> StoreUnavailable:
        # full, read-only, ...: the server answers, and may well accept the next command
        if isinstance(error, ResponseError):
            self._breaker.succeeded()
            return StoreUnavailable(f"the store refused: {error}"[:300])
        if isinstance(error, TimeoutError):
            refresh_topology(self._client)
        failed, now = f"the store failed: {type(error).__name__}: {error}"[:300], self._clock.monotonic()
        self._breaker.failed(now)
        if self._unavailable_since is None and self._breaker.failures >= FAILURES:
            self._unavailable_since = now
            LOG.warning(
                "the store is away: until it is back, requests that memory cannot answer are misses",
                extra={"fields": {"error": failed}},
            )
        return StoreUnavailable(failed)


def _as_it_is(reply: Any) -> Any:
    """Leave the reply to the caller, which reads it within `reading`."""
    return reply


async def _run(client: Any, script: Script, words: Sequence[Word]) -> Any:
    try:
        return await client.evalsha(script.digest, *words)
    except NoScriptError:
        return await client.eval(script.text, *words)
