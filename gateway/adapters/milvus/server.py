"""A Milvus server, or a Milvus Lite file, asked from threads: every call has a time limit, and a breaker before it."""

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

THREADS = 8  # calls at once; what comes beyond waits, within its time limit
T = TypeVar("T")
Operation = Callable[[MilvusClient, float], T]  # of a client and the seconds that one call to the server may take


class MilvusServer:
    """Connects at the first call, so that an absent server is a miss and no failure to start; after a failure the
    server is taken for another one, and `prepare` is called again before anything else is asked of it."""

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
        """`timeout_s`: None: that of a search. Raises `IndexUnavailable`."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        asked = self._clock.monotonic()
        if not self._breaker.allow(asked):
            raise IndexUnavailable("the index in Milvus has failed, and is left alone for a moment")
        try:
            async with asyncio.timeout(limit_s):
                found = await asyncio.get_running_loop().run_in_executor(self._threads, self._call, operation, limit_s)
        except TimeoutError:
            self._breaker.failed(self._clock.monotonic(), asked)
            raise IndexUnavailable(f"the index in Milvus has not answered within {limit_s:g} s") from None
        except Exception as error:  # the library raises its own, gRPC's, and whatever a Lite file may come to
            self._prepared = False
            self._breaker.failed(self._clock.monotonic(), asked)
            raise IndexUnavailable(f"the index in Milvus failed: {_error_text(error)}") from None
        self._breaker.succeeded(asked)
        return found

    def close(self) -> None:
        """What is under way ends within its time limit, and is waited for: a Lite file is let go of after it."""
        self._threads.shutdown(cancel_futures=True)
        if self._client is not None:
            with contextlib.suppress(Exception):  # it is not needed any more
                self._client.close()
            self._client = None

    # What follows runs in one of the threads.

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
    """Blocks. Raises `IndexUnavailable`."""
    _silence_library()
    try:
        with contextlib.closing(MilvusClient(url, token=token, timeout=timeout_s)) as client:
            return str(client.get_server_version(timeout=timeout_s))
    except Exception as error:  # as `MilvusServer.call`
        raise IndexUnavailable(_error_text(error)) from None


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'message', error)}"[:300]


def _silence_library() -> None:
    """The library prints on standard error what it raises as well."""
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
