"""Measures the hit rate of prefix caches behind the real balancer: `python -m bench.prefixes [--seed N]`.

Each upstream is a simulated model server. Its prefix cache holds blocks in a bounded memory and evicts the least
recently used ones, as vLLM does. The time to first token grows with the tokens that were not in it. Conversations of
some applications grow turn by turn. Time is simulated, so only the costs of a choice depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.config import OpenAIBackendConfig, Timeouts
from gateway.context import RequestContext
from gateway.dialects.openai.dialect import OpenAI
from gateway.features.prefixes.prefixes import PrefixTable, pick_warm, prefix_blocks
from gateway.messages import FullBody, Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict
from gateway.request_fields import Client
from gateway.streams import BufferedBody
from gateway.upstream.backend import BackendRules, UpstreamPool
from gateway.upstream.concurrency_limiter import LimitedBackend
from gateway.upstream.load_balancer import LoadCandidate
from gateway.upstream.upstream import Upstream, UpstreamConfig

CHAT = "/v1/chat/completions"
BLOCK = 64  # characters, the 16 tokens of vLLM's blocks
TOKEN = 4  # characters
PREFILL = 8_000.0  # tokens a second of one call
DECODE_S = 0.4
PARALLEL = 16  # calls that a server runs at the same time
SECTION = OpenAIBackendConfig(
    adapter="openai",
    url="http://127.0.0.1:9/v1",
    max_concurrency=PARALLEL,
    adaptive=False,
    tenant_share=1.0,
    timeouts=Timeouts.model_validate({"first_byte": "60s"}),
)
APPLICATIONS = (9, 4, 2, 1)  # shares of the conversations
SYSTEM_TOKENS = 1_500
TURNS = (2, 12)
SHARED = "one cache for all"  # the bound: the servers share one cache that has the memory of all
BALANCERS = ("round robin", "least load", "conversation", "prefix", SHARED)
WORDS = [f"w{i}" for i in range(3_000)]


class SimulatedTime(selectors.SelectSelector):
    """A selector that never waits: it moves its clock to the next timer of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class PrefixCache:
    """The blocks that a server has in memory, with the hash of all text up to their end."""

    def __init__(self, tokens: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._size = tokens * TOKEN // BLOCK

    def read(self, text: str) -> int:
        """Return the tokens of the longest prefix that is in memory, and keep all blocks of the text."""
        chain, cached, hashes = 0, 0, []
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            chain = hash((chain, text[start : start + BLOCK]))
            hashes.append(chain)
        for known in hashes:
            if known not in self._blocks:
                break
            cached += BLOCK // TOKEN
        for each in reversed(hashes):
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        while len(self._blocks) > self._size:
            self._blocks.popitem(last=False)
        return cached


class ModelServer(LimitedBackend):
    """A simulated model server, behind the gateway's own limit on calls in flight."""

    http, speaks = True, "openai"

    def __init__(self, cache: PrefixCache, bench: Measurement, clock: SimulatedTime) -> None:
        super().__init__("main", SECTION, clock)
        self._cache = cache
        self._bench = bench

    async def send(self, request: RequestContext) -> Response:
        assert request.call is not None
        started = request.clock.monotonic()
        text = "".join(message["content"] for message in request.call.body["messages"])
        tokens = len(text) // TOKEN
        permit = self._limiter.acquire_nowait(request) or await self._limiter.acquire(request)
        cached = self._cache.read(text)
        await asyncio.sleep((tokens - cached) / PREFILL)
        self._bench.first_tokens_s.append(request.clock.monotonic() - started)
        await asyncio.sleep(DECODE_S)
        permit.release()
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        return Response(200, (), FullBody(orjson.dumps({"choices": [], "usage": usage})), Provenance(Verdict.MISS))

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        return []

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        """Close nothing: the server is simulated."""


@dataclass
class Measurement:
    """The figures of one run."""

    first_tokens_s: list[float] = field(default_factory=list)
    telemetry: Telemetry = field(default_factory=Telemetry)

    @property
    def hit_rate(self) -> float:
        """The share of the input tokens that came from a prefix cache, by the gateway's own counter."""
        counted = self.telemetry.input_tokens.values
        cached, fresh = counted.get(("main", "cached"), 0.0), counted.get(("main", "uncached"), 0.0)
        return cached / (cached + fresh)

    @property
    def moved_share(self) -> str:
        """The share of the calls that left the upstream with their longest prefix; empty for other balancers."""
        picks = {outcome: count for (_, outcome), count in self.telemetry.prefix_picks.values.items()}
        return f"{picks.get('moved', 0.0) / sum(picks.values()):.1%}" if picks else ""

    def ttft_s(self, share: float) -> float:
        return sorted(self.first_tokens_s)[int(share * len(self.first_tokens_s))]


@dataclass(frozen=True)
class Conversation:
    """A conversation of one application: its system prompt, and each turn with the seconds of thought before it."""

    system: str
    turns: tuple[tuple[float, str, str], ...]  # seconds, the user's words, the answer

    def prompts(self) -> Iterator[tuple[float, list[dict[str, str]]]]:
        messages = [{"role": "system", "content": self.system}]
        for pause_s, asked, answered in self.turns:
            messages = [*messages, {"role": "user", "content": asked}]
            yield pause_s, messages
            messages = [*messages, {"role": "assistant", "content": answered}]


def conversations(count: int, draw: random.Random) -> list[Conversation]:
    def text(tokens: int) -> str:
        words = " ".join(draw.choices(WORDS, k=tokens))
        return words[: tokens * TOKEN]

    systems = [text(SYSTEM_TOKENS) for _ in APPLICATIONS]
    return [
        Conversation(
            draw.choices(systems, APPLICATIONS)[0],
            tuple(
                (draw.expovariate(1 / 8.0), text(draw.randint(20, 200)), text(draw.randint(80, 400)))
                for _ in range(draw.randint(*TURNS))
            ),
        )
        for _ in range(count)
    ]


Send = Callable[[RequestContext], Any]


def balancer(kind: str, servers: Sequence[ModelServer], clock: SimulatedTime, bench: Measurement, seed: int) -> Send:
    """Return what sends a request: a pool of the gateway, or pools of one upstream in turn."""

    def pool(members: Sequence[tuple[int, ModelServer]], sticky: Any) -> UpstreamPool:
        rules = BackendRules(sticky=sticky, counts_cached=True)
        upstreams = [
            Upstream(UpstreamConfig(server, f"http://server-{i}"), clock, bench.telemetry) for i, server in members
        ]
        return UpstreamPool("main", upstreams, clock, bench.telemetry, rules, random.Random(seed).random)

    if kind != "round robin":
        return pool(list(enumerate(servers)), kind if kind in ("conversation", "prefix") else "off").call
    pools, count = [pool([(i, server)], "off") for i, server in enumerate(servers)], iter(range(1 << 30))
    return lambda request: pools[next(count) % len(pools)].call(request)


def run(kind: str, talks: Sequence[Conversation], rate: float, servers: int, memory: int, seed: int) -> Measurement:
    """Run all conversations, which begin at `rate` a second, against servers with `memory` tokens of cache each."""
    clock, bench = SimulatedTime(), Measurement()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = clock.monotonic  # type: ignore[method-assign]
    draw = random.Random(seed)

    async def converse(conversation: Conversation, begins: float, send: Send) -> None:
        await asyncio.sleep(begins)
        for pause_s, messages in conversation.prompts():
            await asyncio.sleep(pause_s)
            await send(request_of(messages, clock))

    async def everything() -> None:
        shared = PrefixCache(servers * memory)
        members = [ModelServer(shared if kind == SHARED else PrefixCache(memory), bench, clock) for _ in range(servers)]
        send = balancer(kind, members, clock, bench, seed)
        begins, talking = 0.0, []
        for conversation in talks:
            begins += draw.expovariate(rate)
            talking.append(converse(conversation, begins, send))
        await asyncio.gather(*talking)

    try:
        loop.run_until_complete(everything())
    finally:
        loop.close()
    return bench


def request_of(messages: Sequence[dict[str, str]], clock: SimulatedTime) -> RequestContext:
    body = orjson.dumps({"model": "m", "messages": messages})
    request = RequestContext(
        request_id="bench", method="POST", path=CHAT, query="", headers=CIMultiDict(), body_source=BufferedBody(body),
        clock=clock, client=Client("acme", "acme"),
    )  # fmt: skip
    request.call = OpenAI().parse(CHAT, body, {})
    return request


def pick_cost_us(size: int) -> float:
    """Return the microseconds of one choice for a prompt of `size` bytes: the digests, the lookup and the record."""
    turns = [{"role": "user", "content": "word " * 200} for _ in range(max(1, size // 1_000))]
    call = OpenAI().parse(CHAT, orjson.dumps({"model": "m", "messages": turns}), {})
    table, candidates = PrefixTable(), [LoadCandidate(f"http://server-{i}", 0, 1.0) for i in range(2)]
    rounds, best = max(5, 400_000 // size), float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(rounds):
            blocks = prefix_blocks(call, "acme")
            index, _ = pick_warm(blocks, table.names(blocks), candidates)
            table.record(blocks, candidates[index].name)
        best = min(best, (time.perf_counter() - started) / rounds)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--conversations", type=int, default=300)
    given = parser.parse_args()
    talks = conversations(given.conversations, random.Random(given.seed))
    print("| servers | cache, tokens | balancer | prefix tokens from the cache | TTFT p50 ms | TTFT p95 ms | moved |")
    print("|---|---|---|---|---|---|---|")
    for servers, rate, memory in ((2, 1.0, 40_000), (2, 1.0, 120_000), (4, 2.0, 40_000)):
        for kind in BALANCERS:
            bench = run(kind, talks, rate, servers, memory, given.seed)
            print(
                f"| {servers} | {memory:,} | {kind} | {bench.hit_rate:.1%} | {1000 * bench.ttft_s(0.5):.0f} "
                f"| {1000 * bench.ttft_s(0.95):.0f} | {bench.moved_share} |"
            )
    print("\n| prompt | us a choice |\n|---|---|")
    for size in (2_000, 20_000, 200_000):
        print(f"| {size // 1000} kB | {pick_cost_us(size):.0f} |")


if __name__ == "__main__":
    main()
