"""The books of gateways on one store must agree with the bill of the endpoint, while one of them is killed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.store_faults import Store
from gauntlet.target import poll, target
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, serving

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
    spend: on
"""
PRICE = {"input_per_million": 1000.0, "output_per_million": 1000.0}
DOLLARS = 0.012  # of a call, by the usage of the endpoint
CLIENTS, GATEWAYS = 16, 3
CENT = 0.01


async def calls(gateways: Sequence[Process], name: str, count: int) -> int:
    """Send calls to the gateways in turn, and return how many were answered."""
    numbers, turns, answered = iter(range(count)), cycle(gateways), 0

    async def client() -> None:
        nonlocal answered
        for number in numbers:
            try:
                answered += (await next(turns).chat(f"{name} {number}")).status == 200
            except aiohttp.ClientError:  # it has been killed
                continue

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answered


async def booked(gateway: Process) -> dict[str, Any]:
    async with gateway.session.get(gateway.admin_url + "/admin/spend?by=tenant") as answer:
        answer.raise_for_status()
        total: dict[str, Any] = (await answer.json())["total"]
        return total


async def run(quick: bool) -> Finding:
    """Send most calls to three gateways, kill one of them under the last of its calls, and go on with the others."""
    count = 600 if quick else 20_000
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name), 0.0)
        async with serving(Upstream()) as upstream, AsyncExitStack() as stack:
            stack.callback(store.close)
            backend = {"price": PRICE}
            gateways = []
            for number in range(GATEWAYS):
                folder = Path(name) / str(number)
                folder.mkdir()
                started = target(upstream.url, POLICY, backend=backend, folder=folder, store={"url": store.url})
                gateways.append(await stack.enter_async_context(started))
            first, _, last = gateways
            answered = await calls(gateways, "all", count // 2)
            agreed = await poll(lambda: booked(first), lambda total: total["requests"] == answered)
            before = len(upstream.chats)
            under_fire = asyncio.create_task(calls([last], "last", count // 10))
            await poll(lambda: asyncio.sleep(0, len(upstream.chats)), lambda seen: seen > before + CLIENTS)
            await last.kill()
            await under_fire
            at_risk = len(upstream.chats) - before
            answered += await calls(gateways[:2], "rest", count // 2)
            least, bill = (len(upstream.chats) - at_risk) * DOLLARS, len(upstream.chats) * DOLLARS
            total = await poll(lambda: booked(first), lambda total: total["cost"] > least - CENT)
    figure = (
        f"{len(upstream.chats)} calls over {GATEWAYS} gateways, one killed with {at_risk} of its calls; "
        f"billed ${bill:,.2f}, booked ${total['cost']:,.2f}"
    )
    return verdict_of(
        figure,
        {
            f"before the kill ${agreed['cost']:.2f} of ${before * DOLLARS:.2f} are booked": abs(
                agreed["cost"] - before * DOLLARS
            )
            < CENT,
            "more is lost than the last bookings of the killed gateway": total["cost"] > least - CENT,
            "more is booked than billed": total["cost"] < bill + CENT,
        },
    )


PART = Part(
    "booked calls",
    "spend of gateways on one store: to the cent what the endpoint bills; a killed one loses its last calls at most",
    run,
)
