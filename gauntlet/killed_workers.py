"""Workers that are killed must cost only the requests that they had, and the others go on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import aiohttp

from bench.process import children_of
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import ONE_REQUEST_S, PAUSE_S, is_answer_to, poll, target
from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, serving

WORKERS, CLIENTS, QUESTIONS = 2, 8, 40
STORE = {"timeout": "250ms"}  # as shipped


class ReconnectingClients:
    """Clients that ask over a new connection or over a kept one, and check each answer."""

    def __init__(self, it: Process) -> None:
        self._it = it
        self.requests = 0
        self.cut: list[str] = []
        self.failed: list[str] = []
        self.wrong: list[str] = []
        self.slowest_s = 0.0
        self.stopped = False

    async def client(self, seed: int) -> None:
        draw = random.Random(seed)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=bool(seed % 2))) as session:
            while not self.stopped:
                await self._ask(session, f"question {draw.randrange(QUESTIONS)}")
                await asyncio.sleep(PAUSE_S / 5)

    async def _ask(self, session: aiohttp.ClientSession, question: str) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        began = time.monotonic()
        self.requests += 1
        try:
            async with session.post(f"{self._it.url}/v1/chat/completions", json=body) as answer:
                data = await answer.read()
        except aiohttp.ClientError as error:  # the connection ended, so the client knows that there is no answer
            self.cut.append(repr(error))
            return
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer.status != 200:
            self.failed.append(f"{answer.status} {data[:100]!r}")
        elif not is_answer_to(data, question):
            self.wrong.append(f"{question} got {data[-300:]!r}")


async def wait_for_children(it: Process, program: bytes, number: int, killed: int = 0) -> list[int]:
    """Return the children that run a program, once there are that many without the killed one.

    The list is empty if patience ends first.
    """

    async def complete() -> list[int]:
        found = children_of(it.process.pid, program)
        return found if killed not in found and len(found) >= number else []

    return await poll(complete, bool)


async def run(quick: bool) -> Finding:
    """Kill workers, and the embedded store, one after the other under traffic."""
    kills, settled_s = (2, 0.5) if quick else (10, 3.0)
    back = list[bool]()
    section, began = {"workers": WORKERS}, time.monotonic()
    async with serving(Upstream()) as upstream, target(upstream.url, EXACT_CACHE, server=section, store=STORE) as it:
        most_s = ONE_REQUEST_S + time.monotonic() - began  # new connections to a killed worker wait for the next one
        traffic = ReconnectingClients(it)
        clients = [asyncio.create_task(traffic.client(seed)) for seed in range(CLIENTS)]
        for number in range(kills):
            await asyncio.sleep(settled_s)
            program, many = (b"valkey", 1) if number % 3 == 1 else (b"gateway", WORKERS)
            pid = (await wait_for_children(it, program, many))[number % many]
            os.kill(pid, signal.SIGKILL)
            back.append(bool(await wait_for_children(it, program, many, pid)))
        await asyncio.sleep(settled_s)
        traffic.stopped = True
        await asyncio.gather(*clients)
    most = kills * CLIENTS  # a client has one request at a time
    figure = (
        f"{kills} kills, {traffic.requests} requests: {len(traffic.cut)} cut, {len(traffic.failed)} failed, "
        f"{len(traffic.wrong)} wrong, slowest {traffic.slowest_s:.2f} s; {sum(back)} came back"
    )
    return verdict_of(
        figure,
        {
            f"{len(traffic.cut)} requests were cut, expected at most {most}: {''.join(traffic.cut[-1:])}": len(
                traffic.cut
            )
            <= most,
            f"{len(traffic.failed)} failed, the first: {''.join(traffic.failed[:1])}": not traffic.failed,
            f"{len(traffic.wrong)} wrong, the first: {''.join(traffic.wrong[:1])}": not traffic.wrong,
            f"a request took {traffic.slowest_s:.1f} s, expected at most {most_s:.1f}": traffic.slowest_s <= most_s,
            f"{kills - sum(back)} processes did not come back": all(back),
        },
    )


PART = Part(
    "killed workers",
    "only requests of a killed worker are cut; 0 failed, 0 wrong, each within 10 s and a start; all come back",
    run,
)
