"""Compares the forecast of `nearhit simulate` with real runs, and measures the requests that it replays per second.

A day of questions from `training/wordings` goes through a real gateway with two scripted endpoints, which records it.
The day lasts a minute, and lifetimes match. Then the same day goes through the gateway under each other policy. The
forecast from the record is compared with that run, which it has not seen.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.protocols import TEXT
from gateway.config import Config
from gateway.config.policy.load import policy_from_text
from gateway.features.simulation.simulation import recorded_side
from gateway.features.simulation.worker_process import SimulationJob, build_job, run_job
from gateway.steps.recording import TrafficLog
from gateway.steps.traffic_log.format import RecordedRequest
from gateway.steps.traffic_log.reader import read_traffic
from gateway.steps.traffic_log.segments import Segments
from tests.fixtures.gateways import Served, config_of, gateway_of

WORDINGS = Path(__file__).parents[1] / "training" / "wordings"
SPEED = {"light": 0.250, "large": 0.750}  # seconds, median
SPREAD = 0.35  # standard deviation of the logarithm
PRICES = {"light": (0.15, 0.6), "large": (2.5, 10.0)}
POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: {ttl}}}, semantic: {{ttl: {ttl}, {accept}}}}}
    route: {{light: light, large: large, {rule}}}
    record: {record}
"""
PRESENT = {"ttl": 20, "accept": "max_wrong_hits: 1%", "rule": "large_share: 20%"}
OTHERS = {
    "as it is": PRESENT,
    "looser": {"ttl": 45, "accept": "max_wrong_hits: 3%", "rule": "large_share: 40%"},
    "tighter": {"ttl": 8, "accept": "min_similarity: 0.92", "rule": "large_share: 10%"},
}
RULES = {  # by which the speed is measured
    "escalate_above": ("escalate_above: 0.5", "escalate_above: 0.35"),
    "large_share": ("large_share: 20%", "large_share: 40%"),
}
Rule = dict[str, Any]
POINTS, P95 = 0.02, 0.10  # within which forecast and run are to agree


@dataclass(frozen=True, slots=True)
class TimedQuestion:
    at: float  # seconds from the beginning
    question: str


