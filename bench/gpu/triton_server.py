"""The models on a Triton server: one that runs already, or one that is started here and runs onnxruntime in Python."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gateways import free_port
from bench.gpu.record import Skipped, StageOptions
from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer
from gateway.features.embedding_model.triton_models import config_of, put

TRITON_ENV = Path(__file__).parents[2] / ".venv-triton"
MODEL_CODE = Path(__file__).parent / "served_model" / "model.py"
# Triton's gauges and counters that a latency prediction could use.
METRICS = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_inference_pending_request_count")


@dataclass(frozen=True, slots=True)
class TritonEndpoint:
    """A server. `url`: its gRPC port. `metrics`: the URL of its metrics, or None. `about`: text for the table."""

    url: str
    metrics: str | None
    about: str

    def read(self) -> dict[str, float]:
        """Return the sums over models and devices of `METRICS` that the server has. Raises OSError."""
        if self.metrics is None:
            return {}
        with urllib.request.urlopen(self.metrics, timeout=5) as answer:
            return metric_sums(answer.read().decode())


def metric_sums(text: str) -> dict[str, float]:
    """Sum the samples of `METRICS` in a page of metrics, by name. Pure."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in METRICS:
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[-1])
    return found


@contextlib.contextmanager
def triton_server(given: StageOptions, models: Mapping[str, tuple[Path, str]]) -> Iterator[TritonEndpoint]:
    """Yield a server with these models: by name the graph, and the configuration for the python backend. Raises
    `Skipped`.

    `given.triton` names a server that has the models itself.
    """
    if given.triton is not None:
        yield TritonEndpoint(given.triton, given.metrics, "a server of its own")
        return
    try:
        environment = ensure_triton(TRITON_ENV, print)
        with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
            repository = Path(folder) / "models"
            for name, (graph, config) in models.items():
                _write(repository, name, graph, config, given.device)
            ports = TritonPorts(free_port(), free_port(), free_port())
            start = TritonServer.start(environment, repository, Path(folder), ports, gpu=given.device == "cuda")
            server = runner.run(start)
            try:
                yield TritonEndpoint(
                    server.url, f"http://127.0.0.1:{ports.metrics}/metrics", "python backend, onnxruntime"
                )
            finally:
                runner.run(server.stop())
    except TritonUnavailable as error:
        raise Skipped(f"{error}; --triton names a server that runs already") from None


def python_config(name: str) -> str:
    """Return the configuration of `nearhit model triton`, for the python backend.

    It moves tensors through the CPU; the model's code puts them on the device itself.
    """
    return config_of(name, cpu=True).replace("onnxruntime", "python")


def _write(repository: Path, name: str, graph: Path, config: str, device: str) -> None:
    """Write a model's entry. Its code finds this environment's onnxruntime before that of the server's Python."""
    found = importlib.util.find_spec("onnxruntime")
    folders = [str(Path(found.origin).parents[1])] if device == "cuda" and found and found.origin else []
    words = {"device": device, "folders": ":".join(folders)}
    parameters = "".join(f'parameters {{ key: "{k}" value: {{ string_value: "{v}" }} }}\n' for k, v in words.items())
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        shutil.copy(graph, made / "model.onnx")
        put(made / "model.onnx", repository, name, config + parameters)
    shutil.copy(MODEL_CODE, repository / name / "1")


def peak_metrics(server: TritonEndpoint, seconds: float) -> dict[str, float]:
    """Return the largest value of each metric, read ten times a second for so long. Raises OSError."""
    most: dict[str, float] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, value in server.read().items():
            most[name] = max(value, most.get(name, 0.0))
        time.sleep(0.1)
    return most
