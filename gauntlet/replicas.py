"""Gateways on one store must agree and answer while their store fails and while they die.

The clients behave like a load balancer: a request that finds its gateway dead goes to the next one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.store_faults import CLIENTS, STORE, Store, Traffic
from gauntlet.target import ONE_REQUEST_S, PATIENCE_S, PAUSE_S, recovers, target
from tests.fixtures.gateways import EXACT_CACHE, Answer
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, serving

TAG = {"Cache-Tag": "gauntlet"}
ONLY_CACHED = {"Cache-Control": "only-if-cached"}


class Fleet:
    """The gateways, each in a folder of its own that it keeps over its restarts."""

    def __init__(self, folder: Path, upstream: str, store: str) -> None:
        self._folder, self._upstream, self._store = folder, upstream, {**STORE, "url": store}
        self._stacks: dict[int, AsyncExitStack] = {}
        self.replicas: dict[int, Process] = {}

    async def start(self, number: int) -> None:
        """Start the gateway of that number, or start it again."""
        folder = self._folder / str(number)
        folder.mkdir(exist_ok=True)
        more: dict[str, Any] = {"backend": {"adaptive": "off"}, "folder": folder, "store": self._store}
        stack = AsyncExitStack()
        replica = await stack.enter_async_context(
            target(self._upstream, EXACT_CACHE, data_dir=str(folder / "var"), **more)
        )
        await replica.recovered()
        former = self._stacks.get(number)
        self.replicas[number], self._stacks[number] = replica, stack
        if former is not None:
            await former.aclose()

    async def restart(self, number: int, dead_s: float) -> None:
        """Kill a gateway, and start it again after that time."""
        await self.replicas[number].kill()
        await asyncio.sleep(dead_s)
        await self.start(number)

    async def close(self) -> None:
        for stack in self._stacks.values():
            await stack.aclose()


class RoundRobinClient:
    """A client of all gateways in turn. `retried` counts the requests that a dead gateway did not answer."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._next = fleet, 0
        self.retried = 0

    async def chat(self, question: str, **fields: Any) -> Answer:
        """Ask the next gateway, then the others. Raise the error of the first one if none of them answers."""
        self._next += 1
        replicas, first, died = self._fleet.replicas, self._next, list[Exception]()
        for number in range(len(replicas)):
            try:
                return await replicas[(first + number) % len(replicas)].chat(question, **fields)
            except (aiohttp.ClientError, RuntimeError) as error:  # it is dead, or its session is closed
                died.append(error)
                self.retried += 1
        raise aiohttp.ClientError(f"no gateway answers: {died[0]!r}")


async def purge_delay_s(fleet: Fleet) -> float:
    """Store an answer, find it at each gateway, and purge it at the first. Return the seconds until all have no hit.

    The result is `PATIENCE_S` if one gateway still has it by then.
    """
    for replica in fleet.replicas.values():
        await replica.chat("to be purged", headers=TAG)
    began = time.monotonic()
    first = fleet.replicas[0]
    async with first.session.post(first.admin_url + "/admin/cache/purge", json={"tags": ["gauntlet"]}) as answer:
        answer.raise_for_status()
    for replica in fleet.replicas.values():
        while (await replica.chat("to be purged", headers=ONLY_CACHED)).status == 200:
            if time.monotonic() - began > PATIENCE_S:
                return PATIENCE_S
            await asyncio.sleep(PAUSE_S)
    return time.monotonic() - began


async def run(quick: bool) -> Finding:
    """Let faults of the store and kills of gateways happen under traffic, and wait for hits at each gateway."""
    replicas, kills, fault_s, rounds = (2, 1, 1.0, 1) if quick else (3, 3, 4.0, 2)
    recovered: dict[str, bool] = {}
    purges = list[float]()
    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name), fault_s)
        async with serving(Upstream()) as upstream, AsyncExitStack() as stack:
            stack.callback(store.close)
            fleet = Fleet(Path(name), upstream.url, store.url)
            stack.push_async_callback(fleet.close)
            await asyncio.gather(*(fleet.start(number) for number in range(replicas)))
            balanced = RoundRobinClient(fleet)
            traffic = Traffic(balanced)
            clients = [asyncio.create_task(traffic.client(seed)) for seed in range(CLIENTS)]
            faults = [store.freeze, store.kill] if quick else [store.delay, store.freeze, store.garble, store.kill]
            for turn in range(rounds):
                for fault in faults:
                    await fault()
                    again = [await recovers(Traffic(replica).ask) for replica in fleet.replicas.values()]
                    recovered[fault.__name__] = recovered.get(fault.__name__, True) and all(again)
                for number in range(kills):
                    await fleet.restart((number + turn) % replicas, fault_s)
                purges.append(await purge_delay_s(fleet))
            traffic.stop()
            await asyncio.gather(*clients)
    slow = max(purges)
    figure = (
        f"{replicas} gateways, {rounds * len(faults)} faults, {rounds * kills} kills; {traffic.figure}; "
        f"{balanced.retried} met a dead gateway; a purge held everywhere after {slow:.2f} s"
    )
    return verdict_of(
        figure,
        {
            **traffic.levels,
            f"no hits at each gateway after {[n for n, again in recovered.items() if not again]}": all(
                recovered.values()
            ),
            f"a purge took {slow:.1f} s": slow <= ONE_REQUEST_S,
        },
    )


PART = Part(
    "replicas",
    "gateways on one store, the same faults and kills: 0 failed, 0 wrong, each within 10 s; hits and purges at each",
    run,
)
