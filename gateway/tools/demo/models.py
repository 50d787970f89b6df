"""The demo's backends in one call: what is missing is built, and a real Triton serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gateway.tools.demo.build import build_repository
from gateway.tools.demo.triton_environment import ensure_triton
from gateway.tools.demo.triton_server import TritonPorts, TritonServer, require_free


async def start_demo_models(
    *,
    env: Path,
    models: Path,
    doc_root: Path,
    run_dir: Path,
    grpc_port: int,
    http_port: int,
    metrics_port: int,
    progress: Callable[[str], None],
) -> TritonServer:
    """Returns a running server with the models `light`, `large` and `embedder`; the caller stops it.

    `env` is where the Triton environment is or will be, `models` the directory that holds the embedding model.
    Raises `DemoUnavailable`, `ModelMissing` or `ModelCorrupt`, one sentence each, and leaves nothing running.
    """
    ports = TritonPorts(grpc=grpc_port, http=http_port, metrics=metrics_port)
    require_free(ports)  # before minutes of building
    environment = await asyncio.to_thread(ensure_triton, env, progress)
    repository = await asyncio.to_thread(build_repository, models, doc_root, run_dir / "models", progress)
    progress("starting Triton with the models light, large and embedder")
    return await TritonServer.start(environment, repository, run_dir, ports)
