"""A real Triton server as a child process: ports checked, backend directory laid out, nothing left behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from gateway.adapters.system.child_process import ChildFailed, ChildProcess
from gateway.tools.demo.errors import TritonUnavailable
from gateway.tools.demo.triton_environment import TritonEnvironment

HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0  # 2.5 s with three models on an idle machine; loaded machines were 10 times slower
STOP_GRACE_S = 8.0  # Triton lets running requests end for EXIT_TIMEOUT_S first
EXIT_TIMEOUT_S = 3
STUB_TIMEOUT_S = 60
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the python backend puts its regions


@dataclass(frozen=True, slots=True)
class TritonPorts:
    grpc: int
    http: int
    metrics: int


class TritonServer:
    """A running server. Build one with `TritonServer.start`, end it with `stop`.

    A `run_dir` belongs to one server at a time: it holds the log and the backend directory, and names the
    shared memory regions that `stop` removes.
    """

    def __init__(self, child: ChildProcess, ports: TritonPorts, shared_memory_prefix: str) -> None:
        self.ports = ports
        self._child = child
        self._prefix = shared_memory_prefix

    @classmethod
    async def start(
        cls,
        env: TritonEnvironment,
        model_repository: Path,
        run_dir: Path,
        ports: TritonPorts,
        *,
        control: bool = False,
    ) -> TritonServer:
        """Returns once every model is ready. `control`: models may be unloaded and loaded over its API.

        Raises `TritonUnavailable` when a port is taken or the server does not come up; nothing is left running.
        """
        require_free(ports)
        prefix = region_prefix(run_dir)
        _remove_regions(prefix)  # of a server that was killed here before
        command = _command(env, model_repository, _prepare_run_dir(env, run_dir), prefix, ports)
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
        """What a backend's `url` in config.yaml says for this server."""
        return f"grpc://{HOST}:{self.ports.grpc}"

    @property
    def log(self) -> Path:
        return self._child.log

    @property
    def pid(self) -> int:
        return self._child.pid

    async def ready(self) -> bool:
        """Whether it answers its health probe. Raises `OSError` while nobody listens."""
        reader, writer = await asyncio.open_connection(HOST, self.ports.http)
        try:
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: triton\r\nconnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()

    async def stop(self) -> None:
        """Ends the server and removes its shared memory. Stopping twice is stopping once."""
        try:
            await self._child.stop(STOP_GRACE_S)
        finally:
            _remove_regions(self._prefix)


def require_free(ports: TritonPorts) -> None:
    """Raises `TritonUnavailable` naming the first port that somebody else has.

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
                    "stop what listens there or choose another port"
                ) from error


def region_prefix(run_dir: Path) -> str:
    """What the names of a server's shared memory regions begin with: its own, so that only they are removed."""
    return f"nearhit_{hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:12]}_"


def _prepare_run_dir(env: TritonEnvironment, run_dir: Path) -> Path:
    """The backend directory: the wheel keeps the python backend and its stubs apart, the server wants them
    in one place. And a directory with nothing but libpython, so that no other library of its home is preferred."""
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
    """The stub takes the site-packages of the first `python3` on PATH; our own PYTHON* would mislead it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    return inherited | {
        "PATH": f"{env.bin}:{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": f"{env.libraries}:{run_dir.absolute() / 'lib'}",
        "OMP_NUM_THREADS": "1",  # three models share the machine with the gateway
    }


def _command(
    env: TritonEnvironment, repository: Path, backends: Path, prefix: str, ports: TritonPorts
) -> list[str | Path]:
    return [
        env.server / "bin" / "tritonserver",
        f"--model-repository={repository.absolute()}",
        f"--backend-directory={backends}",
        *(f"--{part}-address={HOST}" for part in ("http", "grpc", "metrics")),
        f"--grpc-port={ports.grpc}",
        f"--http-port={ports.http}",
        f"--metrics-port={ports.metrics}",
        "--http-thread-count=2",  # of 8 by default: health probes and the occasional curl
        "--disable-auto-complete-config",  # configurations are complete; one stub start less a model
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",  # for copies to a GPU
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--backend-config=python,stub-timeout-seconds={STUB_TIMEOUT_S}",
    ]


def _remove_regions(prefix: str) -> None:
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)
