"""`GET /admin/history`: figures over time of all gateways on the store, including those from before the last restart.

A process records its own figures in memory. Each minute it writes its part of the changed slots to the store and reads
the parts of the other gateways. While the store does not answer, it keeps its own slots and writes them later.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import NO_STORE, json_errors
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
    as_json,
    delta,
    is_level,
    levels,
    totals,
)
from gateway.ports import Clock, Slot, TimelineStore

LOG = logging.getLogger("nearhit")
FLUSH_EVERY_S = 60.0
SHARED = {resolution.step_s: resolution for resolution in (MIDDLE, COARSE)}
RETENTION_S = {step_s: step_s * (resolution.slots + 1) for step_s, resolution in SHARED.items()}
MAX_PENDING = 64  # slots that are not yet in the store: five hours without it
SPANS: Mapping[str, tuple[Resolution, int]] = {
    "1h": (FINE, 360),
    "6h": (MIDDLE, 72),
    "24h": (MIDDLE, 288),
    "7d": (COARSE, 168),
    "30d": (COARSE, 720),
}


Span = Literal["1h", "6h", "24h", "7d", "30d"]


class TimelineQuery(TypedDict, total=False):
    span: Annotated[Span, Field(default="1h")]


Series = list[float | None]
"""One value per slot. Null: nothing is known."""


class Quantiles(TypedDict, total=False):
    p50: Series
    p95: Series


class WrongHitLevels(TypedDict):
    share: Series
    low: Series
    high: Series


class HistoryReport(TypedDict):
    span: Span
    now: float
    """Seconds since 1970."""
    step_s: float
    """Seconds of one slot."""
    at: list[float]
    """The start of each slot, seconds since 1970."""
    watched_s: list[float]
    """Seconds of each slot that a gateway was running."""
    verdicts: dict[str, Series]
    unrouted: Series
    latency_ms: dict[str, Quantiles]
    """By verdict."""
    stage_ms: dict[str, Quantiles]
    routed: dict[str, Series]
    saved: dict[str, Series]
    shed: Series
    drift_alarms: dict[str, Series]
    """By route; only routes with an alarm in this time."""
    wrong_hits: dict[str, WrongHitLevels]
    """By route; shares in [0, 1]."""


class HistoryRecorder:
    """`HistoryRecorder` records the history and serves it.

    Call `record` regularly. `run` synchronises with the store, and `close` writes the last slots.
    """

    def __init__(self, telemetry: Telemetry, store: TimelineStore, clock: Clock) -> None:
        self._telemetry = telemetry
        self._store = store
        self._clock = clock
        self._timeline = Timeline()
        self._previous_totals: dict[str, float] = {}
        self._recorded_at = clock.monotonic()
        self.is_loaded = False  # whether the history in the store has been read
        self._own: dict[Slot, dict[str, float]] = {}  # this process's part of the slots that may still change

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/history", json_errors(self._get))]

    def record(self) -> None:
        """Add the figures since the last call."""
        now, wall = totals(self._telemetry), self._clock.wall()
        monotonic = self._clock.monotonic()
        values = {**delta(self._previous_totals, now), **levels(self._telemetry), UP: monotonic - self._recorded_at}
        self._previous_totals, self._recorded_at = now, monotonic
        self._timeline.add(wall, values)
        for step_s, resolution in SHARED.items():
            part = self._own.setdefault((step_s, resolution.slot_of(wall)), {})
            for series, value in values.items():
                part[series] = value if is_level(series) else part.get(series, 0.0) + value
        while len(self._own) > MAX_PENDING:
            self._own.pop(min(self._own, key=lambda slot: slot[0] * slot[1]))

    async def run(self) -> None:
        """Read the history from the store, then synchronise each minute until cancelled."""
        while True:
            try:
                if not self.is_loaded:
                    await self._merge_slots([slot for r in SHARED.values() for slot in self._latest_slots(r, r.slots)])
                    self.is_loaded = True
                await asyncio.sleep(FLUSH_EVERY_S)
                await self.flush()
            except StoreUnavailable as error:
                LOG.debug("the dashboard's history is not shared", extra={"fields": {"error": str(error)}})
                await asyncio.sleep(FLUSH_EVERY_S)

    async def flush(self) -> None:
        """Write the own slots to the store, and read those of the others. Raise `StoreUnavailable`."""
        written = {slot: dict(part) for slot, part in self._own.items()}
        await self._store.write(written, RETENTION_S)
        current = {slot for resolution in SHARED.values() for slot in self._latest_slots(resolution, 1)}
        for slot in written.keys() - current:
            self._own.pop(slot, None)
        recent = {slot for resolution in SHARED.values() for slot in self._latest_slots(resolution, 2)}
        await self._merge_slots(sorted(recent | written.keys()))

    async def close(self) -> None:
        """Write the last slots to the store. If it does not answer, log a warning."""
        self.record()
        try:
            await self.flush()
        except StoreUnavailable as error:
            LOG.warning("the last of the dashboard's history is lost", extra={"fields": {"error": str(error)}})

    async def _merge_slots(self, slots: Sequence[Slot]) -> None:
        for slot, slot_parts in (await self._store.read(slots)).items():
            own = {self._store.name: self._own[slot]} if slot in self._own else {}  # newer than the copy in the store
            self._timeline.replace(SHARED[slot[0]], slot[1], _sum_parts([*{**slot_parts, **own}.values()]))

    def _latest_slots(self, resolution: Resolution, count: int) -> list[Slot]:
        last = resolution.slot_of(self._clock.wall())
        return [(resolution.step_s, number) for number in range(last - count + 1, last + 1)]

    @operation(HistoryReport, query=TimelineQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Return figures over time of all gateways on the store, one value per slot."""
        span = request.query.get("span", "1h")
        if span not in SPANS:
            raise BadRequest(f"span: expected one of: {', '.join(SPANS)}")
        self.record()
        resolution, slots = SPANS[span]
        now = self._clock.wall()
        window = self._timeline.window(resolution, slots, now)  # a copy, so that another thread may encode it
        body = await asyncio.to_thread(_encode_window, {"span": span, "now": now}, window)
        return web.Response(body=body, content_type="application/json", headers=NO_STORE)


def _encode_window(about: Mapping[str, Any], window: TimelineWindow) -> bytes:
    return orjson.dumps({**about, **as_json(window)}, option=orjson.OPT_SERIALIZE_NUMPY)


def _sum_parts(slot_parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums over all gateways. A level has the mean instead."""
    values: dict[str, list[float]] = {}
    for part in slot_parts:
        for series, value in part.items():
            if math.isfinite(value):
                values.setdefault(series, []).append(value)
    return {name: math.fsum(each) / (len(each) if is_level(name) else 1) for name, each in values.items()}
