"""Measure the CPU time that each setting adds to an exact hit, a semantic hit and a miss: `make bench-settings`.

The base line is the policy of `nearhit serve --upstream`. Every other row changes one setting of it. Each row is a
gateway process of its own, pinned to the first core. The load and the stub endpoint share the last core. The gateways
of a group take turns in short rounds, next to two base lines of their own. The table has the median CPU time of a
gateway's process, in microseconds per request. It also has the median ratio to the mean of both base lines in the same
round.

Embedding takes most of a semantic hit and of a miss, and its noise hides small costs. So the table also has the CPU
time of the event loop alone, which is the gateway's first thread.

CPU time includes work that follows the response, such as audits, exports of traces and writes of the traffic log. So
each window ends `SETTLE_S` after the last request, and the CPU time of an idle gateway is subtracted from it. The CPU
time of the store is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import ssl
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.certificates import ServerCertificate, server_certificate
from bench.coalescing import valkey
from bench.fixtures import body, other_spacing
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.keys import KEYED, STATIC
from bench.load import request_bytes, run
from bench.process import cpu_seconds, loop_seconds, pin
from bench.protocols import QUESTION
from bench.rows import sentence
from docs.tools.page_parts import with_part
from gateway.config.policy import single_backend

EXACT, SEMANTIC, MISS = "exact hit", "semantic hit", "miss"
EXPECTED: Mapping[str, bytes] = {EXACT: b"detail=exact", SEMANTIC: b"detail=semantic", MISS: b"stored"}
BASE, TWIN = "shipped policy", "the same again (noise)"
SETTLE_S = 1.1  # longer than `traffic.flush`
IDLE_S = 2.0
GROUP = 11  # gateways that take turns, without the base lines
CONNECTIONS = 4
WARM_PART = 4  # this fraction of the requests is sent in the first round
LIVE_PART = 4  # a live stream takes the endpoint 222 ms: this fraction of the misses is sent
CORES = sorted(os.sched_getaffinity(0))
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table: one change of the base line."""

    name: str
    config: Document = field(default_factory=dict)
    """The difference to the base line's configuration; None removes a key."""
    rule: Document = field(default_factory=dict)
    """The difference to its route."""
    options: Sequence[str] = ()
    """Options of `nearhit serve`."""
    headers: str = ""
    """Lines that each request has in addition."""
    fields: Document = field(default_factory=dict)
    """Fields that each request body has in addition."""
    expected: Mapping[str, bytes] = field(default_factory=lambda: EXPECTED)
    """The paths to measure, each with a part of the response's head that proves it."""
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything outside the gateways that a setting may need."""

    upstream: str
    second: str
    """URLs without a path. The second one also receives traces."""
    store: str
    certificate: ServerCertificate


def settings(around: Surroundings) -> list[Setting]:
    """Return the rows without the base line, in the order of the table."""

    def semantic(**changed: object) -> Document:
        return {"cache": {"semantic": changed}}

    def main(**changed: object) -> Document:
        return {"backends": {"main": changed}}

    def traces(share: object) -> Document:
        return {"telemetry": {"traces": {"endpoint": around.second, "sample": share}}}

    def tiers(**changed: object) -> Document:
        return {"route": {"backend": None, "light": "main", "large": "large", "escalate_above": 0.5} | changed}

    def cascade(accept_above: float) -> Document:
        return tiers(light="sure", escalate_above=0, cascade={"check": "logprobs", "accept_above": accept_above})

    large = {"backends": {"large": {"adapter": "openai", "url": f"{around.second}/v1"}}}
    sure = {"backends": {**large["backends"], "sure": {"adapter": "openai", "url": f"{around.upstream}/sure/v1"}}}
    without_semantic = {EXACT: EXPECTED[EXACT], MISS: EXPECTED[MISS]}
    only_misses = {MISS: EXPECTED[MISS]}
    two = {"url": None, "upstreams": [f"{around.upstream}/v1", f"{around.second}/v1"]}
    limit = {"requests": "100M/s"}
    return [
        Setting("`min_similarity: 0.9`", rule=semantic(max_wrong_hits=None, audit=None, min_similarity=0.9)),
        Setting("`cache.semantic: off`", rule={"cache": {"semantic": "off"}}, expected=without_semantic),
        Setting("both caches off", rule={"cache": None}, expected={MISS: b"detail=policy"}),
        Setting("`verifier.cross_encoder: off`", {"verifier": {"cross_encoder": "off"}}),
        Setting("`verifier.adapter: checks`", {"verifier": {"adapter": "checks"}}),
        Setting("no `audit`", rule=semantic(audit=None)),
        Setting("`coalesce: on`", rule=semantic(coalesce="on")),
        Setting("`fresh_ids: on`", rule={"cache": {"fresh_ids": "on"}}),
        Setting("`share: user`", rule={"cache": {"share": "user"}}, fields={"user": "alice"}),
        Setting("`share: global`", rule={"cache": {"share": "global"}}),
        Setting("`store.url: redis://...`", {"store": {"url": around.store}}),
        Setting("`record: on`", rule={"record": "on"}),
        Setting("`record: {prompts: on}`", rule={"record": {"prompts": "on"}}),
        Setting("`traces.sample: 1%`", traces("1%")),
        Setting("`traces.sample: 100%`", traces("100%")),
        Setting("`--log-level warning`: no access log", options=("--log-level", "warning")),
        Setting(
            "`access_log.sample`: 1% of all three",
            {"telemetry": {"access_log": {"sample": {"exact": "1%", "semantic": "1%", "miss": "1%"}}}},
        ),
        Setting("`expose_headers: off`", rule={"expose_headers": "off"}, expected=dict.fromkeys(EXPECTED, b"")),
        Setting(
            "`cors`, with `Origin`",
            {"server": {"cors": {"origins": ["https://app.example"]}}},
            headers="Origin: https://app.example\r\n",
        ),
        Setting("`compress: on`, gzip accepted", {"server": {"compress": "on"}}, headers="Accept-Encoding: gzip\r\n"),
        Setting("`limits: {requests: ...}`", rule={"limits": limit}),
        Setting("the same with `count_hits: on`", rule={"limits": {**limit, "count_hits": "on"}}),
        Setting("`auth.mode: keys`", {"auth": yaml.safe_load(KEYED)}),
        Setting(
            "`server.tls`",
            {"server": {"tls": around.certificate.section}},
            tls=around.certificate.trust,
        ),
        Setting("`client: aiohttp`", main(client="aiohttp")),
        Setting("two `upstreams`", main(**two)),
        Setting("two `upstreams`, `hedge: on`", main(**two, hedge="on")),
        Setting("`light`, `large`, `escalate_above`", large, tiers()),
        Setting("the same with `latency_budget: 60s`", large, tiers(latency_budget="60s")),
        Setting("`cascade: logprobs`, accepted", sure, cascade(0.5), expected=only_misses),
        Setting("`cascade: logprobs`, escalated", sure, cascade(0.999), expected=only_misses),
        Setting("`stream: true`, 74 events", fields={"stream": True}, expected={**EXPECTED, MISS: b"fwd=miss"}),
    ]


def merge(base: Any, change: Any) -> Any:
    """Return `base` with `change` merged into its mappings, at any depth."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return change
    merged = {name: merge(base.get(name), value) for name, value in change.items()}
    return {name: value for name, value in {**base, **merged}.items() if value is not None}


