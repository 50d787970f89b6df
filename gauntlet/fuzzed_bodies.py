"""Bodies of any content must get an answer below 500, and must not stall the event loop."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from bench.gateways import free_port, server
from gauntlet.part import Finding, Part, judged
from gauntlet.target import ONE_REQUEST_S, STALL_MS, own_stall_ms, target
from tests.fixtures.gateways import BOTH_CACHES
from tests.fixtures.wire import Incomplete, Wire, connected
from tests.http_server.test_bad_input import GOOD, MALFORMED, WRONG_TYPES, chat, with_field

AT_ONCE = 8
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 2**53, "", "x", "\x00", "\u202e", "\ud83d\ude00", [], {}, [[]], [None],
    {"": {}}, "9" * 400, "x" * 5_000, list(range(500)),
)  # fmt: skip
FIELDS = (*WRONG_TYPES, "tools", "tool_choice", "response_format", "stop", "seed", "logprobs", "metadata", "x")
CORPUS = [*MALFORMED.values(), *(with_field(field, value) for field, values in WRONG_TYPES.items() for value in values)]


def value(draw: random.Random, depth: int = 0) -> Any:
    """Return any JSON value, nested at most four deep."""
    kind = draw.random()
    if depth == 4 or kind < 0.6:
        return draw.choice(ODD)
    if kind < 0.8:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    keys = ("role", "content", "type", "text", "image_url", "function", "name", "")
    return {draw.choice(keys): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def body(draw: random.Random) -> bytes:
    """Return a body: one of the corpus, a request with odd fields, or one with changed bytes."""
    kind = draw.random()
    if kind < 0.2:
        return draw.choice(CORPUS)
    document = {**GOOD, **{draw.choice(FIELDS): value(draw) for _ in range(draw.randint(1, 3))}}
    data = bytearray(json.dumps(document).encode() if kind < 0.6 else chat(stop=["a"], seed=1, user="u"))
    if kind >= 0.5:
        for _ in range(draw.randint(1, 5)):
            data[draw.randrange(len(data))] = draw.choice(b'{}[]",:\\0-eE.\x00\xff u')
    return bytes(data)


def request(draw: random.Random) -> bytes:
    sent = body(draw)
    path = draw.choice((b"chat/completions", b"chat/completions", b"completions", b"embeddings", b"responses"))
    return b"POST /v1/%b HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (path, len(sent), sent)


async def run(quick: bool) -> Finding:
    """Send bodies over a few connections that are kept, and read the gateway's figure of its stalls."""
    count, draw = 1_000 if quick else 50_000, random.Random(3)
    statuses, bad, source = Counter[int](), list[str](), iter(range(count))
    port = free_port()
    with server(["bench.servers", "upstream", str(port)], port):
        async with target(f"http://127.0.0.1:{port}/v1", BOTH_CACHES) as it:
            before_ms = await own_stall_ms(it)

            async def exchange(wire: Wire) -> None:
                for _ in source:
                    sent = request(draw)
                    await wire.send(sent)
                    async with asyncio.timeout(ONE_REQUEST_S):
                        answer = await wire.message()
                    statuses[answer.status // 100] += 1
                    if answer.status >= 500:
                        bad.append(f"{answer.status} {answer.body[:200]!r} for {sent[:300]!r}")

            async def client() -> None:
                while sum(statuses.values()) + AT_ONCE <= count:
                    with suppress(asyncio.IncompleteReadError, Incomplete, ConnectionError):  # a refusal may end it
                        async with connected(it.url) as wire:
                            await exchange(wire)

            await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            stall_ms = await own_stall_ms(it)
    shown = ", ".join(f"{number} {status}xx" for status, number in sorted(statuses.items()))
    figure = f"{count} bodies: {shown}; longest stall of its own {stall_ms:.0f} ms ({before_ms:.0f} ms at start)"
    return judged(
        figure,
        {
            f"{len(bad)} answers of 500 and more, the first: {''.join(bad[:1])}": not bad,
            f"the event loop stalled for {stall_ms:.0f} ms": stall_ms <= max(STALL_MS, before_ms),
            f"{sum(statuses.values())} of {count} bodies were answered": sum(statuses.values()) >= 0.99 * count,
        },
    )


PART = Part("fuzzed bodies", "0 5xx; no stall of the event loop above 100 ms after the start", run)
