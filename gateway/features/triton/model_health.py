"""Probe models that do not respond until they do, and reload them if the configuration allows it.

There is one task for each upstream. It sleeps while all models respond, because real calls tell more than a probe.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from enum import StrEnum

from gateway.circuit_breaker import BreakerState
from gateway.errors import BackendError, ModelControlDisabled
from gateway.features.triton.models import TritonModels
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, ModelCondition
from gateway.upstream.upstream import Upstream

# When to probe and when to reload a model. Pure: callers pass the time and the random number.
CHECK_EVERY_S = 4.0  # less than the shortest breaker cooldown, so that no client's request serves as a probe

JITTER = 0.25  # fraction of the interval, either way, so that gateways do not probe in step

FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 300.0  # between two reloads

RELAPSE_S = 60.0  # a model that fails within this time after a recovery is not trusted to recover by itself

STABLE_S = 600.0  # after this time the pauses start again from the shortest


class Reload(StrEnum):
    """The outcome of a reload: the label `outcome` of `nearhit_model_reloads_total`."""

    RECOVERED = "recovered"  # the model responds again
    FAILED = "failed"  # it could not be loaded, or does not respond
    REFUSED = "refused"  # the server does not allow models to be loaded


def check_interval_s(chance: float) -> float:
    """Return the seconds until the next check. `chance` is in [0, 1)."""
    return CHECK_EVERY_S * (1.0 - JITTER + 2.0 * JITTER * chance)


class Repairs:
    """`Repairs` schedules the reloads of one model at one upstream.

    Each pause between two reloads is twice the previous one. If the server refuses, the pause is the longest one.
    """

    __slots__ = ("_answered_at", "_next_at", "_pause_s")

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._next_at = 0.0
        self._answered_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the model may be reloaded now."""
        return now >= self._next_at

    def trusts_probe(self, now: float) -> bool:
        """Return whether a successful probe means that the model is healthy.

        Shortly after a recovery it does not: one of several processes of the model may be dead. A probe can then
        succeed, and a call soon fail.
        """
        return self._answered_at is None or now - self._answered_at > RELAPSE_S

    def on_recovery(self, now: float) -> None:
        """Record that the model is back in service, by itself or after a reload."""
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
"""Locks by server and model: only one of the backends that share a model reloads it."""


class ModelCare:
    """`ModelCare` probes and reloads the models of one upstream. With `reload` it unloads and loads a dead model."""

    def __init__(
        self,
        endpoint: Upstream,
        hosted: TritonModels,
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
        self._unloaded: set[str] = set()  # missing because this gateway unloaded them

    async def run(self) -> None:
        while True:
            await self._hosted.wait_unready()
            for name, condition in tuple(self._hosted.conditions.items()):
                if condition is not ModelCondition.READY:
                    try:
                        await self.check(name, condition)
                    except Exception:
                        LOG.exception("the check of a model failed", extra={"fields": self._fields(name)})
            await asyncio.sleep(check_interval_s(self._rng()))

    async def check(self, name: str, condition: ModelCondition) -> None:
        """Probe the model, and reload it if that is due. Then return the upstream to service, or keep it out for
        longer.
        """
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
                breaker.failed(now)  # keeps clients' requests away until the next check
            return
        repairs.on_recovery(now)
        self._unloaded.discard(name)
        self._hosted.record(name, ModelCondition.READY)
        if all(each is ModelCondition.READY for each in self._hosted.conditions.values()):
            breaker.succeeded(sent_at=now)
        LOG.info("model answers again", extra={"fields": self._fields(name)})

    async def _is_answering(self, name: str, condition: ModelCondition) -> bool:
        """Return whether the model responds. If the server does not list it as loaded, it is not called."""
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
                outcome, why = Reload.FAILED, "it was loaded but does not respond"
        except ModelControlDisabled as error:
            self._unloaded.discard(name)
            outcome, why = Reload.REFUSED, str(error)
        except BackendError as error:
            outcome, why = Reload.FAILED, str(error)
        self._telemetry.model_reloads.add(self._endpoint.backend.name, outcome)
        repairs.record_reload(outcome, self._clock.monotonic())
        if outcome is Reload.REFUSED:
            LOG.error(
                "the server does not let models be reloaded: start it with "
                "--model-control-mode=explicit, or set 'reload: off' for the backend",
                extra={"fields": {**self._fields(name), "error": why}},
            )
        elif outcome is Reload.FAILED:
            LOG.error("model reload failed", extra={"fields": {**self._fields(name), "error": why}})
        return outcome is Reload.RECOVERED

    def _fields(self, name: str) -> dict[str, str]:
        return {"backend": self._endpoint.backend.name, "upstream": self._endpoint.upstream.address, "model": name}
