"""GET /admin/history: what happened when, of all gateways on the store, also before the last restart.

What this process sees is in memory at once; each minute its part of the slots that have changed goes to the store, and
those of the others come back. While the store is away this process goes on with its own, and says it later.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.responses import NO_STORE, answered
from gateway.errors import BadRequest, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.observability.timeline import (
    COARSE,
    FINE,
    MIDDLE,
    UP,
    Resolution,
    Timeline,
    TimelineWindow,
    is_level,
    levels,
    since,
    told,
    totals,
)
from gateway.ports import Clock, Slot, TimelineStore

LOG = logging.getLogger("nearhit")
FLUSH_EVERY_S = 60.0
SHARED = {resolution.step_s: resolution for resolution in (MIDDLE, COARSE)}
KEEP = {step_s: step_s * (resolution.slots + 1) for step_s, resolution in SHARED.items()}
MAX_WAITING = 64  # slots that the store has yet to hear of: five hours without it
SPANS: Mapping[str, tuple[Resolution, int]] = {
    "1h": (FINE, 360),
    "6h": (MIDDLE, 72),
    "24h": (MIDDLE, 288),
    "7d": (COARSE, 168),
    "30d": (COARSE, 720),
}


class HistoryRecorder:
    """To be told regularly by `record`; `run` keeps it in step with the store, `close` says the last of it."""

    def __init__(self, telemetry: Telemetry, store: TimelineStore, clock: Clock) -> None:
        self._telemetry = telemetry
        self._store = store
        self._clock = clock
        self._timeline = Timeline()
        self._before: dict[str, float] = {}
        self._recorded_at = clock.monotonic()
        self.begun = False  # what was before is known
        self._own: dict[Slot, dict[str, float]] = {}  # this process's part of the slots that may still change

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/history", answered(self._get))]

    def record(self) -> None:
        """Takes down what has happened since the last time."""
        now, wall = totals(self._telemetry), self._clock.wall()
        monotonic = self._clock.monotonic()
        values = {**since(self._before, now), **levels(self._telemetry), UP: monotonic - self._recorded_at}
        self._before, self._recorded_at = now, monotonic
        self._timeline.add(wall, values)
        for step_s, resolution in SHARED.items():
            part = self._own.setdefault((step_s, resolution.slot_of(wall)), {})
            for series, value in values.items():
                part[series] = value if is_level(series) else part.get(series, 0.0) + value
        while len(self._own) > MAX_WAITING:
            self._own.pop(min(self._own, key=lambda slot: slot[0] * slot[1]))

    async def run(self) -> None:
        """For ever. First what was before, from the store."""
        while True:
            try:
                if not self.begun:
                    await self._take([slot for r in SHARED.values() for slot in self._slots(r, r.slots)])
                    self.begun = True
                await asyncio.sleep(FLUSH_EVERY_S)
                await self.flush()
            except StoreUnavailable as error:
                LOG.debug("the dashboard's history is not shared", extra={"fields": {"error": str(error)}})
                await asyncio.sleep(FLUSH_EVERY_S)

    async def flush(self) -> None:
        """Tells the store, and learns what others have told it. Raises `StoreUnavailable`."""
        told_of = {slot: dict(part) for slot, part in self._own.items()}
        await self._store.write(told_of, KEEP)
        current = {slot for resolution in SHARED.values() for slot in self._slots(resolution, 1)}
        for slot in told_of.keys() - current:
            self._own.pop(slot, None)
        recent = {slot for resolution in SHARED.values() for slot in self._slots(resolution, 2)}
        await self._take(sorted(recent | told_of.keys()))

    async def close(self) -> None:
        self.record()
        try:
            await self.flush()
        except StoreUnavailable as error:
            LOG.warning("the last of the dashboard's history is lost", extra={"fields": {"error": str(error)}})

    async def _take(self, slots: Sequence[Slot]) -> None:
        for slot, parts in (await self._store.read(slots)).items():
            own = {self._store.name: self._own[slot]} if slot in self._own else {}  # has gone on since it was written
            self._timeline.replace(SHARED[slot[0]], slot[1], _summed([*{**parts, **own}.values()]))

    def _slots(self, resolution: Resolution, count: int) -> list[Slot]:
        last = resolution.slot_of(self._clock.wall())
        return [(resolution.step_s, number) for number in range(last - count + 1, last + 1)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        span = request.query.get("span", "1h")
        if span not in SPANS:
            raise BadRequest(f"span: expected one of: {', '.join(SPANS)}")
        self.record()
        resolution, slots = SPANS[span]
        now = self._clock.wall()
        window = self._timeline.window(resolution, slots, now)  # a copy, so that another thread may work it out
        body = await asyncio.to_thread(_written, {"span": span, "now": now}, window)
        return web.Response(body=body, content_type="application/json", headers=NO_STORE)


def _written(about: Mapping[str, Any], window: TimelineWindow) -> bytes:
    return orjson.dumps({**about, **told(window)}, option=orjson.OPT_SERIALIZE_NUMPY)


def _summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What all gateways together have seen; of a level their mean."""
    values: dict[str, list[float]] = {}
    for part in parts:
        for series, value in part.items():
            if math.isfinite(value):
                values.setdefault(series, []).append(value)
    return {name: math.fsum(each) / (len(each) if is_level(name) else 1) for name, each in values.items()}
