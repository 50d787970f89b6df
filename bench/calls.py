"""Counts the Python function calls of a request in a real gateway: `python -m bench.calls [--by-module PATH]`.

Unlike times, the counts are the same on any machine at any load, so tests/test_calls.py can check them. A function
counts as often as a request calls it, rounded, in the round of `ROUNDS` with the fewest calls. That leaves out the
calls of other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import site
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gateway
from bench.call_counter import OPTION
from bench.fixtures import CONFIG, POLICY, body, new_question, other_case
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.load import request_bytes, run
from bench.protocols import EVENTS, QUESTION

REQUESTS, STREAMS, ROUNDS = 30, 4, 3
PATIENCE_S = 30.0
CHAT = "/v1/chat/completions"
OURS = str(Path(gateway.__file__).parent)


@dataclass(frozen=True)
class RequestPath:
    """A path through the gateway. `expect`: text in the head of each answer. `question`: the one of each request.

    A `live` stream takes as long as its events do, so there are fewer of them.
    """

    expect: str
    model: str = "bench"
    path: str = CHAT
    question: Callable[[random.Random], str] = lambda _: QUESTION
    new_bytes: bool = False  # each request in bytes that were never seen
    live: bool = False

    @property
    def count(self) -> int:
        return STREAMS if self.live else REQUESTS

    def requests(self, draw: random.Random) -> list[bytes]:
        return [request_bytes(self._body(draw), self.path) for _ in range(self.count)]

    def _body(self, draw: random.Random) -> bytes:
        fields = {"metadata": {"n": draw.getrandbits(60)}} if self.new_bytes else {}
        return body(self.question(draw), self.model, **fields, **({"stream": True} if self.live else {}))


PATHS: Mapping[str, RequestPath] = {
    "exact hit": RequestPath("detail=exact"),
    "pass-through miss": RequestPath("detail=policy", model="uncached"),
    "unknown path": RequestPath("detail=pass-through", path="/v1/unknown"),
    "exact hit, new bytes": RequestPath("detail=exact", new_bytes=True),
    "semantic hit (hash)": RequestPath("detail=semantic", question=other_case),
    "chat miss, stored in the exact cache": RequestPath("stored", model="exactly-bench", question=new_question),
    "chat miss, stored in both caches": RequestPath("stored", question=new_question),
    f"live stream, {EVENTS} events": RequestPath("detail=policy", model="uncached", live=True),
}


@dataclass(frozen=True)
class Calls:
    """The calls of one request, by function: (file, function, line) -> calls."""

    functions: Mapping[tuple[str, str, int], int]

    @property
    def all(self) -> int:
        return sum(self.functions.values())

    @property
    def own(self) -> int:
        """The calls of the gateway's own code, without its libraries."""
        return sum(calls for (file, _, _), calls in self.functions.items() if file.startswith(OURS))

    def by_module(self) -> list[tuple[str, Counter[str]]]:
        modules: dict[str, Counter[str]] = {}
        for (file, function, _), calls in self.functions.items():
            modules.setdefault(_module_path(file), Counter())[function] += calls
        return sorted(modules.items(), key=lambda item: -item[1].total())


def _module_path(file: str) -> str:
    """Return the path without the folder that the gateway, a library or Python itself lies in."""
    for folder in (Path(OURS).parent, *map(Path, site.getsitepackages()), Path(os.__file__).parent):
        if Path(file).is_relative_to(folder):
            return str(Path(file).relative_to(folder))
    return file


async def _count_path(it: GatewayProcess, counts: Path, path: RequestPath, draw: random.Random) -> Calls:
    pid, expect = it.process.pid, path.expect.encode()
    await run(it.port, pid, path.requests(draw), connections=1)  # what is done once is done
    rounds = []
    for _ in range(ROUNDS):
        asked = path.requests(draw)
        await _signal_and_read(it, counts, signal.SIGUSR1)
        await run(it.port, pid, asked, connections=1, expect=expect)
        functions: Counter[tuple[str, str, int]] = Counter()
        for file, function, line, calls in json.loads(await _signal_and_read(it, counts, signal.SIGUSR2)):
            functions[file, function, line] += calls
        rounds.append(functions)
    least = {key: min(functions[key] for functions in rounds) for key in rounds[0]}
    return Calls({key: each for key, calls in least.items() if (each := round(calls / path.count))})


async def _signal_and_read(it: GatewayProcess, counts: Path, number: int) -> str:
    """Send the signal, and return the text that the gateway then writes."""
    counts.unlink(missing_ok=True)
    os.kill(it.process.pid, number)
    until = time.monotonic() + PATIENCE_S
    while not counts.exists():
        if it.process.poll() is not None or time.monotonic() > until:
            raise SystemExit("the gateway does not count")
        await asyncio.sleep(0.02)
    return counts.read_text()


async def count() -> dict[str, Calls]:
    """Return the calls on each of the `PATHS`."""
    up, draw = free_port(), random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        options = [f"{OPTION}{counts}"]
        with (
            server(["bench.servers", "upstream", str(up)], up),
            gateway_of(CONFIG, POLICY, "bench.call_counter", options, embedder="hash", upstream=up, more="") as it,
        ):
            return {name: await _count_path(it, counts, path, draw) for name, path in PATHS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    parser.add_argument("--by-module", choices=PATHS, help="every function that a request of this path calls")
    given = parser.parse_args()
    counted = asyncio.run(count())
    if given.by_module is not None:
        for module, functions in counted[given.by_module].by_module():
            print(f"{functions.total():>5} {module}: {', '.join(f'{f} {n}' for f, n in functions.most_common())}")
        return
    print(f"{'calls of a request':<38}{'all':>6}{'own':>6}")
    for name, calls in counted.items():
        print(f"{name:<38}{calls.all:>6}{calls.own:>6}")


if __name__ == "__main__":
    main()
