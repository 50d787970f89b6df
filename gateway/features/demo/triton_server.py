"""Runs a real Triton server as a child process: checks ports, lays out the backend directory, and cleans up."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from gateway.adapters.system.child_process import ChildFailed, ChildProcess
from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import TritonEnvironment

HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0  # measured: 2.5 s with three models on an idle machine, ten times as long on a busy one
STOP_GRACE_S = 8.0  # longer than EXIT_TIMEOUT_S, in which Triton finishes running requests
EXIT_TIMEOUT_S = 3
STUB_TIMEOUT_S = 60
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the python backend puts its regions there


@dataclass(frozen=True, slots=True)
class TritonPorts:
    grpc: int
    http: int
    metrics: int


@dataclass(frozen=True, slots=True)
class TritonServer:
    """A running server. `TritonServer.start` starts one, `stop` ends it.

    A `run_dir` belongs to one server at a time. It contains the log and the backend directory. Its path also names the
    shared memory regions that `stop` removes.
    """

    child: ChildProcess
    ports: TritonPorts
    shared_memory_prefix: str

    @classmethod
    async def start(
        cls,
        env: TritonEnvironment,
        model_repository: Path,
        run_dir: Path,
        ports: TritonPorts,
        *,
        control: bool = False,
        gpu: bool = False,
    ) -> TritonServer:
        """Start a server and return it when every model is ready.

        With `control`, its API can load and unload models. With `gpu`, its metrics cover the GPUs.
        Raises `TritonUnavailable` if a port is taken or the server does not start; then nothing is left running.
        """
        require_free(ports)
        prefix = region_prefix(run_dir)
        _remove_regions(prefix)  # left by a server with this `run_dir` that was killed
        command = _command(env, model_repository, _prepare_run_dir(env, run_dir), prefix, ports, gpu=gpu)
        if control:
            command += ["--model-control-mode=explicit", "--load-model=*"]
        try:
            child = await ChildProcess.start(
                "Triton", command, log=run_dir / "triton.log", env=_environment(env, run_dir)
            )
        except ChildFailed as error:
            raise TritonUnavailable(str(error)) from error
        server = cls(child, ports, prefix)
        try:
            await child.wait_ready(server.ready, READY_TIMEOUT_S)
        except BaseException as error:
            await server.stop()
            if isinstance(error, ChildFailed):
                raise TritonUnavailable(str(error)) from error
            raise
        return server

    @property
    def url(self) -> str:
        """The value of `url` for a backend in config.yaml that uses this server."""
        return f"grpc://{HOST}:{self.ports.grpc}"

    @property
    def log(self) -> Path:
        return self.child.log

    @property
    def pid(self) -> int:
        return self.child.pid

    async def ready(self) -> bool:
        """Return whether the server answers its health probe. Raises `OSError` while nothing listens."""
        reader, writer = await asyncio.open_connection(HOST, self.ports.http)
        try:
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: triton\r\nconnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()

    async def stop(self) -> None:
        """End the server and remove its shared memory. A second call does nothing more."""
        try:
            await self.child.stop(STOP_GRACE_S)
        finally:
            _remove_regions(self.shared_memory_prefix)


def require_free(ports: TritonPorts) -> None:
    """Raise `TritonUnavailable` for the first port that is taken.

    Triton itself reports a taken port only in its log, after it has loaded every model.
    """
    for port, use in ((ports.grpc, "gRPC"), (ports.http, "HTTP"), (ports.metrics, "metrics")):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise TritonUnavailable(
                    f"port {port} (Triton {use}) is taken ({error.strerror}): "
                    "stop the process that listens there or choose another port"
                ) from error


def region_prefix(run_dir: Path) -> str:
    """Return the prefix of the names of a server's shared memory regions.

    The prefix is unique for the `run_dir`, so that `stop` removes no regions of another server.
    """
    return f"nearhit_{hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:12]}_"


def _prepare_run_dir(env: TritonEnvironment, run_dir: Path) -> Path:
    """Lay out `run_dir` and return its backend directory.

    The wheel keeps the python backend and its stubs apart, but the server expects them in one directory. A second
    directory contains only libpython, so that the server loads no other library from libpython's own directory.
    """
    backends = run_dir.absolute() / "backends"
    shutil.rmtree(backends, ignore_errors=True)
    python = backends / "python"
    python.mkdir(parents=True)
    version = env.libpython.name.removeprefix("libpython").partition(".so")[0]
    stub = env.server / "python_backend_stubs" / version / "triton_python_backend_stub"
    for part in (*(env.server / "backends" / "python").iterdir(), stub):
        (python / part.name).symlink_to(part)
    libraries = run_dir / "lib"
    shutil.rmtree(libraries, ignore_errors=True)
    libraries.mkdir()
    (libraries / env.libpython.name).symlink_to(env.libpython)
    return backends


def _environment(env: TritonEnvironment, run_dir: Path) -> dict[str, str]:
    """Return the environment variables of the server.

    The stub uses the site-packages of the first `python3` on PATH. PYTHON* variables of this process would override it.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    return inherited | {
        "PATH": f"{env.bin}:{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": f"{env.libraries}:{run_dir.absolute() / 'lib'}",
        "OMP_NUM_THREADS": "1",  # three models share the machine with the gateway
    }


def _command(
    env: TritonEnvironment, repository: Path, backends: Path, prefix: str, ports: TritonPorts, *, gpu: bool
) -> list[str | Path]:
    return [
        env.server / "bin" / "tritonserver",
        f"--model-repository={repository.absolute()}",
        f"--backend-directory={backends}",
        *(f"--{part}-address={HOST}" for part in ("http", "grpc", "metrics")),
        f"--grpc-port={ports.grpc}",
        f"--http-port={ports.http}",
        f"--metrics-port={ports.metrics}",
        "--http-thread-count=2",  # the default is 8; only health probes and a manual curl use HTTP
        "--disable-auto-complete-config",  # the configurations are complete; this saves one stub start per model
        f"--allow-gpu-metrics={str(gpu).lower()}",
        "--pinned-memory-pool-byte-size=0",  # pinned memory is for copies to a GPU
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--backend-config=python,stub-timeout-seconds={STUB_TIMEOUT_S}",
    ]


def _remove_regions(prefix: str) -> None:
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)