def documents(setting: Setting, upstream: str) -> tuple[str, str]:
    """Return the configuration, with places for the ports, and the policy."""
    config = {
        "version": 1,
        "server": {"listen": "127.0.0.1:@port", "admin": "127.0.0.1:@admin"},
        "embedder": {"timeout": "60s"},  # on a busy machine, a lookup must not end early
        "store": {"timeout": "5s"},
        "backends": {"main": {"adapter": "openai", "url": f"{upstream}/v1"}},
    }
    text = json.dumps(merge(config, setting.config)).replace("{", "{{").replace("}", "}}")
    policy = yaml.safe_load(single_backend.POLICY)
    policy["routes"] = [merge(rule, setting.rule) for rule in policy["routes"]]
    return text.replace("@port", "{port}").replace("@admin", "{admin}"), json.dumps(policy)


def requests_of(setting: Setting, path: str, count: int, draw: random.Random) -> list[bytes]:
    """Return the requests of a round. Each miss has a scope of its own, because the endpoint answers all alike."""
    if path == EXACT:
        bodies = [body(QUESTION, **setting.fields)] * count
    elif path == SEMANTIC:
        bodies = [body(other_spacing(draw), **setting.fields) for _ in range(count)]
    else:
        count //= LIVE_PART if "stream" in setting.fields else 1
        bodies = [sentence(draw, draw.getrandbits(32), **setting.fields) for _ in range(count)]
    headers = f"Authorization: Bearer {STATIC}\r\n{setting.headers}"
    return [request_bytes(each, headers=headers) for each in bodies]


