"""Measures the cost of jobs with an endpoint that answers at once.

The figures are jobs accepted and answered per second, and the time from a job's 202 to its answer on an idle gateway.
The gateway is a separate process with an embedded store. The throughput comes from the gateway's counter, because
polling for each job would be most of the load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench.process import children, cpu_seconds
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.triton import free_ports

PLAIN = """
version: 1
routes:
  - name: default
    match: {}
    route: {backend: main}
"""
BODY = {"path": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}}


async def accept(session: aiohttp.ClientSession, url: str) -> tuple[str, float]:
    """Submit a job. Return its id, and the seconds until its 202."""
    began = time.perf_counter()
    async with session.post(url + "/v1/jobs", json=BODY) as response:
        assert response.status == 202, await response.text()
        return (await response.json())["id"], time.perf_counter() - began


async def completed_jobs(session: aiohttp.ClientSession, admin: str) -> int:
    async with session.get(admin + "/metrics") as response:
        found = re.search(r'^nearhit_jobs_total\{outcome="completed"\} (\S+)$', await response.text(), re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


async def latency(session: aiohttp.ClientSession, url: str, count: int) -> tuple[list[float], list[float]]:
    """Run jobs one at a time, followed by events. Return the seconds to the 202, and from it to the result."""
    accepted, answered = [], []
    for _ in range(count):
        job, seconds = await accept(session, url)
        accepted.append(seconds)
        began = time.perf_counter()
        async with session.get(f"{url}/v1/jobs/{job}/events") as response:
            said = await response.read()
        assert b'"completed"' in said, said
        answered.append(time.perf_counter() - began)
    return accepted, answered


async def throughput(
    session: aiohttp.ClientSession, url: str, admin: str, pid: int, count: int, connections: int
) -> dict[str, float]:
    """Run a burst of `count` jobs. Return accepted and answered jobs per second, and CPU in microseconds per job."""
    before = await completed_jobs(session, admin)
    (store,) = children(pid)
    cpu, store_cpu, began = cpu_seconds(pid), cpu_seconds(store), time.perf_counter()
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await accept(session, url)

    await asyncio.gather(*(client() for _ in range(connections)))
    accepted = time.perf_counter() - began
    while await completed_jobs(session, admin) - before < count:
        await asyncio.sleep(0.02)
    answered = time.perf_counter() - began
    return {
        "accepted_per_second": count / accepted,
        "answered_per_second": count / answered,
        "cpu_us": 1e6 * (cpu_seconds(pid) - cpu) / count,
        "store_cpu_us": 1e6 * (cpu_seconds(store) - store_cpu) / count,
    }


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    (port,) = free_ports(1)
    upstream = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.servers", "upstream", str(port))
    try:
        with tempfile.TemporaryDirectory() as folder:
            jobs = {"max_queued": 100_000, "max_queued_per_tenant": 100_000, "fsync": arguments.fsync}
            backends = {"main": {"adapter": "openai", "url": f"http://127.0.0.1:{port}/v1"}}
            config = write_config(Path(folder), backends, PLAIN, jobs=jobs)
            async with served_by_process(config) as gateway:
                session, url, pid = gateway.session, gateway.url, gateway.process.pid
                await latency(session, url, 20)  # warm
                accepted, answered = await latency(session, url, arguments.single)
                rounds = [
                    await throughput(
                        session, gateway.url, gateway.admin_url, pid, arguments.jobs, arguments.connections
                    )
                    for _ in range(arguments.rounds)
                ]
    finally:
        upstream.terminate()
        await upstream.wait()
    return {
        "accept_ms": _quantiles(accepted),
        "result_ms": _quantiles(answered),
        **{name: statistics.median(one[name] for one in rounds) for name in rounds[0]},
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1e3 * value for value in seconds)
    return {"p50": statistics.median(ordered), "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="a burst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", type=int, default=200, help="jobs one at a time")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--fsync", action="store_true", help="with jobs.fsync: on")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, what in (("accept_ms", "to the 202"), ("result_ms", "from there to the result, by events")):
        print(f"one at a time: {what:<38} p50 {figures[name]['p50']:7.2f} ms   p99 {figures[name]['p99']:7.2f} ms")
    print(
        f"a burst of {arguments.jobs} over {arguments.connections} connections: "
        f"{figures['accepted_per_second']:.0f}/s accepted, {figures['answered_per_second']:.0f}/s answered; "
        f"CPU a job: {figures['cpu_us']:.0f} us of the gateway, {figures['store_cpu_us']:.0f} us of the store"
    )


if __name__ == "__main__":
    main()
