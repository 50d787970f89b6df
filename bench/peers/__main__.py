"""Compares the gateway with other gateways: the cost of a request, as a ratio to one bare server.

`make bench-peers` installs each peer in a separate environment and runs this. Each peer has one worker and the fast
settings from its documentation. All use one scripted endpoint on loopback, and take turns within each round. CPU is
that of all threads of the process and of its children. Peers that are not installed are left out, with a message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.fixtures import CONFIG, POLICY, body
from bench.gateways import end, free_port, gateway_of, start_bare_servers
from bench.load import Load, request_bytes, run
from bench.peers.catalogue import OURS_HIT, OURS_THROUGH, PEERS, Peer, PeerRequest
from bench.peers.picture import draw
from bench.protocols import QUESTION

START_S = 600.0  # of the slowest of them, on a busy machine
CONNECTIONS = (1, 32)
BARE = "bare server"
OURS = "nearhit"
WAYS = ("pass-through", "exact hit")


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server, and the requests to it, by way."""

    port: int
    pid: int
    ways: Mapping[str, PeerRequest]
    headers: str = ""


@dataclass
class Comparison:
    loads: dict[tuple[str, str, int], list[Load]] = field(default_factory=dict)  # by way, who, connections
    how: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[dict[str, object]]:
        for (way, who, connections), loads in self.loads.items():
            floors = self.loads["", BARE, connections]
            ratios = [_cpu(load) / _cpu(floor) for load, floor in zip(loads, floors, strict=True)]
            yield {
                "way": way,
                "who": who,
                "connections": connections,
                "cpu_us": statistics.median(map(_cpu, loads)),
                "x_bare": statistics.median(ratios),
                "x_bare_range": [min(ratios), max(ratios)],
                "p50_ms": statistics.median(load.p50_ms for load in loads),
                "per_second": statistics.median(load.per_second for load in loads),
            }


def _cpu(load: Load) -> float:
    """Return the CPU time, with that of the children."""
    return load.cpu_us + load.store_cpu_us


@contextlib.contextmanager
def start(peer: Peer, upstream: int, folder: Path) -> Iterator[Target]:
    port = free_port()
    command = peer.command(port, upstream, folder)
    with (folder / f"{peer.name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | peer.environ, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.2)
        else:
            said = (folder / f"{peer.name}.log").read_text(errors="replace")[-1000:]
            raise SystemExit(f"{peer.name} does not listen: {said}")
        ways = {way: asked for way, asked in zip(WAYS, (peer.through, peer.hit), strict=True) if asked is not None}
        yield Target(port, process.pid, ways, peer.headers.format(upstream=upstream))
    finally:
        end(process)


async def measure(requests: int, rounds: int) -> Comparison:
    compared = Comparison()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        there = start_bare_servers(stack)
        ours = stack.enter_context(gateway_of(CONFIG, POLICY, embedder="hash", upstream=there.upstream, more=""))
        fixed = Target(*there.fixed, {"": PeerRequest(body(QUESTION))})
        proxy = Target(*there.proxy, {"pass-through": PeerRequest(body(QUESTION))})
        own = Target(ours.port, ours.process.pid, dict(zip(WAYS, (OURS_THROUGH, OURS_HIT), strict=True)))
        places = {BARE: fixed, "bare proxy": proxy, OURS: own}
        for peer in PEERS:
            if not peer.program.exists():
                compared.absent.append(peer.name)
                continue
            places[peer.name] = stack.enter_context(start(peer, there.upstream, folder))
            compared.how[peer.name] = peer.how
        for place in places.values():
            for asked in place.ways.values():  # what is to be hit is stored, what is compiled late is compiled
                request = request_bytes(asked.body, headers=place.headers)
                await run(place.port, place.pid, [request] * 20, connections=1)
        for number in range(rounds):
            for connections in CONNECTIONS:
                for who, place in list(places.items())[:: -1 if number % 2 else 1]:
                    for way, asked in place.ways.items():
                        some = [request_bytes(asked.body, headers=place.headers)] * requests
                        expect = asked.expect.encode()
                        load = await run(place.port, place.pid, some, connections=connections, expect=expect)
                        compared.loads.setdefault((way, who, connections), []).append(load)
    return compared


def table(compared: Comparison) -> Iterator[str]:
    yield f"{'':<14}{'':<14}{'c':>3}{'CPU us':>9}{'x bare':>9}{'(range)':>15}{'p50 ms':>9}{'req/s':>8}"
    for row in sorted(compared.rows(), key=lambda row: (row["connections"], row["way"])):
        spread = "{:.2f}-{:.2f}".format(*row["x_bare_range"])  # type: ignore[misc]
        yield (
            f"{row['way']:<14}{row['who']:<14}{row['connections']:>3}{row['cpu_us']:>9.0f}{row['x_bare']:>9.2f}"
            f"{spread:>15}{row['p50_ms']:>9.2f}{row['per_second']:>8.0f}"
        )
    yield from (f"{name}: {how}" for name, how in compared.how.items())
    yield from (f"{name}: not installed, `make bench-peers` does it" for name in compared.absent)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="a way, round and number of connections")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("build/peers.json"))
    parser.add_argument("--picture", type=Path, help="draw it here")
    given = parser.parse_args()
    compared = asyncio.run(measure(given.requests, given.rounds))
    print("\n".join(table(compared)))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    said = {"rows": list(compared.rows()), "how": compared.how, "absent": compared.absent}
    given.json.write_text(json.dumps(said, indent=1) + "\n")
    if given.picture:
        given.picture.write_text(draw(said))


if __name__ == "__main__":
    main()