@contextlib.contextmanager
def surroundings() -> Iterator[Surroundings]:
    first, second = free_port(), free_port()
    with (
        server(["bench.servers", "settings", str(first)], first),
        server(["bench.servers", "settings", str(second)], second),
        valkey() as store,
        server_certificate() as certificate,
    ):
        pin(os.getpid(), CORES[-1])
        upstream, other = (f"http://127.0.0.1:{port}" for port in (first, second))
        yield Surroundings(upstream, other, store, certificate)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time in microseconds per request, or seconds so far, or shares of a core: of all threads, and of the loop."""

    process: float
    loop: float


def cpu_time_of(pid: int) -> CpuTime:
    """Return the seconds so far."""
    return CpuTime(cpu_seconds(pid), loop_seconds(pid))


@dataclass(frozen=True, slots=True)
class RoundStart:
    """One gateway's part of a round."""

    begun: float
    before: CpuTime
    requests: int


Gateways = Sequence[tuple[Setting, GatewayProcess]]


class Bench:
    """`Bench` measures groups of settings, each next to two base lines of its own."""

    def __init__(self, counts: Mapping[str, int], rounds: int) -> None:
        self.counts, self.rounds = counts, rounds
        self.spent: dict[tuple[str, str], list[CpuTime]] = {}
        """Microseconds per request of each round, by row and path."""
        self.ratios: dict[tuple[str, str], list[CpuTime]] = {}
        """Ratios to the mean of both base lines; of the second base line, to the first."""
        self.skipped: dict[tuple[str, str], str] = {}
        """Reasons, by row and path."""
        self._draw = random.Random(23)

    async def group(self, rows: Sequence[Setting], upstream: str) -> None:
        """Measure `rows` and the base lines."""
        with contextlib.ExitStack() as stack:
            running = self._start(stack, [Setting(BASE), *rows, Setting(TWIN)], upstream)
            for row, it in running:
                pin(it.process.pid, CORES[0])
                with contextlib.suppress(ExceptionGroup):  # each path checks its own responses
                    seed = requests_of(row, EXACT, 1, self._draw)
                    await run(it.port, it.process.pid, seed, connections=1, tls=row.tls)
            idle = {row.name: CpuTime(0.0, 0.0) for row, _ in running}
            for path in EXPECTED:
                await self._round(running, path, idle, self.counts[path] // WARM_PART)
            idle = await idle_shares(running)
            for number in range(self.rounds):
                for path in EXPECTED:
                    self._record(
                        path, await self._round(running[:: 1 - 2 * (number % 2)], path, idle, self.counts[path])
                    )

    def _start(self, stack: contextlib.ExitStack, rows: Sequence[Setting], upstream: str) -> Gateways:
        """Start a gateway for each row, as many at once as there are cores."""

        def start(row: Setting) -> GatewayProcess | None:
            try:
                return stack.enter_context(gateway_of(*documents(row, upstream), options=row.options))
            except SystemExit as error:
                self.skipped.update({(row.name, path): f"no start: {error}" for path in EXPECTED})
                return None

        os.sched_setaffinity(0, CORES)  # threads and processes inherit it
        with ThreadPoolExecutor(len(CORES)) as pool:
            started = list(pool.map(start, rows))
        os.sched_setaffinity(0, {CORES[-1]})
        return [(row, it) for row, it in zip(rows, started, strict=True) if it is not None]

    async def _round(self, running: Gateways, path: str, idle: Mapping[str, CpuTime], count: int) -> dict[str, CpuTime]:
        """Return microseconds per request, by row."""
        turns: dict[str, RoundStart] = {}
        for row, it in running:
            if path not in row.expected or (row.name, path) in self.skipped:
                continue
            pid, expect = it.process.pid, row.expected[path]
            requests = requests_of(row, path, count, self._draw)
            turn = RoundStart(time.perf_counter(), cpu_time_of(pid), len(requests))
            try:
                await run(it.port, pid, requests, connections=CONNECTIONS, expect=expect, tls=row.tls)
            except ExceptionGroup as group:
                self.skipped[row.name, path] = str(group.exceptions[0]).split("\r\n\r\n", 1)[0]
            else:
                turns[row.name] = turn
        await asyncio.sleep(SETTLE_S)
        return {
            row.name: cpu_time_since(turns[row.name], it.process.pid, idle[row.name])
            for row, it in running
            if row.name in turns
        }

    def _record(self, path: str, spent: Mapping[str, CpuTime]) -> None:
        first, second = spent[BASE], spent[TWIN]
        both = CpuTime((first.process + second.process) / 2, (first.loop + second.loop) / 2)
        for name, each in spent.items():
            base = first if name == TWIN else both
            self.spent.setdefault((name, path), []).append(each)
            ratio = CpuTime(each.process / base.process, each.loop / base.loop)
            self.ratios.setdefault((name, path), []).append(ratio)

    def cells(self, name: str, path: str) -> list[str]:
        """Return the medians of the process, and of the loop alone where the path embeds."""
        cells = list[str]()
        for of in ("process",) if path == EXACT else ("process", "loop"):
            if (name, path) not in self.spent or (name, path) in self.skipped:
                cells.append("")
                continue
            cpu_us, ratio = (
                statistics.median(getattr(each, of) for each in some[name, path]) for some in (self.spent, self.ratios)
            )
            cells.append(f"{cpu_us:.0f}" if name == BASE else f"{cpu_us:.0f} ({ratio:.2f})")
        return cells

    def lines(self, names: Sequence[str]) -> list[str]:
        """Return the table in Markdown."""
        titles = ["setting", EXACT, SEMANTIC, "its event loop", MISS, "its event loop"]
        rows = [
            [name, *(cell for path in EXPECTED for cell in self.cells(name, path))] for name in (BASE, TWIN, *names)
        ]
        return [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows)]

    def noise(self) -> Iterator[str]:
        """Yield the range of the groups' median ratios of one base line to the other, by path."""
        for path in EXPECTED:
            ratios, size = self.ratios[TWIN, path], self.rounds
            for of in ("process", "loop"):
                medians = [
                    statistics.median(getattr(each, of) for each in ratios[first : first + size])
                    for first in range(0, len(ratios), size)
                ]
                yield f"noise of the groups: {path}, {of}: {min(medians):.2f} to {max(medians):.2f}"


