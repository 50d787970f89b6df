"""Starts the gateway that is attacked, as a process of its own, and reads its figures from the admin port."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.fixtures.gateways import EXACT_CACHE, Served
from tests.fixtures.processes import Process, served_by_process, write_config

T = TypeVar("T")

PATIENCE_S = 60.0  # only ends a part that has failed
ONE_REQUEST_S = 10.0  # the generous bound of a request on a busy machine
PAUSE_S = 0.05
STALL_MS, STALL_POLL_S = 100.0, 0.2


@asynccontextmanager
async def target(
    upstream: str,
    policy: str = EXACT_CACHE,
    *,
    backend: dict[str, Any] | None = None,
    others: dict[str, dict[str, Any]] | None = None,
    server: dict[str, Any] | None = None,
    folder: Path | None = None,
    program: Sequence[str] = ("-m", "gateway"),
    **sections: Any,
) -> AsyncIterator[Process]:
    """Yield a gateway process in front of the URL `upstream`.

    `backend` and `server` add settings to these sections, and `others` adds backends. `folder` keeps its data; without
    it the data is temporary. Python runs `program`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        listen = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_timeout": "1s"}
        backends = {"main": {"adapter": "openai", "url": upstream, **(backend or {})}, **(others or {})}
        section = listen | (server or {})
        config = write_config(folder or Path(temporary), backends, policy, server=section, **sections)
        async with served_by_process(config, program) as process:
            yield process


async def metrics(it: Process) -> str:
    async with it.session.get(it.admin_url + "/metrics") as answer:
        return await answer.text()


def total(text: str, name: str) -> float:
    """Return the sum of all series of the metric `name`."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", text, re.MULTILINE))


async def poll(read: Callable[[], Awaitable[T]], accept: Callable[[T], bool]) -> T:
    """Read until a value is accepted or `PATIENCE_S` is over, and return the last value."""
    until = time.monotonic() + PATIENCE_S
    while not accept(value := await read()) and time.monotonic() < until:
        await asyncio.sleep(PAUSE_S)
    return value


async def permits_left(it: Process) -> float:
    """Return the calls in flight to the backends, as soon as there are none or `PATIENCE_S` is over."""

    async def calls() -> float:
        return total(await metrics(it), "nearhit_backend_inflight")

    return await poll(calls, lambda number: number == 0)


async def recovers(ask: Callable[[str], Awaitable[bool]]) -> bool:
    """Return whether `ask` reports a hit for a question within `PATIENCE_S`."""
    return await poll(lambda: ask("question 0"), bool)


def is_answer_to(body: bytes, question: str) -> bool:
    """Return whether an answer of the scripted endpoint, whole or as a stream, is the one to that question."""
    if not body.startswith(b"data:"):
        return bool(json.loads(body)["choices"][0]["message"]["content"] == f"upstream answers: {question}")
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"].get("content", "") for event in events for choice in event.get("choices", ())]
    return "".join(deltas) == f"upstream answers: {question}"


@dataclass
class Stalls:
    """The stalls of a gateway's event loop that another process did not cause by taking the processor."""

    longest_ms: float = 0.0
    cause: str = ""
    where: str = ""

    @property
    def figure(self) -> str:
        return f"longest stall of its own {self.longest_ms:.0f} ms"

    @property
    def levels(self) -> dict[str, bool]:
        fault = f"the event loop stalled for {self.longest_ms:.0f} ms in {self.where}, {self.cause}"
        return {fault: self.longest_ms <= STALL_MS}


@asynccontextmanager
async def stalls_of(it: Process) -> AsyncIterator[Stalls]:
    """Watch the event loop while the block runs. The admin port tells the last stall alone, so ask it often."""
    stalls = Stalls()

    async def last() -> dict[str, Any] | None:
        async with it.session.get(it.admin_url + "/admin/stats") as answer:
            found: dict[str, Any] | None = (await answer.json())["loop"]["last"]
            return found

    def record(stall: dict[str, Any] | None) -> None:
        if stall is not None and stall != before and stall["cause"] != "starved" and stall["ms"] > stalls.longest_ms:
            stalls.longest_ms, stalls.cause = float(stall["ms"]), stall["cause"]
            stalls.where = stall.get("where", "unknown code")

    async def watch() -> None:
        while True:
            await asyncio.sleep(STALL_POLL_S)
            record(await last())

    before = await last()
    watching = asyncio.create_task(watch())
    try:
        yield stalls
        record(await last())
    finally:
        watching.cancel()
        await asyncio.wait([watching])


@dataclass
class Bystander:
    """Another tenant, who asks new questions one after the other while the attack lasts."""

    served: Served
    question: str = "bystander {}"
    pause_s: float = PAUSE_S
    took_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    async def ask(self) -> None:
        """Ask one question that was never asked before, and note how it went."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await self.served.chat(
                    self.question.format(len(self.took_s)), headers={"authorization": "Bearer bystander"}
                )
            if answer.status != 200:
                self.failed.append(f"{answer.status} {answer.body[:200]!r}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed.append(repr(error))
        self.took_s.append(time.monotonic() - began)

    async def ask_for(self, seconds: float) -> None:
        """Ask for that time, and at least once."""
        until = time.monotonic() + seconds
        while True:
            await self.ask()
            if time.monotonic() >= until:
                return
            await asyncio.sleep(self.pause_s)

    @property
    def slowest_s(self) -> float:
        return max(self.took_s, default=0.0)

    @property
    def figure(self) -> str:
        return f"{len(self.took_s)} others, {len(self.failed)} failed, slowest {self.slowest_s:.2f} s"

    @property
    def levels(self) -> dict[str, bool]:
        first = "".join(self.failed[:1])
        return {
            f"{len(self.failed)} requests of others failed, the first with {first}": not self.failed,
            f"another tenant waited for {self.slowest_s:.1f} s": self.slowest_s <= ONE_REQUEST_S,
        }


async def in_parallel(at_once: int, jobs: Iterable[Any]) -> None:
    """Await the coroutines of an iterator, that many at a time, in order of their start."""
    source = iter(jobs)

    async def work() -> None:
        for job in source:
            await job

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
