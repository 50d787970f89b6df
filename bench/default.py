"""Measures the shipped policy, `nearhit serve --upstream URL`, by kind of request: `make bench-default`.

The gateway runs without a file. The kinds are exact hits, semantic hits, misses near a stored question, misses far from
all of them, and live streams of far misses. Each has questions of 10 to 400 tokens, with and without a system prompt,
at 1 and at 32 connections.

A round has one scene for each length and system prompt: a tenant of its own, whose questions are stored first. So no
embedding and no answer is known from an earlier round. The paraphrases are those that the gateway serves: it is asked
once before, and the pairs that it does not serve are left out. With `--tree`, only the pairs that all gateways serve
are kept, and the gateways take turns within the round.

Each round has new gateways, as they learn from the answers to near misses. These come last in a round.

Each gateway has the first core. The load and the endpoint, which answers at once, have the last one. A window ends when
the gateway is calm again, so that work behind the answers counts. The CPU time of an idle gateway is subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.__main__ import HERE, named_tree
from bench.default_gateway import (
    NO_EXTRAS,
    ROOT,
    Extras,
    Gateway,
    all_on,
    difference,
    embed,
    embedded_text,
    encoder,
    gateway,
    heads,
    token_counter,
    wait_until_calm,
    window,
)
from bench.default_table import (
    ALL_ON,
    BARE,
    CONNECTIONS,
    EMBEDDING,
    ENDPOINT,
    EXACT,
    FAR,
    KINDS,
    NEAR,
    ONE,
    SEMANTIC,
    STREAM,
    Cell,
    Measurements,
    Window,
)
from bench.gateways import free_port, server
from bench.load import Load, request_bytes, run
from bench.process import pin, rss_mb, thread_seconds
from bench.prompts import LENGTHS, Group, Prompt, Wordings, body, far_of, groups_of
from bench.settings import CORES
from bench.stages import Samples, StageCosts
from docs.tools.page_parts import with_part

PAGE, FIGURES = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance" / "default.json"
WORDINGS = ROOT / "training" / "wordings"
STAGE_TOKENS = 30  # the length at which the stages are measured
ANSWERS = 1_000_000  # numbers that a scene has
LEAST = 8  # pairs of a length without which its hits are not measured
EMBEDDED = 8  # texts of one measurement of the encoder alone


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of requests of a window, by connections, and of all else."""

    one: int = 10
    many: int = 32
    streams: int = 32  # of `many`; half as many as `one` at one connection
    exact: int = 300
    candidates: int = 168  # groups of a length that are tried
    rounds: int = 3
    stage_scenes: int = 3
    lengths: Sequence[int] = LENGTHS
    idle_s: float = 2.0

    @property
    def pool(self) -> int:
        return self.one + self.many


QUICK = Sizes(
    one=2, many=6, streams=4, exact=8, candidates=48, rounds=1, stage_scenes=1, lengths=(STAGE_TOKENS,), idle_s=0.2
)


