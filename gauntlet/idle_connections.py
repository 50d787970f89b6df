"""Connections that are kept without a request must cost little memory."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import Bystander, in_parallel, target
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.wire import connected
from tests.http_server.test_raw_sockets import HEALTH

MOST_KIB = 12.0  # of a connection
SPARE_KIB = 4096  # the allocator takes memory in arenas
AT_ONCE = 50


async def run(quick: bool) -> Finding:
    """Open connections with one request each, keep them, and ask as another tenant."""
    count = 500 if quick else 2000
    async with serving(Upstream()) as upstream, target(upstream.url) as it, AsyncExitStack() as stack:

        async def hold() -> None:
            wire = await stack.enter_async_context(connected(it.url))
            await wire.send(HEALTH)
            await wire.message()

        other = Bystander(it)
        await in_parallel(AT_ONCE, (hold() for _ in range(AT_ONCE)))
        await other.ask()
        before = rss_mb(it.process.pid)
        await in_parallel(AT_ONCE, (hold() for _ in range(count)))
        grown_kib = 1024 * (rss_mb(it.process.pid) - before)
        await asyncio.gather(*(other.ask() for _ in range(5)))
    figure = f"{count} connections: {grown_kib / count:.1f} KiB each; {other.figure}"
    fault = f"{grown_kib:.0f} KiB for {count} connections, expected {MOST_KIB:g} KiB each and {SPARE_KIB} KiB"
    return verdict_of(figure, {fault: grown_kib <= MOST_KIB * count + SPARE_KIB, **other.levels})


PART = Part("idle connections", "12 KiB each at most, beside 4 MiB; others are answered", run)
