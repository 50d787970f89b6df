"""Measures the cost of the gateway for `tritonclient`: infer directly and through it, over HTTP and gRPC.

`python -m bench.kserve [--requests N] [--rounds N]`

The model is the identity, in the python backend of a real Triton. One client makes one call after the other, directly
and through the gateway in turn. CPU is that of the gateway's process. HTTP is forwarded as HTTP, and gRPC as gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

from bench.gateways import free_port, gateway_of
from bench.process import cpu_seconds
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer
from tests.fixtures.kserve_triton import write_repository

CONFIG = """
version: 1
server: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}", grpc: "127.0.0.1:{grpc}"}}
embedder: {{adapter: hash}}
backends:
  main: {backend}
"""
POLICY = """
version: 1
routes:
  - name: uncached
    match: {headers: {x-uncached: "1"}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
"""
SIZES = {"64 B": 16, "588 KiB": 3 * 224 * 224}
UNCACHED = {"x-uncached": "1"}  # the client writes into what it is given
TRITON_ENV = Path(__file__).parents[1] / ".venv-triton"


@dataclass(frozen=True, slots=True)
class Row:
    p50_ms: float
    cpu_us: float  # of the gateway, a request


@contextlib.contextmanager
def gateway(backend: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Run a gateway, and yield its process, HTTP port and gRPC port."""
    grpc_port = free_port()
    with gateway_of(CONFIG, POLICY, grpc=grpc_port, backend=backend) as it:
        yield it.process, it.port, grpc_port


def time_calls(pid: int, ask: Callable[[], Any], requests: int) -> Row:
    ask()
    before, took = cpu_seconds(pid), []
    for _ in range(requests):
        started = time.perf_counter()
        ask()
        took.append(time.perf_counter() - started)
    return Row(1e3 * statistics.median(took), 1e6 * (cpu_seconds(pid) - before) / requests)


def open_client(kind: Any, address: str, elements: int, **more: Any) -> tuple[Any, Callable[[], Any]]:
    """Open a client, and return it with a call."""
    client = kind.InferenceServerClient(address)
    given = kind.InferInput("IN_FP32", [1, elements], "FP32")
    given.set_data_from_numpy(np.ones((1, elements), np.float32))
    return client, lambda: client.infer("identity", [given], **more)


def measure(triton: TritonPorts, requests: int, rounds: int) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    forms = {
        "HTTP": (http, triton.http, f"{{adapter: kserve, url: http://127.0.0.1:{triton.http}}}"),
        "gRPC": (grpc, triton.grpc, f"{{adapter: triton, url: grpc://127.0.0.1:{triton.grpc}, model: identity}}"),
    }
    for form, (kind, direct, backend) in forms.items():
        with gateway(backend) as (process, port, grpc_port):
            own = port if kind is http else grpc_port
            for number in range(rounds + 1):
                for size, elements in SIZES.items():
                    for case, where, more in (
                        ("direct", direct, {}),
                        ("through, uncached", own, {"headers": dict(UNCACHED)}),
                        ("exact hit", own, {}),
                    ):
                        client, ask = open_client(kind, f"127.0.0.1:{where}", elements, **more)
                        row = time_calls(process.pid, ask, requests)
                        client.close()
                        if number:  # the first round warms everything up
                            found.setdefault((form, size, case), []).append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    environment = ensure_triton(TRITON_ENV, print)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        home = Path(folder)
        write_repository(home / "models", ("identity",))
        ports = TritonPorts(grpc=free_port(), http=free_port(), metrics=free_port())
        triton = runner.run(TritonServer.start(environment, home / "models", home, ports))
        try:
            found = measure(ports, given.requests, given.rounds)
        finally:
            runner.run(triton.stop())
    print(f"{'':<6} {'tensor':<8} {'':<18} {'p50 ms':>7} {'x direct':>9} {'gateway CPU us':>15}")
    for (form, size, case), rows in found.items():
        direct = found[form, size, "direct"]
        ratio = statistics.median(row.p50_ms / base.p50_ms for row, base in zip(rows, direct, strict=True))
        p50, cpu = (statistics.median(getattr(row, field) for row in rows) for field in ("p50_ms", "cpu_us"))
        print(f"{form:<6} {size:<8} {case:<18} {p50:>7.2f} {ratio:>9.2f} {'' if case == 'direct' else round(cpu):>15}")


if __name__ == "__main__":
    main()
