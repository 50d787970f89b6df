"""Builds what the dashboard is made of beside its figures: files, history, live view. Used by `app` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aiohttp import web

from gateway.adapters.redis.timeline import RedisTimeline
from gateway.admin.entries import EntriesHandler
from gateway.admin.event_stream import LiveHandler
from gateway.admin.history import Chronicle
from gateway.admin.static_files import Page
from gateway.cache.stores import Stores
from gateway.config.policy.model import Policy
from gateway.observability.live_events import Decisions
from gateway.observability.observer import Observer
from gateway.parts import Parts
from gateway.tasks import run_within

SAMPLE_EVERY_S = 5.0
Observed = Callable[[Parts, Decisions], Observer]


class Dashboard:
    """`observer` sees every request, for the metrics, the logs, the traces and those who watch."""

    def __init__(self, parts: Parts, stores: Stores, observed: Observed, policy: Callable[[], Policy]) -> None:
        """`policy` returns the one in force."""
        spaces = parts.spaces  # the parts themselves would keep a former space in memory
        self._entries = EntriesHandler(lambda: spaces.serving.store, parts.evictions, policy, parts.clock)
        self.decisions = Decisions()
        self.chronicle = Chronicle(parts.telemetry, RedisTimeline(stores.redis), parts.clock)
        self.observer = observed(parts, self.decisions)

    def routes(self) -> list[web.RouteDef]:
        handlers = (Page(), self.chronicle, LiveHandler(self.decisions), self._entries)
        return [route for handler in handlers for route in handler.routes()]

    def begin(self, stack: AsyncExitStack, sample: Callable[[], Awaitable[None]]) -> None:
        """Until `stack` ends it. `sample` brings the gauges up to date."""
        stack.push_async_callback(self.chronicle.close)
        run_within(stack, self.chronicle.run())
        run_within(stack, self._record(sample))

    async def _record(self, sample: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sample()
            self.chronicle.record()
            await asyncio.sleep(SAMPLE_EVERY_S)
