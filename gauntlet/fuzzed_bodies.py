"""Bodies of any content must get an answer below 500, and must not stall the event loop."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

from bench.gateways import server
from bench.protocols import PROTOCOLS, Protocol
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import ONE_REQUEST_S, stalls_of, target
from tests.fixtures.triton import free_ports
from tests.fixtures.wire import Incomplete, Wire, connected
from tests.http_server.test_bad_input import GOOD, MALFORMED, WRONG_TYPES, with_field

AT_ONCE = 8
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 2**53, "", "x", "\x00", "\u202e", "\ud83d\ude00", [], {}, [[]], [None],
    {"": {}}, "9" * 400, "x" * 5_000, list(range(500)),
)  # fmt: skip
CHAT, *OTHERS = PROTOCOLS
DOCUMENTS = {each.name: json.loads(each.body) for each in OTHERS if each.body.endswith(b"}")} | {CHAT.name: GOOD}
# Fields of the dialects, with a request of each. Those of chat have the values that the tests refuse.
FIELDS = {
    "openai": (
        *WRONG_TYPES, "tools", "tool_choice", "response_format", "stop", "seed", "logprobs", "metadata", "x", "prompt",
        "input", "instructions", "previous_response_id",
    ),
    "anthropic": (
        "model", "messages", "system", "max_tokens", "tools", "tool_choice", "stop_sequences", "thinking", "x",
    ),
    "kserve": ("inputs", "outputs", "parameters", "id", "x"),
    "tfserving": ("instances", "inputs", "signature_name", "x"),
    "torchserve": ("data", "x"),
}  # fmt: skip
MATCH = {"anthropic": "/v1/messages", "kserve": "/v2/*", "tfserving": "/v1/models/*", "torchserve": "/predictions/*"}
CORPUS = [*MALFORMED.values(), *(with_field(field, value) for field, values in WRONG_TYPES.items() for value in values)]
FULL_INPUTS, QUICK_INPUTS = 250_000, 1_500
# The endpoint sends one embedding, whatever the request has, and streams chunks of chat to all: faults of its own.
OF_ENDPOINT = (b"the response has 1 embeddings: expected", b"an embeddings answer is a stream")
INPUT_S = 0.01  # of a busy machine, and a generous one


def policy() -> str:
    """Return a policy with both caches and a route for each adapter."""
    caches = "cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}}"
    routes = [
        f'  - {{name: {name}, match: {{path: "{path}"}}, {caches}, route: {{backend: {name}}}}}'
        for name, path in MATCH.items()
    ]
    default = f"  - {{name: default, match: {{}}, {caches}, route: {{backend: main}}}}"
    return "\n".join(["version: 1", "routes:", *routes, default]) + "\n"


def value(draw: random.Random, depth: int = 0) -> Any:
    """Return any JSON value, nested at most four deep."""
    kind = draw.random()
    if depth == 4 or kind < 0.6:
        return draw.choice(ODD)
    if kind < 0.8:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    keys = ("role", "content", "type", "text", "image_url", "function", "name", "shape", "datatype", "data", "")
    return {draw.choice(keys): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def body(protocol: Protocol, draw: random.Random) -> bytes:
    """Return a body: one of the corpus, a request with odd fields, or one with changed bytes."""
    kind = draw.random()
    if kind < 0.2:
        return draw.choice(CORPUS)
    good, data = DOCUMENTS.get(protocol.name), bytearray(protocol.body)
    if good is not None and kind < 0.7:
        odd = {draw.choice(FIELDS[protocol.backend]): value(draw) for _ in range(draw.randint(1, 3))}
        data = bytearray(json.dumps({**good, **odd}).encode())
    if kind >= 0.5:
        for _ in range(draw.randint(1, 5)):
            data[draw.randrange(len(data))] = draw.choice(b'{}[]",:\\0-eE.\x00\xff u')
    return bytes(data)


def request(draw: random.Random) -> bytes:
    protocol = CHAT if draw.random() < 0.4 else draw.choice(OTHERS)
    sent, headers = body(protocol, draw), protocol.headers.encode()
    start = b"POST %b HTTP/1.1\r\nHost: g\r\n%b" % (protocol.path.encode(), headers)
    return start + b"Content-Length: %d\r\n\r\n%b" % (len(sent), sent)


async def run(inputs: int | None, quick: bool) -> Finding:
    """Send bodies over a few connections that are kept, and read the gateway's figure of its stalls."""
    count, draw = inputs or (QUICK_INPUTS if quick else FULL_INPUTS), random.Random(3)
    statuses, bad, source = Counter[str](), list[str](), iter(range(count))
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    others = {name: {"adapter": name, "url": url} for name in MATCH}
    with server(["bench.servers", "protocols", str(port)], port):
        async with target(url + "/v1", policy(), others=others) as it:

            async def exchange(wire: Wire) -> None:
                for _ in source:
                    sent = request(draw)
                    await wire.send(sent)
                    try:
                        answer = await asyncio.wait_for(wire.message(), ONE_REQUEST_S)
                    except TimeoutError:
                        bad.append(f"no answer within {ONE_REQUEST_S:g} s for {sent[:300]!r}")
                        return
                    if answer.status < 500:
                        statuses[f"{answer.status // 100}xx"] += 1
                    elif any(fault in answer.body for fault in OF_ENDPOINT):
                        statuses["faults of the endpoint"] += 1
                    else:
                        statuses["5xx"] += 1
                        bad.append(f"{answer.status} {answer.body[:200]!r} for {sent[:300]!r}")

            async def client() -> None:
                while sum(statuses.values()) + AT_ONCE <= count:
                    with suppress(asyncio.IncompleteReadError, Incomplete, ConnectionError):  # a refusal may end it
                        async with connected(it.url) as wire:
                            await exchange(wire)

            began = time.monotonic()
            async with stalls_of(it) as stalls:
                await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            lasted_s = time.monotonic() - began
    shown = ", ".join(f"{number:,} {status}" for status, number in sorted(statuses.items()))
    figure = (
        f"{count:,} bodies of {len(PROTOCOLS)} operations, {count / lasted_s:.0f} a second: {shown}; {stalls.figure}"
    )
    return verdict_of(
        figure,
        {
            f"{len(bad)} answers of 500 and more, or none, the first: {''.join(bad[:1])}": not bad,
            **stalls.levels,
            f"{sum(statuses.values())} of {count} bodies were answered": sum(statuses.values()) >= 0.99 * count,
        },
    )


def of_inputs(count: int) -> Part:
    """Return the part with that many bodies."""
    return Part(NAME, LEVEL, partial(run, count), extra_s=INPUT_S * count)


NAME, LEVEL = "fuzzed bodies", "0 5xx; no stall of the event loop above 100 ms after the start"
PART = Part(NAME, LEVEL, partial(run, None), extra_s=INPUT_S * FULL_INPUTS)
