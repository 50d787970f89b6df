"""Clients that leave at random moments must not mix up answers, nor keep places."""

from __future__ import annotations

import asyncio
import random

import aiohttp

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import in_parallel, permits_left, target
from tests.cache.test_isolation import bearer, policy, tell_whose
from tests.fixtures.upstream import Upstream, serving

TENANTS = tuple(f"tenant-{letter}" for letter in "vwxyz")
QUESTIONS, AT_ONCE, LEAVING = 40, 50, 0.7
LATEST_S = 0.02  # a client that leaves does so within this time; some are answered earlier


async def run(quick: bool) -> Finding:
    """Send requests of several tenants, and let most clients leave; each answer carries the tenant that it is for."""
    clients, draw = 300 if quick else 10_000, random.Random(11)
    left, answered, crossed, failed = 0, 0, list[str](), list[str]()
    upstream = Upstream()
    upstream.answer = tell_whose
    async with serving(upstream), target(upstream.url, policy()) as it:

        async def client(tenant: str, question: str, streamed: bool, leaves_after_s: float | None) -> None:
            nonlocal left, answered
            asked = asyncio.create_task(it.chat(question, headers=bearer(tenant), stream=streamed))
            try:
                answer = await asyncio.wait_for(asked, leaves_after_s)
            except TimeoutError:
                left += 1
                return
            except aiohttp.ClientError as error:
                failed.append(repr(error))
                return
            answered += 1
            seen = {name for name in TENANTS if name in answer.body.decode(errors="replace")}
            if answer.status != 200:
                failed.append(f"{answer.status} {answer.body[:100]!r}")
            elif seen != {tenant}:
                crossed.append(f"{tenant} saw {seen}")

        def drawn(number: int) -> tuple[str, str, bool, float | None]:
            leaves = draw.random() * LATEST_S if draw.random() < LEAVING else None
            question = f"question {number % QUESTIONS} of {number // 500}"
            return draw.choice(TENANTS), question, draw.random() < 0.4, leaves

        await in_parallel(AT_ONCE, (client(*drawn(number)) for number in range(clients)))
        held = await permits_left(it)
        for tenant in TENANTS:
            await client(tenant, "question 0 of 0", False, None)
    figure = f"{left} left, {answered} answered, {len(crossed)} crossed, {len(failed)} failed"
    return verdict_of(
        figure,
        {
            f"{len(crossed)} answers crossed, the first: {''.join(crossed[:1])}": not crossed,
            f"{len(failed)} requests failed, the first: {''.join(failed[:1])}": not failed,
            f"{held:g} places are still held": not held,
            "no client left, or none stayed": left > 0 and answered > len(TENANTS),
        },
    )


PART = Part("cancelled clients", "0 answers of another tenant, 0 failed; all places come back", run)
