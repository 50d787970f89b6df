"""Clients that send a byte every few seconds must not take the places of other tenants."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from gateway.http_server.request_body import BUFFER_BYTES
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import Bystander, metrics, permits_left, target, total
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.wire import Wire, connected
from tests.http_server.test_slow_bodies import upload

EVERY_S = 2.0
PLACES = 16
TENANT = b"Authorization: Bearer slow\r\nHost"


async def drip(wire: Wire, number: int) -> None:
    """Send a body a byte at a time: one that the gateway reads as a whole, or one that streams through."""
    if number % 2:
        head = upload(4 * BUFFER_BYTES, chunked=False) + bytes(2 * BUFFER_BYTES)
    else:
        head = upload(BUFFER_BYTES, chunked=False).replace(b"/v1/files", b"/v1/chat/completions")
    with suppress(ConnectionError, TimeoutError):
        await wire.send(head.replace(b"Host", TENANT))
        while True:
            await wire.send(b"x")
            await asyncio.sleep(EVERY_S)


async def run(quick: bool) -> Finding:
    """Hold slow connections, and ask misses as another tenant meanwhile."""
    slow, seconds = (16, 8.0) if quick else (64, 60.0)
    backend = {"max_concurrency": PLACES, "adaptive": "off"}
    async with serving(Upstream()) as upstream, target(upstream.url, NO_CACHE, backend=backend) as it:
        other = Bystander(it)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            wires = [await stack.enter_async_context(connected(it.url)) for _ in range(slow)]
            dripping = [group.create_task(drip(wire, number)) for number, wire in enumerate(wires)]
            await other.ask_for(seconds)
            taken = total(await metrics(it), "nearhit_backend_inflight")
            for task, wire in zip(dripping, wires, strict=True):
                task.cancel()
                wire.writer.transport.abort()  # a close would wait until the gateway reads the rest
        held = await permits_left(it)
    figure = f"{slow} slow bodies held {taken:g} of {PLACES} places: {other.figure}"
    levels = {f"{held:g} places are still held": not held, "the slow bodies held no place": taken > 0}
    return verdict_of(figure, {**other.levels, **levels})


PART = Part("slow bodies", "misses of others: 0 failed, each within 10 s; all places come back", run)
