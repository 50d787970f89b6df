"""Runs every path of the gateway and the bare servers in turn, several rounds, and prints the median ratios."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from bench.gateways import free_port, gateway_of, server
from bench.load import Load, request_bytes, rss_mb, run
from bench.protocols import QUESTION, SYSTEM

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: {embedder}}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
{more}"""
POLICY = """
version: 1
routes:
  - {name: through, match: {model: uncached}, route: {backend: main}}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
"""


@contextlib.contextmanager
def gateway(upstream: int, embedder: str, more: str = "") -> Iterator[tuple[subprocess.Popen[bytes], int, float]]:
    """-> (process, port, seconds until it served). `more`: lines of its configuration."""
    with gateway_of(CONFIG, POLICY, embedder=embedder, upstream=upstream, more=more) as it:
        yield it.process, it.port, it.start_s


def body(question: str, model: str = "bench", **fields: object) -> bytes:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return json.dumps({"model": model, "temperature": 0, "messages": messages, **fields}).encode()


def other_case(draw: random.Random) -> str:
    """Another text with the same tokens (the model is uncased), so that no memory of texts helps."""
    return "".join(c.upper() if draw.random() < 0.5 else c.lower() for c in QUESTION)


class Bench:
    """`only`: the paths that are measured, beside the bare servers; none named: all."""

    def __init__(self, requests: int, rounds: int, only: Collection[str] = ()) -> None:
        self.requests, self.rounds, self.only = requests, rounds, only
        self.draw = random.Random(7)
        self.loads: dict[str, list[Load]] = {}
        self.facts: dict[str, float] = {}

    async def measure(
        self,
        name: str,
        port: int,
        pid: int,
        bodies: list[bytes],
        connections: int,
        *,
        expect: str = "",
        path: str = "/v1/chat/completions",
    ) -> None:
        if self.only and name not in self.only and not name.startswith("bare "):
            return
        requests = [request_bytes(given, path) for given in bodies]
        load = await run(port, pid, requests, connections=connections, expect=expect.encode())
        self.loads.setdefault(f"{name}|{connections}", []).append(load)

    async def all(self) -> None:
        up, fix, pro = free_port(), free_port(), free_port()
        with (
            server(["bench.servers", "upstream", str(up)], up),
            server(["bench.servers", "fixed", str(fix)], fix) as fixed,
            server(["bench.servers", "proxy", str(pro), f"http://127.0.0.1:{up}"], pro) as proxy,
            gateway(up, "hash") as (hashed, hash_port, _),
            gateway(up, "onnx") as (real, real_port, start),
        ):
            self.facts["start_s"], self.facts["rss_mb"] = start, rss_mb(real.pid)
            for port, pid in ((hash_port, hashed.pid), (real_port, real.pid)):
                await run(port, pid, [request_bytes(body(QUESTION))], connections=1)
            for round_number in range(self.rounds + 1):
                if round_number == 1:
                    self.loads.clear()  # the first round warms everything up
                for connections in (1, 32):
                    same = [body(QUESTION)] * self.requests
                    uncached = [body(QUESTION, "uncached")] * self.requests
                    await self.measure("bare server, fixed body", fix, fixed.pid, same, connections)
                    await self.measure("bare reverse proxy", pro, proxy.pid, same, connections)
                    await self.measure("exact hit", hash_port, hashed.pid, same, connections, expect="detail=exact")
                    await self.streams(fix, fixed.pid, hash_port, hashed.pid, connections)
                    await self.measure(
                        "pass-through miss", hash_port, hashed.pid, uncached, connections, expect="detail=policy"
                    )
                    await self.measure(
                        "unknown path, untouched", hash_port, hashed.pid, same, connections,
                        expect="detail=pass-through", path="/v1/unknown",
                    )  # fmt: skip
                    await self.measure(
                        "miss, stored in both caches (hash)",
                        hash_port,
                        hashed.pid,
                        self.fresh(),
                        connections,
                        expect="stored",
                    )
                    await self.measure(
                        "semantic hit (hash)",
                        hash_port,
                        hashed.pid,
                        self.paraphrases(),
                        connections,
                        expect="detail=semantic",
                    )
                    await self.measure(
                        "semantic hit (all-MiniLM)", real_port, real.pid, self.paraphrases(8), connections,
                        expect="detail=semantic",
                    )  # fmt: skip
            if not self.only:
                await self.growth(real_port, real.pid)
            self.facts["rss_after_mb"] = rss_mb(real.pid)

    async def streams(self, fix: int, fixed: int, port: int, pid: int, connections: int) -> None:
        """The stored answer as a stream: the same bytes again, and by the stages, for bytes that were never seen."""
        same = [body(QUESTION, stream=True)] * self.requests
        await self.measure(SSE_FLOOR, fix, fixed, same, connections)
        await self.measure("stream hit", port, pid, same, connections, expect="detail=exact")
        others = [
            body(QUESTION, stream=True, metadata={"n": self.draw.getrandbits(60)}) for _ in range(self.requests // 4)
        ]
        await self.measure("stream hit, request not seen before", port, pid, others, connections, expect="detail=exact")

    def fresh(self) -> list[bytes]:
        """Questions that were never asked, unlike each other."""
        return [body(" ".join(f"w{self.draw.getrandbits(40):x}" for _ in range(16))) for _ in range(self.requests // 4)]

    def paraphrases(self, part: int = 2) -> list[bytes]:
        return [body(other_case(self.draw)) for _ in range(self.requests // part)]

    async def growth(self, port: int, pid: int) -> None:
        """A semantic hit among one entry and among 1,001 of the same scope."""
        await self.measure("semantic hit, before growth", port, pid, self.paraphrases(4), 1, expect="detail=semantic")
        words = [f"{a} {b} {c}" for a in TOPICS for b in TOPICS for c in TOPICS]
        questions = [
            body(f"Tell me about {topic}, number {i}") for i, topic in enumerate(self.draw.sample(words, 1000))
        ]
        await run(port, pid, [request_bytes(q) for q in questions], connections=8)
        await self.measure(
            "semantic hit, 1,000 entries more", port, pid, self.paraphrases(4), 1, expect="detail=semantic"
        )

    def median(self, key: str, field: str) -> float:
        return statistics.median(getattr(load, field) for load in self.loads[key])

    def ratio(self, key: str, base: str) -> float:
        pairs = zip(self.loads[key], self.loads[base], strict=True)
        return statistics.median(load.cpu_us / floor.cpu_us for load, floor in pairs)

    def table(self) -> str:
        columns = ("CPU us", "store us", "x fixed", "x proxy", "p50 ms", "p99 ms", "req/s")
        lines = [f"{'':<38}{'c':>3} " + " ".join(f"{column:>8}" for column in columns)]
        for key in self.loads:
            name, connections = key.split("|")
            floor = SSE_FLOOR if "stream" in name else "bare server, fixed body"
            bases = [self.ratio(key, f"{base}|{connections}") if len(self.loads[key]) == self.rounds else None
                     for base in (floor, "bare reverse proxy")]  # fmt: skip
            ratios = " ".join(f"{b:>8.2f}" if b is not None else f"{'':>8}" for b in bases)
            figures = [self.median(key, f) for f in ("cpu_us", "store_cpu_us", "p50_ms", "p99_ms", "per_second")]
            lines.append(
                f"{name:<38}{connections:>3} {figures[0]:>8.0f} {figures[1]:>8.0f} {ratios} "
                f"{figures[2]:>8.3f} {figures[3]:>8.3f} {figures[4]:>8.0f}"
            )
        start, before, after = (self.facts[name] for name in ("start_s", "rss_mb", "rss_after_mb"))
        lines.append(f"start {start:.2f} s, RSS {before:.0f} MB at the start and {after:.0f} MB at the end")
        return "\n".join(lines)


SSE_FLOOR = "bare server, burst of a stream"
TOPICS = (
    "rivers",
    "engines",
    "violins",
    "glaciers",
    "bakeries",
    "orchids",
    "volcanoes",
    "penguins",
    "algebra",
    "lanterns",
    "kidneys",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="a path, round and concurrency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="a row of the table; repeatable")
    parser.add_argument("--json", type=Path, help="write every round's figures here")
    arguments = parser.parse_args()
    bench = Bench(arguments.requests, arguments.rounds, arguments.only)
    asyncio.run(bench.all())
    print(bench.table())
    if arguments.json:
        loads = {key: [asdict(load) for load in loads] for key, loads in bench.loads.items()}
        arguments.json.write_text(json.dumps({"facts": bench.facts, "loads": loads}, indent=1))


if __name__ == "__main__":
    main()
