"""Makes a flame graph for each path: `python -m bench.flames --py-spy PROGRAM [--only ROW]`.

A real gateway answers one row of `make bench` after the other while py-spy samples its Python stacks. Time in C (the
event loop, hashing, JSON, FAISS, onnxruntime) counts for the caller. `make bench-flames` installs py-spy in a separate
environment.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.gateways import GatewayProcess, gateway_of, start_bare_servers
from bench.load import request_bytes, run
from bench.rows import KINDS, ROWS, Row

CONNECTIONS = 16
AT_ONCE = 400  # requests between two looks whether it is over
HERE = re.compile(r"(?:/[\w.+-]+)+/(?=(?:site-packages|lib/python3\.\d+|gateway|bench)/)")


def slug(row: Row) -> str:
    return re.sub(r"[^a-z0-9]+", "-", row.name.lower()).strip("-")


async def record_flames(row: Row, it: GatewayProcess, py_spy: Path, seconds: int, to: Path) -> None:
    """Send requests for as long as py-spy samples."""
    draw, port, pid = random.Random(7), it.port, it.process.pid
    await run(port, pid, [request_bytes(each) for each in KINDS[row.on].stored], connections=1)
    options = ["--duration", str(seconds), "--rate", "500", "--format", "flamegraph", "--output", str(to)]
    looking = await asyncio.create_subprocess_exec(
        str(py_spy), "record", *options, "--pid", str(pid), stdout=asyncio.subprocess.DEVNULL
    )
    while looking.returncode is None:
        count = row.count(AT_ONCE, CONNECTIONS)
        asked = [request_bytes(each, row.path, row.headers) for each in row.asked(draw, count)]
        await run(port, pid, asked, connections=CONNECTIONS, expect=row.expect.encode(), events=row.events)
        await asyncio.sleep(0)
    if looking.returncode:
        raise SystemExit(
            f"py-spy ended with {looking.returncode}: it needs to be allowed to trace (root, or ptrace_scope 0)"
        )
    to.write_text(clean(to.read_text(), row.name))


def clean(svg: str, title: str) -> str:
    """Return the graph with the name of the row as title, and without the folders of this machine."""
    return HERE.sub("", re.sub(r'(<text id="title"[^>]*>)[^<]*', rf"\g<1>{title}, {CONNECTIONS} connections", svg))


async def record_all(rows: list[Row], py_spy: Path, seconds: int, folder: Path) -> None:
    for row in rows:
        kind = KINDS[row.on]
        with ExitStack() as stack:
            there = start_bare_servers(stack)
            given: dict[str, Any] = {"embedder": kind.embedder, "upstream": there.upstream, "more": kind.more}
            it = stack.enter_context(gateway_of(kind.config, kind.policy, **given))
            await record_flames(row, it, py_spy, seconds, folder / f"{slug(row)}.svg")
            print(f"{row.name}: {folder / slug(row)}.svg")


def main() -> None:
    rows = {row.name: row for row in ROWS if row.of_gateway}
    parser = argparse.ArgumentParser(prog="make bench-flames", description=__doc__)
    parser.add_argument("--py-spy", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=rows, metavar="ROW", help="of `make bench`; repeatable")
    parser.add_argument("--seconds", type=int, default=10, help="a row")
    parser.add_argument("--to", type=Path, default=Path("docs/performance"))
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    some = [rows[name] for name in given.only or rows]
    asyncio.run(record_all(some, given.py_spy, given.seconds, given.to))


if __name__ == "__main__":
    main()