def draw_day(requests: int, seconds: float, seed: int) -> list[TimedQuestion]:
    """Return a day of requests: a few questions are frequent and most are rare; each has one of its wordings."""
    draw = random.Random(seed)
    groups: list[list[str]] = []
    for path in sorted(WORDINGS.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            said = json.loads(line)
            groups += [said["same"], *([other["text"]] for other in said["other"][:1])]
    draw.shuffle(groups)
    weights = [1.0 / (rank + 5) ** 0.8 for rank in range(len(groups))]
    times = sorted(draw.uniform(0.0, seconds) for _ in range(requests))
    asked = draw.choices(groups, weights, k=requests)
    return [TimedQuestion(at, draw.choice(group)) for at, group in zip(times, asked, strict=True)]


@asynccontextmanager
async def endpoint(name: str, answers: dict[str, int], stretch: float) -> AsyncIterator[str]:
    """Run an endpoint whose time for a question depends on its hash. All wordings of a question get one answer."""

    async def answer(request: web.Request) -> web.Response:
        question = (await request.json())["messages"][-1]["content"]
        digest = hashlib.sha256(f"{name} {question}".encode()).digest()
        await asyncio.sleep(stretch * SPEED[name] * random.Random(digest).lognormvariate(0.0, SPREAD))
        text = f"Answer number {answers.get(question, 0)}. {TEXT[: 40 + digest[0]]}"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(question) // 4, "completion_tokens": len(text) // 4}
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield "http://{}:{}/v1".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


def answers_of() -> dict[str, int]:
    """Return the number of its group for each question."""
    found: dict[str, int] = {}
    for path in sorted(WORDINGS.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            said = json.loads(line)
            number = len(found)
            found.update(dict.fromkeys(said["same"], number))
            found.update({other["text"]: number + i + 1 for i, other in enumerate(said["other"])})
    return found


class Bench:
    def __init__(self, embedder: str, record: str, asked: Sequence[TimedQuestion], home: Path, stretch: float) -> None:
        self.embedder, self.record, self.asked, self.home, self.stretch = embedder, record, asked, home, stretch
        self.recording_us = 0.0

    def policy(self, rule: Rule) -> str:
        return POLICY.format(**{**rule, "ttl": f"{float(rule['ttl']) * self.stretch:.0f}s"}, record=self.record)

    async def run(self, name: str, rule: Rule) -> tuple[Config, dict[str, Any]]:
        """Send the day to a gateway. Return its configuration, which has the log, and the figures."""
        async with AsyncExitStack() as stack:
            backends = {}
            for backend in SPEED:
                url = await stack.enter_async_context(endpoint(backend, answers_of(), self.stretch))
                price = dict(zip(("input_per_million", "output_per_million"), PRICES[backend], strict=True))
                backends[backend] = {"adapter": "openai", "url": url, "price": price}
            config = config_of(self.home / name, backends, embedder={"adapter": self.embedder, "timeout": "10s"})
            served = await stack.enter_async_context(gateway_of(config, self.policy(rule)))
            log = served.gateway.parts.recorder.log
            assert log is not None  # the policy records
            taken = {name: _timing(log, name) for name in ("facts", "on_end")}
            await self._play(served)
            await served.gateway.parts.recorder.flush()
        traffic = read_traffic(str(config.data_dir / "traffic"), config.data_dir, 0.0)
        assert len(traffic.requests) == len(self.asked)
        self.recording_us = sum(1e6 * statistics.median(times) for times in taken.values())
        large = sum(row.tier == "large" for row in traffic.requests)
        calls = sum(row.tier is not None and row.verdict == "miss" for row in traffic.requests)
        return config, {**recorded_side(traffic.requests), "large_share": large / max(1, calls)}

    async def _play(self, served: Served) -> None:
        began = asyncio.get_running_loop().time()

        async def send(ask: TimedQuestion) -> None:
            await asyncio.sleep(began + ask.at - asyncio.get_running_loop().time())
            body = {"model": "m", "messages": [{"role": "user", "content": ask.question}]}
            async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
                assert response.status == 200
                await response.read()

        await asyncio.gather(*map(send, self.asked))

    def forecast(self, config: Config, rule: Rule) -> dict[str, Any]:
        present = policy_from_text(self.policy(PRESENT), "p.yaml", config)
        new = policy_from_text(self.policy(rule), "p.yaml", config)
        where = str(config.data_dir / "traffic")
        return run_job(build_job(config, present, new, where, time.time(), None)).as_json()["new"]


def _timing(log: TrafficLog, method: str) -> list[float]:
    """Return a list that gets the seconds of each call of the method from now on."""
    real, times = getattr(log, method), list[float]()

    def timed(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return real(*given, **named)
        finally:
            times.append(time.perf_counter() - began)

    setattr(log, method, timed)
    return times


def compare(name: str, said: dict[str, Any], real: dict[str, Any]) -> tuple[str, bool]:
    off, p95 = said["hit_rate"] - real["hit_rate"], said["p95_ms"] / real["p95_ms"] - 1
    good = abs(off) <= POINTS and abs(p95) <= P95
    high = f"..{said['hit_rate_high']:.1%}" if said["hit_rate_high"] > said["hit_rate"] else ""
    hits = f"{said['hit_rate']:.1%}{high}"
    line = (
        f"{name:<24}{hits:>16}{real['hit_rate']:>8.1%}{100 * off:>+7.1f}{said['p95_ms']:>10.1f}{real['p95_ms']:>9.1f}"
        f"{p95:>+8.1%}{said['large_share']:>9.1%}{real['large_share']:>8.1%}   {'' if good else 'beyond the bounds'}"
    )
    return line.rstrip(), good


async def agreement(arguments: argparse.Namespace) -> bool:
    print(
        f"{'forecast and run':<24}{'hits said':>16}{'real':>8}{'points':>7}{'p95 said':>10}{'real ms':>9}{'off':>8}"
        f"{'large':>9}{'real':>8}",
        flush=True,
    )
    good = True
    for embedder in arguments.embedders:
        with tempfile.TemporaryDirectory() as folder:
            asked = draw_day(arguments.requests, arguments.seconds * arguments.stretch, arguments.seed)
            bench = Bench(embedder, arguments.record, asked, Path(folder), arguments.stretch)
            config, _ = await bench.run("recorded", PRESENT)
            for name, rule in OTHERS.items():
                _, real = await bench.run(name.replace(" ", "-"), rule)
                line, fits = compare(f"{embedder}, {name}", bench.forecast(config, rule), real)
                print(line, flush=True)
                good = good and fits
            print(f"{embedder}: recording took {bench.recording_us:.0f} us of the event loop a request", flush=True)
            speed(config, bench, arguments.copies)
    return good


def speed(config: Config, bench: Bench, copies: int) -> None:
    """Read the recorded day many times, each with other tenants, and replay it under two policies."""
    traffic = read_traffic(str(config.data_dir / "traffic"), config.data_dir, 0.0)
    span = traffic.requests[-1].at - traffic.requests[0].at + 60.0
    folder = config.data_dir / "copies"
    segments = Segments(folder, config.traffic.model_copy(update={"segment_size": 2**40, "max_size": 2**40}))
    for copy in range(copies):
        segments.append(traffic.heading, [_copy_of(row, copy, span) for row in traffic.requests])
    segments.close()
    for name, rules in RULES.items():
        texts = [policy_from_text(bench.policy({**PRESENT, "rule": rule}), "p.yaml", config) for rule in rules]
        _timed(f"{bench.embedder}, {name}", build_job(config, texts[0], texts[1], str(folder), time.time(), None))


def _timed(name: str, job: SimulationJob) -> None:
    started, spent = time.perf_counter(), time.process_time()
    count = len(run_job(job).requests)
    taken, spent = time.perf_counter() - started, time.process_time() - spent
    rate = f"{count} requests in {taken:.1f} s, {count / taken:.0f}/s, {count / spent:.0f} a second of CPU"
    print(f"{name}: read, and put through two policies: {rate}", flush=True)


def _copy_of(row: RecordedRequest, copy: int, span: float) -> RecordedRequest:
    mark = copy.to_bytes(2, "big")
    request = row.request._replace(tenant=mark + row.request.tenant[2:], canonical=mark + row.request.canonical[2:])
    return row._replace(at=row.at + copy * span, request=request, entry=row.entry and mark + row.entry[2:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-simulate", description=__doc__)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=75.0, help="that the day takes")
    parser.add_argument("--stretch", type=float, default=1.0, help="day, lifetimes and answers: for a busy machine")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--copies", type=int, default=40, help="of the day, for the speed")
    parser.add_argument("--embedders", nargs="+", default=["hash", "onnx"])
    parser.add_argument("--record", default="on", help="as the policy says it, e.g. '{prompts: on}'")
    arguments = parser.parse_args()
    if not asyncio.run(agreement(arguments)):
        raise SystemExit("a forecast and its run are further apart than 2 points of hit rate or 10 % of p95")


if __name__ == "__main__":
    main()
