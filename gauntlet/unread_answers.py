"""Clients that do not read their answers must cost bounded memory and no places."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import Bystander, permits_left, target
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.processes import Process
from tests.fixtures.wire import Message, Wire, wire_upstream
from tests.http_server.test_slow_readers import MB, chat, large, unread

SPARE_MB = 128  # connections, and pieces of answers on their way
EVERY_S = 0.2


def whole_answer(size: int) -> bytes:
    body = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%b"}}]}' % (b"x" * size)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def peak_mb(it: Process, seconds: float) -> float:
    """Return the most memory that the gateway has during that time."""
    most = 0.0
    for _ in range(int(seconds / EVERY_S)):
        most = max(most, rss_mb(it.process.pid))
        await asyncio.sleep(EVERY_S)
    return most


async def run_attack(quick: bool, streams: bool, max_unread_mb: int) -> tuple[float, float, Bystander, str]:
    """Return the growth of the memory in MB, the places that do not come back, the bystander, and the attack."""
    clients, seconds = (200, 30.0) if streams else (16, 20.0)
    if quick:
        clients, seconds = (24, 4.0) if streams else (4, 4.0)
    answer = whole_answer(40 * MB)

    async def script(wire: Wire, request: Message) -> None:
        if b'"small' in request.body or b'"stream":true' in request.body:
            await large(wire, request)
        else:
            await wire.send(answer)

    server = {"max_unread": f"{max_unread_mb}MiB", "read_timeout": "3s"}
    async with wire_upstream() as upstream:
        upstream.script = script
        async with target(upstream.url, NO_CACHE, server=server) as it, AsyncExitStack() as stack:
            other = Bystander(it, question="small")
            await other.ask()
            before = rss_mb(it.process.pid)
            async with asyncio.TaskGroup() as group:
                peak = group.create_task(peak_mb(it, seconds))
                for number in range(clients):
                    await unread(stack, it, chat(f"question {number}", stream=streams))
                await other.ask_for(seconds)
            held = await permits_left(it)
    attack = f"{clients} {'streams' if streams else 'answers of 40 MB'}"
    return peak.result() - before, held, other, attack


async def run(quick: bool) -> Finding:
    """Leave streams unread, then whole answers, each with a gateway of its own."""
    figures, levels, max_unread_mb = list[str](), dict[str, bool](), 64 if quick else 256
    for streams in (True, False):
        grown, held, other, attack = await run_attack(quick, streams, max_unread_mb)
        most = max_unread_mb + SPARE_MB
        figures.append(f"{attack}: +{grown:.0f} MB, {other.figure}")
        levels[f"{attack}: {grown:.0f} MB more memory, expected at most {most}"] = grown <= most
        levels[f"{attack}: {held:g} places are still held"] = not held
        levels |= {f"{attack}: {fault}": holds for fault, holds in other.levels.items()}
    return verdict_of("; ".join(figures), levels)


PART = Part(
    "unread answers",
    "memory grows by max_unread and 128 MB at most; others answered; places come back",
    run,
)
