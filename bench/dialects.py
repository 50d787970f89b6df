"""What a request costs in Anthropic's protocol, as a ratio to OpenAI's chat completions in the same run.

`python -m bench.dialects [--requests N] [--rounds N]`

One gateway before an endpoint that answers a constant chat completion, so that a miss of Anthropic's is one that is
translated there and back. "not seen before": other bytes for the same entry, so that the request is parsed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from typing import Any

from bench.__main__ import QUESTION, SYSTEM, free_port, gateway, server
from bench.load import request_bytes, run

CONNECTIONS = 8
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def body(path: str, model: str = "bench", **fields: Any) -> bytes:
    turn = {"role": "user", "content": QUESTION}
    if path == CHAT:
        return json.dumps(
            {"model": model, "messages": [{"role": "system", "content": SYSTEM}, turn], **fields}
        ).encode()
    return json.dumps({"model": model, "max_tokens": 512, "system": SYSTEM, "messages": [turn], **fields}).encode()


def loads(path: str, requests: int, draw: random.Random) -> dict[str, tuple[list[bytes], bytes]]:
    """name -> (bodies, what the gateway says of each)"""

    def unseen(**fields: Any) -> list[bytes]:
        return [body(path, metadata={"user_id": f"{draw.getrandbits(60)}"}, **fields) for _ in range(requests)]

    return {
        "exact hit": ([body(path)] * requests, b"detail=exact"),
        "exact hit, not seen before": (unseen(), b"detail=exact"),
        "stream hit": ([body(path, stream=True)] * requests, b"detail=exact"),
        "stream hit, not seen before": (unseen(stream=True), b"detail=exact"),
        "miss, caches off": ([body(path, "uncached")] * requests, b"detail=policy"),
    }


async def measured(requests: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """name -> path -> microseconds of CPU a request, of each round"""
    up, draw = free_port(), random.Random(7)
    found: dict[str, dict[str, list[float]]] = {}
    with server(["bench.servers", "upstream", str(up)], up), gateway(up, "hash") as (process, port, _):
        for path in (CHAT, MESSAGES):
            await run(port, process.pid, [request_bytes(body(path), path)], connections=1)
        for number in range(rounds + 1):
            for path in (CHAT, MESSAGES):
                for name, (bodies, expect) in loads(path, requests, draw).items():
                    given = [request_bytes(each, path) for each in bodies]
                    load = await run(port, process.pid, given, connections=CONNECTIONS, expect=expect)
                    if number:  # the first round warms everything up
                        found.setdefault(name, {}).setdefault(path, []).append(load.cpu_us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{'':<30} {'chat us':>8} {'messages us':>12} {'ratio':>6}")
    for name, paths in asyncio.run(measured(given.requests, given.rounds)).items():
        ratio = statistics.median(b / a for a, b in zip(paths[CHAT], paths[MESSAGES], strict=True))
        chat, messages = (statistics.median(paths[path]) for path in (CHAT, MESSAGES))
        print(f"{name:<30} {chat:>8.0f} {messages:>12.0f} {ratio:>6.2f}")


if __name__ == "__main__":
    main()
