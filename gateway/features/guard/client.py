"""Asks a guard over HTTP, within bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import aiohttp

from gateway.circuit_breaker import CircuitBreaker
from gateway.features.guard.question import Content, GuardFailed, Outcome, Verdict, read_verdict
from gateway.ports import Clock

LOG = logging.getLogger("nearhit.guard")

MAX_INFLIGHT = 256  # questions to one guard at once
# Bytes of an answer: it may repeat the question, with each character escaped anew.
MIN_ANSWER_BYTES, ANSWER_SHARE = 64 * 1024, 3
# After so many failures in a row no request waits for a guard. One request tries it after a second, and after at most
# 30 seconds if it keeps failing.
FAILURES, COOLDOWN_S, LONGEST_S = 5, 1.0, 30.0
HEADERS = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}


class GuardServer:
    """`GuardServer` asks the guard at one URL. All routes that name it share it, with its circuit breaker. It sends no
    header of the client, and follows no redirect. `session` returns the HTTP session, which its owner closes."""

    def __init__(
        self, url: str, headers: Mapping[str, str], session: Callable[[], aiohttp.ClientSession], clock: Clock
    ) -> None:
        self._url = url
        self._headers = {**HEADERS, **headers}
        self._session = session
        self._clock = clock
        self._breaker = CircuitBreaker(FAILURES, COOLDOWN_S, LONGEST_S)
        self._inflight = 0
        self._is_away = False  # as the log says

    async def judge(self, body: bytes, content: Content, timeout_s: float) -> Verdict:
        """Return the verdict on a question, whose `body` is about `content`. Raise `GuardFailed`."""
        now = self._clock.monotonic()
        if self._inflight >= MAX_INFLIGHT:
            raise GuardFailed(Outcome.BUSY, f"it has {MAX_INFLIGHT} questions already")
        if not self._breaker.allow(now):
            raise GuardFailed(Outcome.PAUSED, f"it is paused after {FAILURES} failures in a row")
        self._inflight += 1
        try:
            async with asyncio.timeout(timeout_s):
                verdict = read_verdict(await self._ask(body), content)
        except TimeoutError:
            raise self._failed(Outcome.LATE, f"it gave no verdict within {1e3 * timeout_s:g} ms", now) from None
        except GuardFailed as error:
            raise self._failed(error.outcome, str(error), now) from None
        finally:
            self._inflight -= 1
        self._succeeded(now)
        return verdict

    async def _ask(self, body: bytes) -> bytes:
        limit = max(MIN_ANSWER_BYTES, ANSWER_SHARE * len(body))
        try:
            async with self._session().post(
                self._url, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                if not 200 <= response.status < 300:
                    raise GuardFailed(Outcome.FAILED, f"it answered with status {response.status}")
                return await _read(response.content, limit)
        except (aiohttp.ClientError, OSError) as error:
            raise GuardFailed(Outcome.FAILED, f"the call failed: {type(error).__name__}") from None

    def _failed(self, outcome: Outcome, why: str, sent_at: float) -> GuardFailed:
        self._breaker.failed(self._clock.monotonic(), sent_at)
        if self._breaker.failures >= FAILURES and not self._is_away:
            self._is_away = True
            LOG.warning("a guard is paused", extra={"fields": {"url": self._url, "reason": why}})
        return GuardFailed(outcome, why)

    def _succeeded(self, sent_at: float) -> None:
        self._breaker.succeeded(sent_at)
        if self._is_away and self._breaker.failures == 0:
            self._is_away = False
            LOG.info("a guard answers again", extra={"fields": {"url": self._url}})


async def _read(content: aiohttp.StreamReader, limit: int) -> bytes:
    pieces, size = [], 0
    while piece := await content.read(limit + 1 - size):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise GuardFailed(Outcome.INVALID, f"its answer is larger than {limit} bytes")
    return b"".join(pieces)
