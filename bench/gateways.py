"""Starts gateways and other servers as child processes. Each one ends when its block ends."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_S = 300.0  # a busy machine takes its time, and a store with a million entries reads some GB
EXACT_CACHE = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
"""


@dataclass(frozen=True)
class GatewayProcess:
    process: subprocess.Popen[bytes]
    port: int
    admin: int
    start_s: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(
    arguments: list[str], port: int, cwd: Path | None = None, environ: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of ours that listens on `port`, and end it when the block ends.

    `arguments`: a module, or the path of a script, and its arguments. `cwd`: a checkout whose code it runs; this one if
    None. `environ`: more variables.
    """
    program = ["-P"] if arguments[0].endswith(".py") else ["-m"]
    checkout = {} if cwd is None else {"PYTHONPATH": str(cwd)}
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=cwd,
        env=os.environ | checkout | (environ or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if process.poll() is not None:
                raise SystemExit(f"{arguments} ended with {process.returncode}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.05)
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()


@contextlib.contextmanager
def gateway_of(
    config: str,
    policy: str,
    module: str = "gateway",
    options: Sequence[str] = (),
    tree: Path | None = None,
    **given: object,
) -> Iterator[GatewayProcess]:
    """Run a gateway in a folder of its own.

    `config`: it has places for `port`, `admin` and the keys of `given`. `options`: those of `serve`. `tree`: the
    checkout whose code it runs; None: this one.
    """
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "policies").mkdir()
        (home / "policies" / "default.yaml").write_text(policy)
        (home / "config.yaml").write_text(config.format(port=port, admin=admin, **given))
        started = time.perf_counter()
        with server([module, "serve", "--config", str(home / "config.yaml"), *options], port, tree) as process:
            yield GatewayProcess(process, port, admin, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class BareServers:
    """The servers that gateways are compared with, and the endpoint behind them: a port, or a port and process id."""

    upstream: int
    fixed: tuple[int, int]
    proxy: tuple[int, int]


def start_bare_servers(stack: contextlib.ExitStack) -> BareServers:
    """Start the servers, which `stack` ends."""
    up, fix, pro = free_port(), free_port(), free_port()
    stack.enter_context(server(["bench.servers", "upstream", str(up)], up))
    fixed = stack.enter_context(server(["bench.servers", "fixed", str(fix)], fix))
    proxy = stack.enter_context(server(["bench.servers", "proxy", str(pro), f"http://127.0.0.1:{up}"], pro))
    return BareServers(up, (fix, fixed.pid), (pro, proxy.pid))
