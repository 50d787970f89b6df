"""A store that is slow, frozen, full of garbage or dead must cost hits, never a request or a right answer."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import ONE_REQUEST_S, PATIENCE_S, PAUSE_S, is_answer_to, recovers, target
from tests.faults.test_store_faults import is_hit
from tests.faults.test_store_garbage import DAMAGES, ENTRY
from tests.fixtures.gateways import EXACT_CACHE, Answer
from tests.fixtures.stores import OutsideServer, outside_server
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream, serving

CLIENTS, QUESTIONS = 8, 40
STORE = {"front_size": "1kB", "timeout": "250ms"}  # every lookup reads the store, in the time that is shipped


class ChatClient(Protocol):
    """A gateway, or several of them that count as one."""

    async def chat(self, question: str, **fields: Any) -> Answer: ...


class Traffic:
    """Clients that repeat some questions until they are told to stop, and check each answer."""

    def __init__(self, it: ChatClient) -> None:
        self._it = it
        self.requests = self.hits = 0
        self.failed: list[str] = []
        self.wrong: list[str] = []
        self.slowest_s = 0.0
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def client(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stopped:
            await self.ask(f"question {draw.randrange(QUESTIONS)}", streamed=draw.random() < 0.2)
            await asyncio.sleep(PAUSE_S / 5)

    async def ask(self, question: str, streamed: bool = False) -> bool:
        """Return whether the answer is a hit."""
        began = time.monotonic()
        self.requests += 1
        try:
            answer = await self._it.chat(question, stream=streamed)
        except aiohttp.ClientError as error:
            self.failed.append(repr(error))
            return False
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer.status != 200:
            self.failed.append(f"{answer.status} {answer.body[:100]!r}")
        elif not is_answer_to(answer.body, question):
            self.wrong.append(f"{question} got {answer.body[-500:]!r}")
        self.hits += is_hit(answer)
        return is_hit(answer)

    @property
    def figure(self) -> str:
        return (
            f"{self.requests} requests, {self.hits} hits: {len(self.failed)} failed, {len(self.wrong)} wrong, "
            f"slowest {self.slowest_s:.2f} s"
        )

    @property
    def levels(self) -> dict[str, bool]:
        return {
            f"{len(self.failed)} failed, the first: {''.join(self.failed[:1])}": not self.failed,
            f"{len(self.wrong)} wrong, the first: {''.join(self.wrong[:1])}": not self.wrong,
            f"a request took {self.slowest_s:.1f} s": self.slowest_s <= ONE_REQUEST_S,
        }


class Store:
    """A real server that faults happen to. It starts again on its port after it was killed."""

    def __init__(self, folder: Path, fault_s: float) -> None:
        self._folder, self._port, self._fault_s = folder, free_ports(1)[0], fault_s
        self._stack = ExitStack()
        self._server = self._start()

    def _start(self) -> OutsideServer:
        return self._stack.enter_context(outside_server(self._folder, port=self._port))

    @property
    def url(self) -> str:
        return self._server.url

    def close(self) -> None:
        self._stack.close()

    async def delay(self) -> None:
        for _ in range(int(self._fault_s / 0.5)):
            self._server.client.client_pause(400)
            await asyncio.sleep(0.5)

    async def freeze(self) -> None:
        self._server.freeze()
        await asyncio.sleep(self._fault_s)
        self._server.thaw()

    async def garble(self) -> None:
        """Damage every record, in each way of the tests."""
        client = self._server.client
        for change in DAMAGES.values():
            for key in await asyncio.to_thread(lambda: list(client.scan_iter(match=ENTRY + b"*"))):
                record = client.hget(key, "record")
                if isinstance(record, bytes) and b"answers" in record:
                    client.hset(key, "record", change(record))
            await asyncio.sleep(self._fault_s / len(DAMAGES))

    async def kill(self) -> None:
        self._server.kill()
        await asyncio.sleep(self._fault_s)
        self._server = await asyncio.to_thread(self._start)


async def run(quick: bool) -> Finding:
    """Let each fault happen under traffic, and wait for hits after it."""
    rounds, fault_s = (1, 1.0) if quick else (3, 4.0)
    recovered: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), fault_s)
        try:
            async with (
                serving(Upstream()) as upstream,
                target(upstream.url, EXACT_CACHE, backend={"adaptive": "off"}, store={**STORE, "url": store.url}) as it,
            ):
                await it.recovered()
                traffic = Traffic(it)
                clients = [asyncio.create_task(traffic.client(seed)) for seed in range(CLIENTS)]
                recovered["the start"] = await recovers(traffic.ask)
                for fault in (store.delay, store.freeze, store.garble, store.kill) * rounds:
                    await fault()
                    recovered[fault.__name__] = recovered.get(fault.__name__, True) and await recovers(traffic.ask)
                    await asyncio.sleep(fault_s)  # the traffic goes on with a healthy store
                traffic.stop()
                await asyncio.gather(*clients)
        finally:
            store.close()
    return verdict_of(
        f"{4 * rounds} faults, {traffic.figure}",
        {
            **traffic.levels,
            f"no hits within {PATIENCE_S:g} s after {[n for n, again in recovered.items() if not again]}": all(
                recovered.values()
            ),
        },
    )


PART = Part("store faults", "delay, freeze, garbage and kill: 0 failed, 0 wrong, each within 10 s; hits again", run)
