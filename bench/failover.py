"""Measures the cost of a failover of the store, behind sentinels and in a cluster.

Primaries are killed and cut off under load. The figures are the time without hits, the longest request, the failures,
and the stored entries that are lost. `make bench-failover` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gateway.adapters.redis.keyspace import CLUSTERED
from tests.fixtures.gateways import config_of, gateway_of, recovered
from tests.fixtures.store_cluster import store_cluster
from tests.fixtures.store_fleets import ENVIRON, Member, sentinel_fleet
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until

CLIENTS, BEFORE_S, AFTER_HITS = 8, 2.0, 50


@dataclass(frozen=True, slots=True)
class Response:
    question: str
    at: float  # when it was answered
    took_s: float
    status: int
    cache_status: str

    @property
    def hit(self) -> bool:
        return self.cache_status.startswith("nearhit; hit")


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[dict[str, Any], Member, Member]]:
    with sentinel_fleet(folder) as fleet:
        yield fleet.section, fleet.primary, fleet.replica


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[dict[str, Any], Member, Member]]:
    with store_cluster(folder) as fleet:
        yield fleet.section, *fleet.primary_and_replica(CLUSTERED.key("bans"))


STORES = {"sentinels": sentinels, "cluster": cluster}
ENDS: dict[str, Callable[[Member], object]] = {
    "killed": Member.kill,
    "cut off": lambda member: member.process.send_signal(signal.SIGSTOP),
}


async def measure_failover(
    kind: str, end: str, upstream: Upstream, folder: Path
) -> tuple[float, list[Response], int, int]:
    """Return the time of the kill, all answers, the count of entries stored before it, and the count of lost ones."""
    with STORES[kind](folder) as (section, primary, replica):
        store = {**section, "timeout": "250ms", "front_size": "1kB"}
        config = config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}}, store=store)
        answers: list[Response] = []
        stopped = False
        async with gateway_of(config, environ=ENVIRON) as served:
            await recovered(served)

            async def ask(question: str) -> Response:
                begun = time.monotonic()
                answer = await served.chat(question)
                now = time.monotonic()
                return Response(question, now, now - begun, answer.status, answer.cache_status)

            async def client(name: int) -> None:
                number = 0
                while not stopped:
                    number += 1
                    answers.append(await ask(f"{name} asks {number if number % 2 else number // 2}"))

            clients = [asyncio.create_task(client(name)) for name in range(CLIENTS)]
            await asyncio.sleep(BEFORE_S)
            await asyncio.to_thread(ENDS[end], primary)
            ended = time.monotonic()
            await until(lambda: replica.role() == "master")
            promoted = len(answers)
            await until(lambda: sum(one.hit for one in answers[promoted:]) > AFTER_HITS)
            stopped = True
            await asyncio.gather(*clients)
            stored = [one.question for one in answers if one.at < ended and "stored" in one.cache_status]
            lost = [one for one in [await ask(question) for question in stored] if not one.hit]
            return ended, answers, len(stored), len(lost)


async def measure(rounds: int) -> None:
    print(f"{'':22}{'requests':>9}{'failed':>8}{'no hits for':>13}{'slowest':>9}{'stored before':>15}{'lost':>6}")
    async with serving(Upstream()) as upstream:
        for kind in STORES:
            for end in ENDS:
                for _ in range(rounds):
                    with tempfile.TemporaryDirectory() as folder:
                        ended, answers, stored, lost = await measure_failover(kind, end, upstream, Path(folder))
                    failed = sum(one.status != 200 for one in answers)
                    hits = [one.at for one in answers if one.hit]
                    pause = max(later - earlier for earlier, later in pairwise(hits) if later > ended)
                    slowest = max(one.took_s for one in answers)
                    print(
                        f"{kind + ', ' + end:22}{len(answers):>9,}{failed:>8}{pause:>11.1f} s{slowest:>7.2f} s"
                        f"{stored:>15,}{lost:>6}",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each (default: %(default)s)")
    logging.disable(logging.CRITICAL)
    asyncio.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
