"""A Milvus server or Milvus Lite file, called from threads. Every call has a time limit and passes a circuit
breaker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pymilvus import MilvusClient

from gateway.adapters.redis.store_client import COOLDOWN_S, FAILURES
from gateway.circuit_breaker import BreakerState, CircuitBreaker
from gateway.errors import IndexUnavailable
from gateway.ports import Clock

THREADS = 8  # concurrent calls; further calls wait, within their time limit
T = TypeVar("T")
Operation = Callable[[MilvusClient, float], T]  # takes a client, and the seconds that one call to the server may take


class MilvusServer:
    """`MilvusServer` connects at the first call, so an absent server means misses and does not prevent a start. After a
    failure it may be another server, so `prepare` runs again before the next operation."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float,
        clock: Clock,
        prepare: Callable[[MilvusClient, float], None],
    ) -> None:
        self._url = url
        self._token = token
        self._timeout_s = timeout_s
        self._clock = clock
        self._prepare = prepare
        self._breaker = CircuitBreaker(FAILURES, COOLDOWN_S)
        self._threads = ThreadPoolExecutor(THREADS, "nearhit-milvus")
        self._connecting = threading.Lock()
        self._client: MilvusClient | None = None
        self._prepared = False
        _silence_library()

    @property
    def breaker(self) -> BreakerState:
        return self._breaker.state(self._clock.monotonic())

    async def call(self, operation: Operation[T], timeout_s: float | None = None) -> T:
        """Run an operation in a thread. `timeout_s` is by default the timeout of a search. Raise `IndexUnavailable`."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        started = self._clock.monotonic()
        if not self._breaker.allow(started):
            raise IndexUnavailable("the index in Milvus has failed and is not called for a moment")
        try:
            async with asyncio.timeout(limit_s):
                reply = await asyncio.get_running_loop().run_in_executor(self._threads, self._call, operation, limit_s)
        except TimeoutError:
            self._breaker.failed(self._clock.monotonic(), started)
            raise IndexUnavailable(f"the index in Milvus has not answered within {limit_s:g} s") from None
        except Exception as error:  # the library raises its own errors, those of gRPC, and any others with a Lite file
            self._prepared = False
            self._breaker.failed(self._clock.monotonic(), started)
            raise IndexUnavailable(f"the index in Milvus failed: {_error_text(error)}") from None
        self._breaker.succeeded(started)
        return reply

    def close(self) -> None:
        """Close the client. Operations in progress end within their time limit and are awaited, because they use the
        Lite file."""
        self._threads.shutdown(cancel_futures=True)
        if self._client is not None:
            with contextlib.suppress(Exception):  # errors no longer matter
                self._client.close()
            self._client = None

    # The following methods run in one of the threads.

    def _call(self, operation: Operation[T], limit_s: float) -> T:
        client = self._client
        if client is None or not self._prepared:
            client = self._connect(limit_s)
        return operation(client, limit_s)

    def _connect(self, limit_s: float) -> MilvusClient:
        with self._connecting:
            if self._client is None:
                self._client = MilvusClient(self._url, token=self._token, timeout=limit_s)
            if not self._prepared:
                self._prepare(self._client, limit_s)
                self._prepared = True
            return self._client


def server_version(url: str, token: str, timeout_s: float) -> str:
    """Return the server's version. Blocks. Raise `IndexUnavailable`."""
    _silence_library()
    try:
        with contextlib.closing(MilvusClient(url, token=token, timeout=timeout_s)) as client:
            return str(client.get_server_version(timeout=timeout_s))
    except Exception as error:  # as in `MilvusServer.call`
        raise IndexUnavailable(_error_text(error)) from None


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'message', error)}"[:300]


def _silence_library() -> None:
    """Silence the library: it also prints to standard error what it raises."""
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
