"""Triton as a child: it says which port is taken, and leaves neither process nor shared memory behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import TritonEnvironment, ensure_triton
from gateway.features.demo.triton_server import SHARED_MEMORY, TritonPorts, TritonServer, region_prefix
from tests.fixtures.triton import CHECKOUT, RunningTriton, free_ports

NO_ENVIRONMENT = TritonEnvironment(Path("/nonexistent"), Path("/nonexistent/libpython3.11.so.1.0"))
ECHO = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
CONFIG = """
name: "echo" backend: "python" max_batch_size: 0 instance_group [ { kind: KIND_CPU } ]
input [ { name: "x", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""


def make_model(repository: Path, source: str) -> Path:
    version = repository / "echo" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    (repository / "echo" / "config.pbtxt").write_text(CONFIG)
    return repository


def regions(run_dir: Path) -> list[Path]:
    """Those of the server that runs in `run_dir`; other servers come and go beside it."""
    return list(SHARED_MEMORY.glob(f"{region_prefix(run_dir)}*"))


@pytest.fixture
def environment(triton: RunningTriton) -> TritonEnvironment:
    """After `triton`, which skips where there is none."""
    return ensure_triton(CHECKOUT / ".venv-triton", print)


@pytest.mark.parametrize("use", ["gRPC", "HTTP", "metrics"])
async def test_a_taken_port_is_named_with_its_use_before_anything_starts(tmp_path: Path, use: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = dict(zip(("grpc", "http", "metrics"), free_ports(3), strict=True))
        port = ports[use.lower()] = taken.getsockname()[1]
        with pytest.raises(TritonUnavailable, match=rf"port {port} \(Triton {use}\) is taken"):
            await TritonServer.start(NO_ENVIRONMENT, tmp_path, tmp_path, TritonPorts(**ports))
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - an async test


async def test_stopping_leaves_no_process_and_no_shared_memory(environment: TritonEnvironment, tmp_path: Path) -> None:
    repository = make_model(tmp_path / "models", ECHO)
    server = await TritonServer.start(environment, repository, tmp_path, TritonPorts(*free_ports(3)))
    assert await server.ready()
    assert regions(tmp_path)
    await server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    assert regions(tmp_path) == []


async def test_a_server_that_was_killed_leaves_no_shared_memory_after_stop(
    environment: TritonEnvironment, tmp_path: Path
) -> None:
    """A killed server cannot clean up: we do, and only what is ours."""
    repository = make_model(tmp_path / "models", ECHO)
    server = await TritonServer.start(environment, repository, tmp_path, TritonPorts(*free_ports(3)))
    os.kill(server.pid, signal.SIGKILL)
    await server.stop()
    assert regions(tmp_path) == []


async def test_a_model_that_does_not_load_fails_the_start_with_the_log(
    environment: TritonEnvironment, tmp_path: Path
) -> None:
    """And nothing stays running: the port is free again."""
    repository = make_model(tmp_path / "models", "raise RuntimeError('no weights')")
    ports = TritonPorts(*free_ports(3))
    with pytest.raises(TritonUnavailable, match="Triton ended with exit code 1 at its start"):
        await asyncio.wait_for(TritonServer.start(environment, repository, tmp_path, ports), 60)
    socket.create_server(("127.0.0.1", ports.grpc)).close()