def cpu_time_since(turn: RoundStart, pid: int, idle: CpuTime) -> CpuTime:
    """Return microseconds per request, without the CPU time that an idle gateway takes."""
    after, seconds = cpu_time_of(pid), time.perf_counter() - turn.begun
    process = after.process - turn.before.process - idle.process * seconds
    loop = after.loop - turn.before.loop - idle.loop * seconds
    return CpuTime(1e6 * process / turn.requests, 1e6 * loop / turn.requests)


async def idle_shares(running: Gateways) -> dict[str, CpuTime]:
    """Return the shares of a core that each gateway takes without requests."""
    turns = {row.name: RoundStart(time.perf_counter(), cpu_time_of(it.process.pid), 1) for row, it in running}
    await asyncio.sleep(IDLE_S)
    found = dict[str, CpuTime]()
    for row, it in running:
        turn, after = turns[row.name], cpu_time_of(it.process.pid)
        seconds = time.perf_counter() - turn.begun
        process, loop = after.process - turn.before.process, after.loop - turn.before.loop
        found[row.name] = CpuTime(process / seconds, loop / seconds)
    return found


async def measure(bench: Bench, rows: Sequence[Setting], upstream: str) -> None:
    for first in range(0, len(rows), GROUP):
        await bench.group(rows[first : first + GROUP], upstream)
        print(f"{min(first + GROUP, len(rows))} of {len(rows)} settings measured", flush=True)


def write_page(page: Path, lines: Sequence[str]) -> None:
    """Write the table between its markers."""
    page.write_text(with_part(page.read_text(), "settings table", "\n".join(lines) + "\n"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-settings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exact", type=int, default=1200, help="exact hits of a round")
    parser.add_argument("--semantic", type=int, default=50, help="semantic hits of a round")
    parser.add_argument("--miss", type=int, default=50, help="misses of a round")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="rows with this text; repeatable")
    parser.add_argument("--markdown", action="store_true", help="write the table into docs/performance.md")
    given = parser.parse_args()
    bench = Bench({EXACT: given.exact, SEMANTIC: given.semantic, MISS: given.miss}, given.rounds)
    with surroundings() as around:
        chosen = settings(around)
        rows = [row for row in chosen if not given.only or any(text in row.name for text in given.only)]
        asyncio.run(measure(bench, rows, around.upstream))
    lines = bench.lines([row.name for row in rows])
    print("\n".join([*lines, *bench.noise()]))
    for (name, path), reason in bench.skipped.items():
        print(f"not measured: {name}, {path}: {reason}")
    if given.markdown:
        write_page(PAGE, lines)


if __name__ == "__main__":
    main()
