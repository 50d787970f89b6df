"""A token, or other credentials, that all requests share, and that are read again before they end.

One read serves all requests that wait for it. It goes on if they leave, so its source bounds its time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from gateway.ports import Clock
from gateway.tasks import cancel_and_wait
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.http_client import AZURE_KEY, UpstreamRequest, UpstreamResponse

LOG = logging.getLogger("nearhit.upstreams")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

REREAD_S = 300.0  # age at which a token is read again if nothing tells its end, as Claude Code's `apiKeyHelper`
LIFE_SHARE = 0.8  # of its life, after which a token is read again while it still serves
MAX_EARLY_S = 300.0  # before the end, for tokens of hours: the margin of Azure's and Google's libraries
LAST_S, LAST_SHARE = 10.0, 0.1  # before the end, when a token no longer serves: it must arrive in time
MIN_LIFE_S = 5.0  # of a token that has ended by our clock, which may be wrong: the endpoint decides
FAULT_S = 2.0  # after a failed read, in which the fault is the answer: a broken source is not asked by each request
FRUITLESS_S = (
    30.0  # the longest pause between reads because of refusals: the first is `FAULT_S`, each next one twice it
)
MAX_ROUNDS = 8  # that are counted
FREE_ROUNDS = 3  # such reads without a pause, if each brings another token: keys may change again soon


class Token(NamedTuple, Generic[T_co]):
    """A token, and the seconds until it ends; None if nothing tells."""

    value: T_co
    life_s: float | None = None


class TokenSource(Protocol[T_co]):
    """Reads a token from where it comes from."""

    async def read(self) -> Token[T_co]:
        """Return a token, in bounded time. Raise `NoCredentials`."""

    async def close(self) -> None: ...


class SharedToken(Generic[T]):
    """`SharedToken` keeps the current token of a source. `where` is the key of the configuration, for the log."""

    def __init__(self, source: TokenSource[T], clock: Clock, where: str) -> None:
        self._source = source
        self._clock = clock
        self._where = where
        self._value: T | None = None
        self._renew_at = self._ends_at = -math.inf  # monotonic
        self._fault: NoCredentials | None = None  # of the last read
        self._quiet_until = -math.inf  # after a failed read
        self._rounds = 0  # reads because of refusals, each soon after the last
        self._next_round_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def current(self, until: float) -> T:
        """Return a token that has not ended. `until` is event-loop time. Raise `NoCredentials`."""
        now = self._clock.monotonic()
        if self._value is not None and now < self._ends_at:
            if now >= self._renew_at and now >= self._quiet_until:
                self._start()
            return self._value
        if self._fault is not None and now < self._quiet_until:
            raise self._fault
        await self._read(until)
        if self._fault is not None:
            raise self._fault
        assert self._value is not None
        return self._value

    async def renewed(self, refused: T, until: float) -> bool:
        """Return whether there is another token than one that was refused, once the source was read again.

        An endpoint that refuses every token does not have the source read for each request.
        """
        if self._value is not None and self._value != refused:
            return True
        if not self._is_reading and not self._begin_round():
            return False
        await self._read(until)
        return self._fault is None and self._value != refused

    def _begin_round(self) -> bool:
        """Return whether the source may be read because of a refusal. The pause until the next such read begins."""
        now = self._clock.monotonic()
        if now < self._next_round_at:
            return False
        self._rounds = 1 if now - self._next_round_at > FRUITLESS_S else min(self._rounds + 1, MAX_ROUNDS)
        self._next_round_at = now + min(FRUITLESS_S, FAULT_S * 2 ** (self._rounds - 1))
        return True

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def close(self) -> None:
        if self._reading is not None:
            await cancel_and_wait(self._reading)
        await self._source.close()

    async def _read(self, until: float) -> None:
        """Wait for a read. Raise `NoCredentials` if it takes too long."""
        reading = self._start()
        await asyncio.wait((reading,), timeout=max(0.0, until - asyncio.get_running_loop().time()))
        if not reading.done():
            raise NoCredentials("they did not come before the deadline of the request")

    def _start(self) -> asyncio.Task[None]:
        """Return the read in progress, a new one if there is none."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._run())
        return self._reading

    async def _run(self) -> None:
        try:
            token = await self._source.read()
        except NoCredentials as fault:
            self._on_fault(fault)
        except Exception as error:  # of a library, whose words may have a secret in them
            self._on_fault(NoCredentials(f"reading them failed ({type(error).__name__})"))
        else:
            self._on_token(token)

    def _on_token(self, token: Token[T]) -> None:
        now, life_s = self._clock.monotonic(), token.life_s
        if token.value != self._value and self._rounds < FREE_ROUNDS:
            self._next_round_at = min(self._next_round_at, now)
        self._value, self._fault = token.value, None
        if life_s is None:
            self._renew_at, self._ends_at = now + REREAD_S, math.inf
            return
        life_s = max(life_s, MIN_LIFE_S)
        self._ends_at = now + life_s - min(LAST_S, LAST_SHARE * life_s)
        self._renew_at = now + max(LIFE_SHARE * life_s, life_s - MAX_EARLY_S)

    def _on_fault(self, fault: NoCredentials) -> None:
        self._fault, self._quiet_until = fault, self._clock.monotonic() + FAULT_S
        fields = {"key": self._where, "error": str(fault), **({"detail": fault.detail} if fault.detail else {})}
        LOG.warning("the credentials of a backend cannot be read", extra={"fields": fields})


@dataclass(slots=True, eq=False)
class TokenIdentity:
    """`TokenIdentity` implements `Identity` with a token in a header. `header` is as in `with_token`."""

    token: SharedToken[str]
    header: str | None

    async def authorized(self, request: UpstreamRequest, origin: str, until: float) -> UpstreamRequest:
        return with_token(request, await self.token.current(until), self.header)

    async def renew(self, refused: UpstreamRequest, refusal: UpstreamResponse, until: float) -> bool:
        return refusal.status == 401 and await self.token.renewed(token_in(refused), until)

    async def close(self) -> None:
        await self.token.close()


BEARER = "Bearer "
GOOGLE_ACCESS = "ya29."  # the start of its tokens: https://cloud.google.com/docs/authentication/token-types


def with_token(request: UpstreamRequest, token: str, header: str | None) -> UpstreamRequest:
    """Return a request with a token, in its last header. That is `header`, or `Authorization` with the word Bearer if
    `header` is None. Azure and Google take keys in a header of their own, but no signed tokens (RFC 7519), and no
    access tokens."""
    is_signed = header == AZURE_KEY and token.startswith("eyJ") and token.count(".") == 2
    if header is None or is_signed or token.startswith(GOOGLE_ACCESS):
        line = "Authorization", BEARER + token
    else:
        line = header, token
    return request._replace(extra_headers=(*request.extra_headers, line))


def token_in(request: UpstreamRequest) -> str:
    """Return the token that `with_token` has put into a request."""
    name, value = request.extra_headers[-1]
    return value.removeprefix(BEARER) if name == "Authorization" else value
