"""Models that do not answer are looked at until they do, and loaded anew where the configuration allows it. One job an
upstream; it sleeps while all is well: real calls tell more than any probe."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from enum import StrEnum

from gateway.circuit_breaker import BreakerState
from gateway.errors import BackendError, ModelControlDisabled
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, HostedModels, ModelCondition
from gateway.tasks import run_in
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.upstream import Upstream

# When a model that does not answer is looked at, and when it is loaded anew. Pure: the clock's reading and chance come
# in.
CHECK_EVERY_S = 4.0  # less than the shortest cooldown of a breaker: no client's request has to find out

JITTER = 0.25  # of it, to either side: gateways do not ask in step

FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 300.0  # between two reloads

RELAPSE_S = 60.0  # who fails again within it after it answered, did not get well by itself

STABLE_S = 600.0  # after which the pauses begin anew


class Reload(StrEnum):
    """What came of a reload; the label `outcome` of `nearhit_model_reloads_total`."""

    RECOVERED = "recovered"  # it answers again
    FAILED = "failed"  # it could not be loaded, or does not answer
    REFUSED = "refused"  # the server does not let models be loaded


def check_interval_s(chance: float) -> float:
    """How long to wait until the next look. `chance`: in [0, 1)."""
    return CHECK_EVERY_S * (1.0 - JITTER + 2.0 * JITTER * chance)


class Repairs:
    """Of one model at one upstream. Each pause between two reloads is twice the one before; where the server refuses,
    it is the longest at once."""

    __slots__ = ("_answered_at", "_next_at", "_pause_s")

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._next_at = 0.0
        self._answered_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it may be reloaded now."""
        return now >= self._next_at

    def trusts_probe(self, now: float) -> bool:
        """Whether an answer to a probe means that it is well. Of several processes of a model one may be dead: then a
        probe may well be answered, and soon a call is not."""
        return self._answered_at is None or now - self._answered_at > RELAPSE_S

    def on_recovery(self, now: float) -> None:
        """It is in service again, by itself or by a reload."""
        self._answered_at = now

    def record_reload(self, outcome: Reload, now: float) -> None:
        if now - self._next_at > STABLE_S:
            self._pause_s = FIRST_PAUSE_S
        if outcome is Reload.REFUSED:
            self._pause_s = MAX_PAUSE_S
        self._next_at = now + self._pause_s
        self._pause_s = min(MAX_PAUSE_S, 2.0 * self._pause_s)


LOG = logging.getLogger("nearhit.models")

Locks = dict[tuple[str, str], asyncio.Lock]
"""By server and model: of several backends that use it one reloads it at a time."""


class ModelCare:
    """Of one upstream. `reload`: whether a dead model is unloaded and loaded again."""

    def __init__(
        self,
        endpoint: Upstream,
        hosted: HostedModels,
        clock: Clock,
        telemetry: Telemetry,
        *,
        reload: bool,
        locks: Locks,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._endpoint = endpoint
        self._hosted = hosted
        self._clock = clock
        self._telemetry = telemetry
        self._reload = reload
        self._locks = locks
        self._rng = rng
        self._repairs = {name: Repairs() for name in hosted.conditions}
        self._unloaded: set[str] = set()  # absent because this gateway unloaded them

    async def run(self) -> None:
        while True:
            await self._hosted.wrong()
            for name, condition in tuple(self._hosted.conditions.items()):
                if condition is not ModelCondition.READY:
                    try:
                        await self.check(name, condition)
                    except Exception:
                        LOG.exception("looking at a model failed", extra={"fields": self._fields(name)})
            await asyncio.sleep(check_interval_s(self._rng()))

    async def check(self, name: str, condition: ModelCondition) -> None:
        """Finds out whether it answers, and reloads it where that is due. Then the upstream is asked again, or left out
        for another while."""
        repairs = self._repairs[name]
        async with self._locks.setdefault((self._hosted.server, name), asyncio.Lock()):
            now = self._clock.monotonic()
            is_dead = condition is ModelCondition.DEAD or name in self._unloaded
            reloadable = self._reload and is_dead and repairs.is_due(now)
            is_healthy = (repairs.trusts_probe(now) or not reloadable) and await self._is_answering(name, condition)
            if not is_healthy and reloadable:
                is_healthy = await self._try_reload(name, repairs)
        now, breaker = self._clock.monotonic(), self._endpoint.breaker
        if not is_healthy:
            if breaker.state(now) is not BreakerState.CLOSED:
                breaker.failed(now)  # no client's request need find out until the next look
            return
        repairs.on_recovery(now)
        self._unloaded.discard(name)
        self._hosted.told(name, ModelCondition.READY)
        if all(each is ModelCondition.READY for each in self._hosted.conditions.values()):
            breaker.succeeded(sent_at=now)
        LOG.info("model answers again", extra={"fields": self._fields(name)})

    async def _is_answering(self, name: str, condition: ModelCondition) -> bool:
        """A server that does not have it need not be asked for more than that."""
        if condition is ModelCondition.ABSENT and not await self._hosted.loaded(name):
            return False
        return await self._hosted.answers(name)

    async def _try_reload(self, name: str, repairs: Repairs) -> bool:
        LOG.warning("model is dead, reloading it", extra={"fields": self._fields(name)})
        self._unloaded.add(name)
        outcome, why = Reload.RECOVERED, ""
        try:
            await self._hosted.reload(name)
            if not await self._hosted.answers(name):
                outcome, why = Reload.FAILED, "it was loaded, and does not answer"
        except ModelControlDisabled as error:
            self._unloaded.discard(name)
            outcome, why = Reload.REFUSED, str(error)
        except BackendError as error:
            outcome, why = Reload.FAILED, str(error)
        self._telemetry.model_reloads.add(self._endpoint.backend.name, outcome)
        repairs.record_reload(outcome, self._clock.monotonic())
        if outcome is Reload.REFUSED:
            LOG.error(
                "the server does not let models be reloaded, expected it to be started with "
                "--model-control-mode=explicit, or 'reload: off' of the backend",
                extra={"fields": {**self._fields(name), "error": why}},
            )
        elif outcome is Reload.FAILED:
            LOG.error("model reload failed", extra={"fields": {**self._fields(name), "error": why}})
        return outcome is Reload.RECOVERED

    def _fields(self, name: str) -> dict[str, str]:
        return {"backend": self._endpoint.backend.name, "upstream": self._endpoint.upstream.address, "model": name}


def start_model_care(
    stack: AsyncExitStack,
    pools: Iterable[UpstreamPool],
    reloads: Callable[[str], bool],
    clock: Clock,
    telemetry: Telemetry,
) -> None:
    """Begins a job for each upstream that hosts models; they end with `stack`. `reloads`: whether those of the backend
    of that name are reloaded."""
    locks: Locks = {}
    for pool, endpoint, hosted in _hosted_models(pools):
        care = ModelCare(endpoint, hosted, clock, telemetry, reload=reloads(pool.name), locks=locks)
        run_in(stack, care.run())


def _hosted_models(pools: Iterable[UpstreamPool]) -> Iterator[tuple[UpstreamPool, Upstream, HostedModels]]:
    for pool in pools:
        for endpoint in pool.endpoints:
            if endpoint.upstream.hosted is not None:
                yield pool, endpoint, endpoint.upstream.hosted
