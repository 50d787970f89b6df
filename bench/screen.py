"""Measures misses with and without the screen, one at a time: `python -m bench.screen [--requests N] [--rounds N]`.

The questions are new and unlike those that are stored. The answers are not stored, so that this stays so. A long prompt
has a text that no other one has, and thus a scope of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from bench.fixtures import CONFIG, body
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.load import Load, request_bytes, run
from gateway.model_build.static_vectors import QUESTIONS

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%, screen: SCREEN}, admit: {after: 2}}
    route: {backend: main}
"""
STORED = 100  # questions
LINES = QUESTIONS.read_text("utf-8").splitlines()
WORDS = [word for line in LINES for word in line.split() if word.isalpha()]


def short(draw: random.Random) -> str:
    """Return a prompt of about 30 tokens."""
    return " ".join(draw.sample(LINES[STORED:], 2))


def long(draw: random.Random) -> str:
    """Return a prompt of about 400 tokens: a text, and a question about it."""
    return f"{' '.join(draw.choices(WORDS, k=350))}. {draw.choice(LINES[STORED:])}"


PROMPTS: Mapping[str, Callable[[random.Random], str]] = {"30 tokens": short, "400 tokens": long}


async def measure(requests: int, rounds: int) -> dict[tuple[str, str], list[Load]]:
    """Return the rounds of each kind of prompt, with the screen `on` and `off`."""
    up, draw, found = free_port(), random.Random(7), dict[tuple[str, str], list[Load]]()
    with ExitStack() as stack:
        stack.enter_context(server(["bench.servers", "upstream", str(up)], up))
        gateways: dict[str, GatewayProcess] = {
            screen: stack.enter_context(
                gateway_of(CONFIG, POLICY.replace("SCREEN", screen), embedder="onnx", upstream=up, more="")
            )
            for screen in ("on", "off")
        }
        for it in gateways.values():
            seeds = [request_bytes(body(line)) for line in LINES[:STORED] for _ in range(2)]
            await run(it.port, it.process.pid, seeds, connections=1)
        for kind, prompt in PROMPTS.items():
            for at in range(rounds):
                asked = [request_bytes(body(prompt(draw))) for _ in range(requests)]
                for screen in ("on", "off") if at % 2 else ("off", "on"):
                    it = gateways[screen]
                    load = await run(it.port, it.process.pid, asked, connections=1)
                    found.setdefault((kind, screen), []).append(load)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.screen", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found = asyncio.run(measure(given.requests, given.rounds))
    print("| prompt | screen | p50 ms | p99 ms | CPU us |\n|---|---|---|---|---|")
    for (kind, screen), loads in found.items():
        middle = [statistics.median(figures) for figures in zip(*((x.p50_ms, x.p99_ms, x.cpu_us) for x in loads))]  # noqa: B905
        print(f"| {kind} | {screen} | {middle[0]:.2f} | {middle[1]:.1f} | {middle[2]:.0f} |")


if __name__ == "__main__":
    main()
