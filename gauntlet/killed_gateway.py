"""A gateway that is killed under traffic must not answer wrongly from what it had stored."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import count
from pathlib import Path

import aiohttp

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import in_parallel, target
from tests.fixtures.gateways import BOTH_CACHES
from tests.fixtures.processes import Process
from tests.fixtures.upstream import Upstream, serving

CLIENTS, STORED = 8, 60  # answers that a gateway stores before it is killed


async def questions_stored_until_kill(it: Process, numbers: count[int]) -> list[str]:
    """Ask new questions until the gateway is killed. Return those whose answer was reported as stored."""
    stored: list[str] = []
    enough = asyncio.Event()

    async def client() -> None:
        try:
            while True:
                question = f"what is number {next(numbers)}"
                answer = await it.chat(question)
                if answer.status == 200 and "stored" in answer.cache_status:
                    stored.append(question)
                if len(stored) >= STORED:
                    enough.set()
        except (aiohttp.ClientError, OSError):  # it is dead
            return

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await enough.wait()
    await it.kill()
    await asyncio.gather(*clients)
    return stored


async def run(quick: bool) -> Finding:
    """Kill gateways on one data folder, one after the other, and ask again what each had stored."""
    kills, numbers = 1 if quick else 10, count()
    stored, failed, wrong = list[str](), list[str](), list[str]()
    hits = 0
    with tempfile.TemporaryDirectory() as name:
        async with serving(Upstream()) as upstream:
            for _ in range(kills):
                async with target(upstream.url, BOTH_CACHES, folder=Path(name)) as it:
                    await it.recovered()
                    stored += await questions_stored_until_kill(it, numbers)
            async with target(upstream.url, BOTH_CACHES, folder=Path(name)) as it:
                await it.recovered()

                async def ask_again(question: str) -> None:
                    nonlocal hits
                    answer = await it.chat(question)
                    if answer.status != 200:
                        failed.append(f"{answer.status} {answer.body[:100]!r}")
                        return
                    hits += answer.cache_status.startswith("nearhit; hit")
                    if answer.text != f"upstream answers: {question}":
                        wrong.append(f"{question} got {answer.text!r}")

                await in_parallel(CLIENTS, map(ask_again, stored))
    figure = f"{kills} kills, {len(stored)} stored, {hits} of them hits again, {len(failed)} failed, {len(wrong)} wrong"
    return verdict_of(
        figure,
        {
            f"{len(failed)} failed, the first: {''.join(failed[:1])}": not failed,
            f"{len(wrong)} wrong, the first: {''.join(wrong[:1])}": not wrong,
            "nothing that was stored is a hit": hits > 0,
        },
    )


PART = Part("killed gateway", "SIGKILL under traffic: stored answers never come back wrong", run)
