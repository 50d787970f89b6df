"""The figures of all gateways on a store as one, for the dashboard of any of them. Metrics stay each gateway's own:
Prometheus asks every one of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Protocol

import msgpack

from gateway.admin.gauges import Gauges
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.errors import StoreUnavailable
from gateway.observability.aggregation import Strange, merge, packed
from gateway.observability.telemetry import Telemetry
from gateway.tasks import run_within
from gateway.worker import Hired
from gateway.worker_metrics import Colleagues, colleagues_of

SAY_EVERY_S = 2.0
KEEP_S = 15  # after which a gateway that says nothing is gone


class FiguresStore(Protocol):
    """Where gateways on one store leave their figures. Both raise `StoreUnavailable`."""

    async def say(self, figures: bytes, keep_s: int) -> None:
        """This gateway's. Those of gateways that have said nothing for `keep_s` seconds go."""

    async def others(self) -> list[bytes]:
        """What the other gateways have said."""


class FleetFigures:
    """`telemetry` is what all of them say together, at most `SAY_EVERY_S` old for the others, after `refresh`. While
    the store is away, and where nobody else is on it, it is this gateway's own: `gateways` says of how many it is."""

    def __init__(self, store: FiguresStore | None, colleagues: Colleagues, gauges: Gauges, started: float) -> None:
        """`colleagues`: the workers of this gateway; `gauges`: of this process. `started`: seconds since 1970."""
        self._store = store
        self._colleagues = colleagues
        self._gauges = gauges
        self._own_start = started
        self._strange = Strange()
        self.own = colleagues.telemetry  # of this gateway with its workers, once `sample` has run
        self.sample = colleagues.sampling(gauges.sample)
        self.telemetry = self.own if store is None else Telemetry()
        self.started, self.gateways = started, 1

    async def refresh(self) -> None:
        await self.sample()
        if self._store is None:
            return
        try:
            said = [words for words in map(_unpacked, await self._store.others()) if words is not None]
        except StoreUnavailable:
            said = []
        self._strange.tell(merge(self.telemetry, self.own, [figures for _, figures in said], ()))
        self.started = min([self._own_start, *(started for started, _ in said)])
        self.gateways = 1 + len(said)

    def begin(self, stack: AsyncExitStack, hired: Hired | None) -> None:
        """Begins to tell the other workers, and the other gateways: there the first worker speaks for all."""
        self._colleagues.begin(stack, self._gauges.sample)
        if self._store is not None and (hired is None or hired.admin is not None):
            run_within(stack, self._say(self._store))

    async def _say(self, store: FiguresStore) -> None:
        while True:
            self._gauges.look()  # what the store has is the same for all: who is asked looks by itself
            await self._colleagues.gather()
            with suppress(StoreUnavailable):  # the next time all of it is said again
                await store.say(msgpack.packb((self._own_start, packed(self.own))), KEEP_S)
            await asyncio.sleep(SAY_EVERY_S)


def _unpacked(words: bytes) -> tuple[float, bytes] | None:
    """None for what another version has said."""
    try:
        started, figures = msgpack.unpackb(words)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return (started, figures) if isinstance(started, float) and isinstance(figures, bytes) else None


def figures_of(
    config: Config, hired: Hired | None, stores: Stores, telemetry: Telemetry, gauges: Gauges, started: float
) -> FleetFigures:
    """`config`: as `Hired.applied` has made it."""
    return FleetFigures(stores.figures, colleagues_of(config, hired, telemetry), gauges, started)
