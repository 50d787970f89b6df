"""Measures the cost of a request in each protocol, as a ratio to OpenAI's chat completions in the same run.

`python -m bench.dialects [--requests N] [--rounds N]`

One gateway with exact caches only runs in front of an endpoint. The endpoint answers each path in its protocol, with
constant bytes. "Not seen before" requests have a unique header, so that the front does not know them and parses them.
"Translated" is an Anthropic message to an OpenAI backend, with both translations.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.gateways import free_port, server
from bench.load import run
from bench.protocols import PROTOCOLS, Protocol

CONNECTIONS = 8
CONFIG = """
version: 1
server: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}}
embedder: {{adapter: hash}}
backends:
"""
BACKEND = "  {name}: {{adapter: {adapter}, url: 'http://127.0.0.1:{upstream}{root}'}}\n"
ROUTE = """
  - {{name: {name}-uncached, match: {{path: "{path}", headers: {{{via}x-uncached: "1"}}}}, route: {{backend: {name}}}}}
  - name: {name}
    match: {{path: "{path}"{only}}}
    cache: {{exact: {{ttl: 1h}}}}
    route: {{backend: {name}}}
"""
DEFAULT = "  - {name: default, match: {}, route: {backend: chat-completion}}\n"
VIA = 'x-via: "openai"'  # tells what is translated from what goes on as it is
TRANSLATED = replace(
    next(each for each in PROTOCOLS if each.name == "messages"),
    name="messages, translated",
    backend="openai",
    headers="Content-Type: application/json\r\nx-via: openai\r\n",
    root="/v1",
)
ASKED = (TRANSLATED, *PROTOCOLS)  # the narrower route first
PATHS = ("exact hit", "exact hit, not seen before", "miss, caches off")


def name_of(protocol: Protocol) -> str:
    return protocol.name.lower().replace(",", "").replace(" ", "-")


def files(folder: Path, port: int, upstream: int) -> None:
    (folder / "policies").mkdir()
    backends = [
        BACKEND.format(name=name_of(each), adapter=each.backend, upstream=upstream, root=each.root) for each in ASKED
    ]
    routes = [
        ROUTE.format(
            name=name_of(each),
            path=each.path,
            via=f"{VIA}, " if each is TRANSLATED else "",
            only=f", headers: {{{VIA}}}" if each is TRANSLATED else "",
        )
        for each in ASKED
    ]
    (folder / "config.yaml").write_text(CONFIG.format(port=port, admin=free_port()) + "".join(backends))
    (folder / "policies" / "default.yaml").write_text("version: 1\nroutes:" + "".join(routes) + DEFAULT)


@contextmanager
def serve_gateway() -> Iterator[tuple[int, int]]:
    """Run a gateway with an endpoint of every protocol, and yield its port and process id."""
    upstream, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder, server(["bench.servers", "protocols", str(upstream)], upstream):
        files(Path(folder), port, upstream)
        with server(["gateway", "serve"], port, Path(folder)) as process:
            yield port, process.pid


def request_of(protocol: Protocol, path: str, number: int) -> bytes:
    extra = f"x-number: {number}\r\n" if "not seen" in path else ""
    extra += "x-uncached: 1\r\n" if "miss" in path else ""
    head = f"POST {protocol.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{protocol.headers}{extra}"
    return f"{head}Content-Length: {len(protocol.body)}\r\n\r\n".encode() + protocol.body


async def measure(requests: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the microseconds of CPU per request in each round, by path and protocol."""
    found: dict[str, dict[str, list[float]]] = {path: {each.name: [] for each in ASKED} for path in PATHS}
    with serve_gateway() as (port, pid):
        for each in ASKED:
            await run(port, pid, [request_of(each, "exact hit", 0)], connections=1)
        for number in range(rounds + 1):
            for path in PATHS:
                expect = b"detail=policy" if "miss" in path else b"detail=exact"
                for each in ASKED:
                    given = [request_of(each, path, number * requests + i) for i in range(requests)]
                    load = await run(port, pid, given, connections=CONNECTIONS, expect=expect)
                    if number:  # the first round warms everything up
                        found[path][each.name].append(load.cpu_us)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found = asyncio.run(measure(given.requests, given.rounds))
    print(f"{'CPU us a request (ratio to a chat completion)':<46}" + "".join(f"{path:>30}" for path in PATHS))
    for each in (*PROTOCOLS, TRANSLATED):
        cells = []
        for path in PATHS:
            chat, own = found[path][PROTOCOLS[0].name], found[path][each.name]
            ratio = statistics.median(b / a for a, b in zip(chat, own, strict=True))
            cells.append(f"{statistics.median(own):>22.0f} ({ratio:.2f})")
        print(f"{each.name:<46}" + "".join(f"{cell:>30}" for cell in cells))


if __name__ == "__main__":
    main()
