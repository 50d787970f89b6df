"""Read a token by a function that blocks, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import masked
from gateway.upstream.shared_token import Token

T = TypeVar("T")
TIMEOUT_S = 20.0  # of a read: the libraries try several sources in turn, each for some seconds


class ThreadSource(Generic[T]):
    """`ThreadSource` implements `TokenSource` with a function that blocks. `kind` names the identity in messages.

    The function runs in a thread of its own, one run at a time. Nothing can end a thread, so a run that takes too long
    is left alone. Until it ends, there is no other one. Its thread does not hold up the end of the process.
    """

    def __init__(self, kind: str, read: Callable[[], Token[T]], timeout_s: float = TIMEOUT_S) -> None:
        self._kind = kind
        self._read_now = read
        self._timeout_s = timeout_s
        self._is_busy = False  # the thread clears it before it hands over the result: its own end may take a while

    async def read(self) -> Token[T]:
        if self._is_busy:
            raise NoCredentials(f"identity {self._kind}: an earlier read has not ended")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Token[T]] = loop.create_future()
        thread = threading.Thread(
            target=self._run, args=(loop, result), name=f"nearhit-identity-{self._kind}", daemon=True
        )
        self._is_busy = True
        try:
            thread.start()
        except RuntimeError:
            self._is_busy = False
            raise NoCredentials(f"identity {self._kind}: the machine permits no further thread") from None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await result
        except TimeoutError:
            raise NoCredentials(f"identity {self._kind}: nothing came within {self._timeout_s:g} s") from None

    async def close(self) -> None:
        """There is nothing to end: a thread ends with its read, or with the process."""

    def _run(self, loop: asyncio.AbstractEventLoop, result: asyncio.Future[Token[T]]) -> None:
        token: Token[T] | None = None
        try:
            token, fault = self._read_now(), NoCredentials("")
        except NoCredentials as error:
            fault = NoCredentials(f"identity {self._kind}: {error}", error.detail)
        except Exception as error:  # of a library, whose words may have a secret in them
            words = f"identity {self._kind}: the library failed ({type(error).__name__})"
            fault = NoCredentials(words, masked(str(error)))
        self._is_busy = False
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_finish, result, token, fault)


def _finish(result: asyncio.Future[Token[T]], token: Token[T] | None, fault: NoCredentials) -> None:
    if result.done():  # nobody waits any more
        return
    if token is not None:
        result.set_result(token)
    else:
        result.set_exception(fault)
