"""A gateway under steady traffic must not grow slower or larger than its entries explain.

New questions come all the time, so that the entries rise up to the store's bound and evictions begin.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import is_answer_to, stalls_of, target
from tests.fixtures.gateways import BOTH_CACHES
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, serving

CLIENTS, PAUSE_S, RECENT = 4, 0.01, 200  # a client repeats one of its recent questions, or asks a new one
NEW, STREAMED, LEAVES = 0.3, 0.2, 0.02
QUICK_S, FULL_S = 4.0, 240.0
MOST_ENTRIES = 20_000
SPARE_MB, ENTRY_KIB, SPARE_FILES = 96, 24.0, 32
SLOWER, SPARE_MS = 3.0, 50.0  # of the last quarter to the first
WINDOWS = 3  # of a quarter


@dataclass
class SteadyClients:
    """The clients. `hits_ms` has the time of each hit, in order."""

    it: Process
    hits_ms: list[float] = field(default_factory=list)
    requests: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    async def client(self, seed: int, until: float) -> None:
        draw, known = random.Random(seed), list[str]()
        while time.monotonic() < until:
            if not known or draw.random() < NEW:
                known.append(f"what follows number {seed * 10**6 + len(known)}")
            question = draw.choice(known[-RECENT:])
            leaves_after_s = 0.002 if draw.random() < LEAVES else None
            await self._ask(question, streamed=draw.random() < STREAMED, leaves_after_s=leaves_after_s)
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, question: str, streamed: bool, leaves_after_s: float | None) -> None:
        began = time.monotonic()
        self.requests += 1
        try:
            answer = await asyncio.wait_for(self.it.chat(question, stream=streamed), leaves_after_s)
        except TimeoutError:  # this client has left
            return
        except aiohttp.ClientError as error:
            self.failed.append(repr(error))
            return
        if answer.status != 200:
            self.failed.append(f"{answer.status} {answer.body[:100]!r}")
        elif not is_answer_to(answer.body, question):
            self.wrong.append(f"{question} got {answer.body[-300:]!r}")
        elif answer.cache_status.startswith("nearhit; hit"):
            self.hits_ms.append(1e3 * (time.monotonic() - began))


def p95(times: Sequence[float]) -> float:
    """Return the middle p95 of three equal windows.

    A pause of the machine, or of another process, lengthens one of them. A gateway that grows slower lengthens all.
    """
    size = max(2, len(times) // WINDOWS)
    windows = [times[at : at + size] for at in range(0, size * WINDOWS, size)]
    found = [statistics.quantiles(window, n=20)[-1] for window in windows if len(window) > 1]
    return statistics.median(found) if found else 0.0


async def entries_of(it: Process) -> int:
    async with it.session.get(it.admin_url + "/admin/stats") as answer:
        return int((await answer.json())["cache"]["entries"]["store"])


def files_of(it: Process) -> int:
    return len(list(Path(f"/proc/{it.process.pid}/fd").iterdir()))


async def run(seconds: float | None, quick: bool) -> Finding:
    """Ask for that time, and compare memory, open files and times at the end with those at the beginning."""
    lasting_s = seconds or (QUICK_S if quick else FULL_S)
    async with (
        serving(Upstream()) as upstream,
        target(upstream.url, BOTH_CACHES, store={"max_entries": MOST_ENTRIES}) as it,
    ):
        await it.recovered()
        steady = SteadyClients(it)
        await steady.client(CLIENTS, time.monotonic() + 1.0)  # what a first request makes is no growth
        before_mb, files = rss_mb(it.process.pid), files_of(it)
        steady.hits_ms.clear()
        async with stalls_of(it) as stalls:
            until = time.monotonic() + lasting_s
            await asyncio.gather(*(steady.client(seed, until) for seed in range(CLIENTS)))
        grown_mb, entries, more_files = rss_mb(it.process.pid) - before_mb, await entries_of(it), files_of(it) - files
        healthy = (await it.get("/healthz")).status == 200
    quarter = max(2, len(steady.hits_ms) // 4)
    first_ms, last_ms = p95(steady.hits_ms[:quarter]), p95(steady.hits_ms[-quarter:])
    most_mb = SPARE_MB + ENTRY_KIB * min(entries, MOST_ENTRIES) / 1024
    figure = (
        f"{lasting_s:.0f} s, {steady.requests} requests, {len(steady.hits_ms)} hits, {entries} entries: "
        f"{len(steady.failed)} failed, {len(steady.wrong)} wrong; +{grown_mb:.0f} MB, +{more_files} files; "
        f"p95 of hits {first_ms:.1f} ms, then {last_ms:.1f} ms; {stalls.figure}"
    )
    return verdict_of(
        figure,
        {
            **stalls.levels,
            f"{len(steady.failed)} failed, the first: {''.join(steady.failed[:1])}": not steady.failed,
            f"{len(steady.wrong)} wrong, the first: {''.join(steady.wrong[:1])}": not steady.wrong,
            f"memory grew by {grown_mb:.0f} MB, expected at most {most_mb:.0f}": grown_mb <= most_mb,
            f"{more_files} more open files": more_files <= SPARE_FILES,
            f"p95 of hits rose from {first_ms:.1f} to {last_ms:.1f} ms": last_ms <= SLOWER * first_ms + SPARE_MS,
            f"{entries} entries, expected at most {MOST_ENTRIES} and some": 0 < entries <= 1.1 * MOST_ENTRIES,
            "the gateway does not answer /healthz": healthy,
        },
    )


def part_of_duration(seconds: float) -> Part:
    """Return the part with that duration."""
    return Part(NAME, LEVEL, partial(run, seconds), extra_s=seconds)


NAME = "soak"
LEVEL = "0 failed, 0 wrong; 24 KiB an entry beside 96 MB; files and p95 of hits stay; no stall above 100 ms"
PART = Part(NAME, LEVEL, partial(run, None), extra_s=FULL_S)
