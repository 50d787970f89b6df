"""A clock that is set by an hour must neither fail requests nor keep answers for longer than they may live."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import ONE_REQUEST_S, PATIENCE_S, PAUSE_S, recovers, target
from tests.features.jobs.asking import over, submit
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, completion, serving

HOUR_S, TTL_S, SLACK_S = 3600.0, 3.0, 2.0
CLIENTS, QUESTIONS, SLOW_S = 6, 12, 0.5
JUMPS = (HOUR_S, 0.0, -HOUR_S, 0.0)
POLICY = f"""
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: {TTL_S:g}s}}, semantic: {{ttl: {TTL_S:g}s, min_similarity: 0.9}}}}
    route: {{backend: main}}
    limits:
      - {{per: tenant, requests: 60000/min, concurrency: 64}}
"""
# Runs a gateway whose wall clock is ahead by the seconds in a file. The clock of its store is not.
PROGRAM = """
import os, sys, time
from gateway.__main__ import main
from gateway.adapters.system.clock import SystemClock
AHEAD = os.open({file!r}, os.O_RDONLY)
SystemClock.wall = staticmethod(lambda: time.time() + float(os.pread(AHEAD, 32, 0)))
sys.exit(main(sys.argv[1:]))
"""


class Clock:
    """The file with the seconds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0.0)

    @property
    def program(self) -> tuple[str, str]:
        return "-c", PROGRAM.format(file=str(self._file))

    def set(self, ahead_s: float) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(f"{ahead_s:<32}".encode())  # one write of one length: a reader sees one of the two


async def timestamp_answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Answer with the time at which the answer was made. A question that says `slow` takes a while."""
    if "slow" in call["messages"][-1]["content"]:
        await asyncio.sleep(SLOW_S)
    return web.json_response(completion(call, f"made {time.monotonic():.3f}"))


class AgeCheckingClients:
    """Clients that repeat some questions, and compare each hit with the real time."""

    def __init__(self, it: Process) -> None:
        self._it = it
        self.requests = self.hits = 0
        self.failed: list[str] = []
        self.oldest_s = self.slowest_s = 0.0
        self.ages: set[int] = set()
        self.stopped = False

    async def client(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self.stopped:
            slow = "slow " if draw.random() < 0.1 else ""
            await self.ask(f"{slow}question {draw.randrange(QUESTIONS)}")
            await asyncio.sleep(PAUSE_S / 5)

    async def ask(self, question: str) -> bool:
        """Return whether the answer is a hit."""
        began = time.monotonic()
        self.requests += 1
        try:
            answer = await self._it.chat(question)
        except aiohttp.ClientError as error:
            self.failed.append(repr(error))
            return False
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer.status != 200:
            self.failed.append(f"{answer.status} {answer.body[:200]!r}")
            return False
        if not answer.cache_status.startswith("nearhit; hit"):
            return False
        self.hits += 1
        self.oldest_s = max(self.oldest_s, began - float(answer.text.removeprefix("made ")))
        self.ages.add(int(answer.headers.get("Age", 0)))
        return True


async def run(quick: bool) -> Finding:
    """Set the clock forward and back under traffic, and each time wait for hits and for a job of before."""
    jumps, settled_s = (JUMPS[2:], 1.0) if quick else (JUMPS * 3, TTL_S + 1.0)
    lost, jobs = list[float](), list[str]()
    upstream = Upstream()
    upstream.answer = timestamp_answer
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder) / "ahead")
        async with serving(upstream), target(upstream.url, POLICY, program=clock.program) as it:
            traffic = AgeCheckingClients(it)
            clients = [asyncio.create_task(traffic.client(seed)) for seed in range(CLIENTS)]
            await recovers(traffic.ask)
            for number, ahead_s in enumerate(jumps):
                job = await submit(it, f"slow job {number}")
                clock.set(ahead_s)
                began = time.monotonic()
                if not await recovers(traffic.ask) or time.monotonic() - began > ONE_REQUEST_S:
                    lost.append(ahead_s)
                jobs.append((await over(it, job, timeout_s=PATIENCE_S))["status"])
                await asyncio.sleep(settled_s)
            traffic.stopped = True
            await asyncio.gather(*clients)
    figure = (
        f"{len(jumps)} jumps of an hour, {traffic.requests} requests, {traffic.hits} hits: "
        f"{len(traffic.failed)} failed, slowest {traffic.slowest_s:.2f} s; "
        f"the oldest hit was {traffic.oldest_s:.1f} s old, with a TTL of {TTL_S:g} s"
    )
    return verdict_of(
        figure,
        {
            f"{len(traffic.failed)} failed, the first: {''.join(traffic.failed[:1])}": not traffic.failed,
            f"a hit was {traffic.oldest_s:.1f} s old, expected at most {TTL_S + SLACK_S:g}": traffic.oldest_s
            <= TTL_S + SLACK_S,
            f"Age was {sorted(traffic.ages)}": traffic.ages <= set(range(int(TTL_S) + 1)),
            f"no hits soon after {lost}": not lost,
            f"jobs ended as {jobs}": set(jobs) == {"completed"},
            f"a request took {traffic.slowest_s:.1f} s": traffic.slowest_s <= ONE_REQUEST_S,
        },
    )


PART = Part("clock shifts", "an hour forward and back: 0 failed, no hit older than its TTL, hits and jobs go on", run)