@dataclass(frozen=True, slots=True)
class Pool:
    """The prompts of one length. Hits and near misses are of the same groups."""

    groups: Sequence[Group]
    served: int
    """The paraphrases of so many groups are served; these groups come first."""
    far: Sequence[Prompt]

    def prompts(self, kind: str, connections: int, sizes: Sizes) -> Sequence[Prompt]:
        """Return the prompts of a window. No two windows of a scene share one, but for exact hits."""
        if kind == EXACT:
            return [group.stored for group in islice(itertools.cycle(self.groups), sizes.exact)]
        if kind == SEMANTIC:
            return _part([group.paraphrase for group in self.groups[: self.served]], connections, sizes)
        if kind == NEAR:
            return _part([group.near for group in self.groups], connections, sizes)
        if kind == FAR:
            return _part(self.far[: sizes.pool], connections, sizes)
        return _part(
            self.far[sizes.pool :], connections, replace(sizes, one=max(1, sizes.one // 2), many=sizes.streams)
        )

    def measures(self, kind: str) -> bool:
        """Return whether there are enough prompts."""
        of = {EXACT: len(self.groups), SEMANTIC: self.served, NEAR: len(self.groups)}
        return of.get(kind, len(self.far)) >= LEAST


def _part(prompts: Sequence[Prompt], connections: int, sizes: Sizes) -> Sequence[Prompt]:
    """Return the first ones for one connection, a quarter at most, and the others for many."""
    first = min(sizes.one, len(prompts) // 4)
    return prompts[:first] if connections == ONE else prompts[first : first + sizes.many]


def requests_of(
    prompts: Sequence[Prompt], scene: int, *, system: bool = False, stream: bool = False, more: str = ""
) -> list[bytes]:
    """Return the requests. Each scene is a tenant, and has answers of its own. `more`: lines of the head."""
    headers, first = f"Authorization: Bearer scene-{scene}\r\n{more}", scene * ANSWERS
    asked = [replace(prompt, number=first + prompt.number) for prompt in prompts]
    return [request_bytes(body(each, system=system, stream=stream), headers=headers) for each in asked]


def read_wordings() -> list[Wordings]:
    lines = [json.loads(line) for path in sorted(WORDINGS.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    return [Wordings(tuple(line["same"]), tuple(each["text"] for each in line["other"])) for line in lines]


class Bench:
    """`Bench` measures the gateways of `trees`, by turns. The first one is of this checkout.

    `with_all_on`: measure one more of this checkout, with traces, CORS and TLS.
    """

    def __init__(self, sizes: Sizes, trees: Mapping[str, Path], *, with_all_on: bool = False) -> None:
        self.sizes = sizes
        self.measured = Measurements([*trees, *[ALL_ON] * with_all_on])
        self._trees = {**trees, **({ALL_ON: ROOT} if with_all_on else {})}
        self._extras = dict[str, Extras]()
        self._pools: dict[int, Pool] = {}
        self._gateways: list[Gateway] = []
        self._draw = random.Random(17)

    async def all(self) -> None:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            async with self._run_gateways():
                await self._choose()
            for number in range(self.sizes.rounds):
                async with self._run_gateways():
                    await self._round(number)
                print(f"{number + 1} of {self.sizes.rounds} rounds measured", flush=True)
            async with self._run_gateways():
                await self._stages()

    def _start(self, stack: contextlib.ExitStack) -> None:
        """Start all but the gateways."""
        up, fixed, proxy = free_port(), free_port(), free_port()
        stack.enter_context(server(["bench.servers", "default", str(up)], up))
        bare = stack.enter_context(server(["bench.servers", "fixed", str(fixed)], fixed))
        arguments = ["bench.servers", "proxy", str(proxy), f"http://127.0.0.1:{up}"]
        relay = stack.enter_context(server(arguments, proxy))
        self._up, self._fixed, self._proxy = up, (fixed, bare.pid), (proxy, relay.pid)
        if ALL_ON in self._trees:
            self._extras[ALL_ON] = stack.enter_context(all_on(up))
        self._encoder = stack.enter_context(encoder())
        pin(os.getpid(), CORES[-1])  # and the endpoint
        for pid in (bare.pid, relay.pid, self._encoder.pid):
            pin(pid, CORES[0])

    @contextlib.asynccontextmanager
    async def _run_gateways(self) -> AsyncIterator[None]:
        """Run a new gateway of each tree, which has learned nothing."""
        with contextlib.ExitStack() as stack:
            for label, tree in self._trees.items():
                os.sched_setaffinity(0, {CORES[0]})  # which the gateway inherits
                extras = self._extras.get(label, NO_EXTRAS)
                to = stack.enter_context(gateway(label, tree, self._up, extras))
                os.sched_setaffinity(0, {CORES[-1]})
                self._gateways.append(to)
                self._fact("start_s", label, to.start_s)
                self._fact("memory_at_the_start_mb", label, rss_mb(to.pid))
            stack.callback(self._gateways.clear)
            for to in self._gateways:
                await wait_until_calm(to.pid)
            await self._idle()
            yield
            for to in self._gateways:
                self._fact("memory_at_the_end_mb", to.label, rss_mb(to.pid))

    def _fact(self, name: str, label: str, value: float) -> None:
        self.measured.facts.setdefault(name, {}).setdefault(label, []).append(round(value, 2))

    async def _choose(self) -> None:
        """Choose the prompts of each length. Without a call of the endpoint, no question teaches the gateways."""
        texts, read, scene = read_wordings(), token_counter(), itertools.count()
        for length in self.sizes.lengths:
            candidates = islice(groups_of(texts, length, read, self._draw), self.sizes.candidates)
            served, refused, asked, found = list[Group](), list[Group](), 0, 0
            # A scope with more entries has a higher threshold, so these scopes are as large as those of a scene.
            while len(served) < self.sizes.pool and (tried := list(islice(candidates, self.sizes.pool))):
                stored, at = [group.stored for group in tried], next(scene)
                paraphrases = await self._ask(at, stored, [group.paraphrase for group in tried], _is_hit)
                near = await self._ask(at, stored, [group.near for group in tried], _is_refused)
                asked, found = asked + len(tried), found + len(paraphrases)
                for number in sorted(near):
                    (served if number in paraphrases else refused).append(tried[number])
            groups = [*served, *refused][: self.sizes.pool]
            far = list(islice(far_of(texts, length, read, self._draw), 3 * self.sizes.pool))
            lonely = await self._ask(next(scene), [group.stored for group in groups], far, _is_lonely)
            self._pools[length] = Pool(groups, min(len(served), len(groups)), [far[at] for at in sorted(lonely)])
            counts = {"asked": asked, "served": found, "measured": self._pools[length].served}
            self.measured.facts.setdefault("paraphrases", {})[length] = counts
            print(f"{length} tokens: {counts}", flush=True)

    async def _ask(
        self, scene: int, stored: Sequence[Prompt], asked: Sequence[Prompt], expected: Callable[[bytes], bool]
    ) -> set[int]:
        """Return the numbers of the questions that all gateways answer as expected, with these ones stored."""
        found = set(range(len(asked)))
        for to in self._gateways:
            await heads(to, requests_of(stored, scene, more=to.extras.headers))
            await wait_until_calm(to.pid)
            more = f"Cache-Control: only-if-cached\r\n{to.extras.headers}"
            said = await heads(to, requests_of(asked, scene, more=more))
            found &= {at for at, head in enumerate(said) if expected(head)}
        return found

    async def _idle(self) -> None:
        """Measure what the gateways take without requests."""
        before, began = [thread_seconds(to.pid) for to in self._gateways], time.perf_counter()
        await asyncio.sleep(self.sizes.idle_s)
        for to, first in zip(self._gateways, before, strict=True):
            seconds = time.perf_counter() - began
            to.idle = {number: each / seconds for number, each in difference(first, thread_seconds(to.pid)).items()}

    async def _round(self, number: int) -> None:
        """Measure all scenes. Near misses come last, as the gateways learn from their answers."""
        scenes = list(enumerate(itertools.product((False, True), self.sizes.lengths)))
        for scene, (system, length) in scenes:
            for to in self._gateways:
                await self._store(to, length, scene, system)
        for kinds in ([kind for kind in KINDS if kind != NEAR], [NEAR]):
            for (scene, (system, length)), kind in itertools.product(scenes, kinds):
                if self._pools[length].measures(kind):
                    await self._measure(number, scene, system, length, kind)

    async def _measure(self, number: int, scene: int, system: bool, length: int, kind: str) -> None:
        """Measure one kind of a scene at one connection and at many, and what it is compared with."""
        pool = self._pools[length]
        if not system:
            texts = [embedded_text(prompt) for prompt in pool.prompts(kind, ONE, self.sizes)[:EMBEDDED]]
            alone = Window(len(texts), self._encoder.cost_us(texts))
            self.measured.add(Cell(kind, length, False, ONE, server=EMBEDDING), alone)
        for connections in CONNECTIONS:
            prompts = pool.prompts(kind, connections, self.sizes)
            plain = requests_of(prompts, scene, system=system, stream=kind == STREAM)
            if kind in (FAR, STREAM):
                await self._measure_baselines(kind, length, system, connections, plain)
            for to in self._gateways[:: -1 if number % 2 else 1]:  # none is always the first
                more = to.extras.headers
                requests = requests_of(prompts, scene, system=system, stream=kind == STREAM, more=more)
                figures, _ = await window(to, requests, kind, connections)
                self.measured.add(Cell(kind, length, system, connections, to.label), figures)

    async def _store(self, to: Gateway, length: int, scene: int, system: bool = False) -> None:
        stored = [group.stored for group in self._pools[length].groups]
        await heads(to, requests_of(stored, scene, system=system, more=to.extras.headers))
        await wait_until_calm(to.pid)

    async def _measure_baselines(
        self, kind: str, length: int, system: bool, connections: int, requests: list[bytes]
    ) -> None:
        """Measure the bare servers, and the endpoint itself. Streams apart, all kinds cost them the same."""
        of = STREAM if kind == STREAM else ""
        port, pid = self._proxy if of else self._fixed
        some = requests if of else list(islice(itertools.cycle(requests), self.sizes.exact))
        load = await run(port, pid, some, connections=connections)
        self.measured.add(Cell(of, length, system, connections, server=BARE), _plain(load))
        if connections == ONE:
            load = await run(self._up, pid, some, connections=connections)
            self.measured.add(Cell(of, length, system, connections, server=ENDPOINT), _plain(load))

    async def _stages(self) -> None:
        """Measure where the time goes, at one connection. Each scene has all prompts of one length."""
        self.measured.facts["stage_tokens"], pool = STAGE_TOKENS, self._pools[STAGE_TOKENS]
        for to in self._gateways:
            to.process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(self.sizes.idle_s)
            idle = Samples.read(await self._samples(to))
            for scene in range(self.sizes.stage_scenes):
                await self._store(to, STAGE_TOKENS, scene)
            for kinds in ([kind for kind in KINDS if kind != NEAR], [NEAR]):
                for scene, kind in itertools.product(range(self.sizes.stage_scenes), kinds):
                    counts = (ONE,) if kind in (EXACT, STREAM) else CONNECTIONS
                    prompts = [prompt for count in counts for prompt in pool.prompts(kind, count, self.sizes)]
                    requests = requests_of(prompts, scene, stream=kind == STREAM, more=to.extras.headers)
                    to.process.send_signal(signal.SIGUSR1)
                    _, spent = await window(to, requests, kind, ONE, idle_share=idle.share)
                    samples = Samples.read(await self._samples(to))
                    staged = self.measured.staged.setdefault((kind, to.label), StageCosts())
                    staged.add(samples, idle, spent, len(requests))

    async def _samples(self, to: Gateway) -> Mapping[str, Any]:
        path = to.folder / "samples.json"
        to.process.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(30):
            while not path.exists():
                await asyncio.sleep(0.01)
        said: Mapping[str, Any] = json.loads(path.read_text())
        path.unlink()
        return said


def _is_hit(head: bytes) -> bool:
    return b"detail=semantic" in head


def _is_refused(head: bytes) -> bool:
    """Return whether a neighbour was judged, and not served."""
    return b"not_cached" in head and b"verify" in head


def _is_lonely(head: bytes) -> bool:
    return b"not_cached" in head and b"verify" not in head


def _plain(load: Load) -> Window:
    return Window(load.requests, load.cpu_us, load.p50_ms, load.per_second)


def write_page(page: Path, measured: Measurements) -> None:
    """Write the tables and the start between their markers."""
    text = with_part(page.read_text(), "default table", "\n".join(measured.lines((False,))) + "\n")
    text = with_part(text, "default stages", "\n".join(measured.stage_lines()) + "\n")
    page.write_text(with_part(text, "default start", "\n".join(measured.start_lines()) + "\n"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-default", description=__doc__)
    parser.add_argument("--rounds", type=int, default=Sizes().rounds)
    parser.add_argument("--quick", action="store_true", help="a few requests of each kind, to see that all works")
    parser.add_argument(
        "--tree", action="append", default=[], type=named_tree, metavar="[NAME=]PATH",
        help="another checkout, whose gateway is measured by turns with this one's; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--all-on", action="store_true", help="also measure this checkout with traces (1 %%), CORS and TLS"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--markdown", action="store_true", help="write docs/performance.md, and its figures as JSON")
    parser.add_argument("--embed", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.embed:
        embed()
        return
    sizes = QUICK if given.quick else replace(Sizes(), rounds=given.rounds)
    bench = Bench(sizes, {HERE: ROOT, **dict(given.tree)}, with_all_on=given.all_on)
    asyncio.run(bench.all())
    measured = bench.measured
    measured.facts |= {
        "late_embeddings_dropped": measured.late_embeddings(),
        "windows_not_settled": measured.unsettled_windows(),
    }
    print(
        "\n".join(
            [*measured.lines(), "", *measured.stage_lines(), "", *measured.start_lines(), *measured.cells_off_path()]
        )
    )
    if given.all_on:
        print("\n".join(["", *measured.ratio_lines(ALL_ON)]))
    print(json.dumps(measured.facts))
    for path in [given.json] * bool(given.json) + [FIGURES] * given.markdown:
        path.write_text(json.dumps(measured.as_dict(), indent=1) + "\n")
    if given.markdown:
        write_page(PAGE, measured)


if __name__ == "__main__":
    main()
