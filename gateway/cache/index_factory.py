"""Builds the vector index that the configuration names. Used by the composition root, and by what looks at it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gateway.adapters.faiss.checkpoint import PartitionKind
from gateway.adapters.faiss.gpu_partition import CudaDevice, Device
from gateway.adapters.faiss.index import FaissIndex
from gateway.cache.index_checkpoints import IndexCheckpoints, checkpoints_of
from gateway.config import Config
from gateway.config.environment import read_secret
from gateway.config.fields import milvus_lite_path
from gateway.errors import IndexUnavailable, StartupError
from gateway.ports import Clock, Embedder, VectorIndex
from gateway.tasks import run_in

if TYPE_CHECKING:
    from gateway.adapters.milvus.index import MilvusIndex


def open_index(
    life: AsyncExitStack, config: Config, environ: Mapping[str, str], embedder: Embedder, clock: Clock, file: str
) -> tuple[VectorIndex, IndexCheckpoints | None]:
    """For the vectors of `embedder`, ended with `life`; `file`: that of its checkpoint, where it has one. Raises
    `StartupError`."""
    if config.index.adapter == "milvus":
        outside = build_milvus(config, environ, embedder.fingerprint, embedder.dimension, clock)
        life.push_async_callback(outside.close)
        run_in(life, outside.run())
        return outside, None
    index = FaissIndex(
        embedder.dimension, max_entries=config.index.max_entries, device=build_device(config.index.device)
    )
    life.callback(index.close)
    checkpoints = checkpoints_of(config, index, PartitionKind(embedder.fingerprint, embedder.dimension), file)
    if checkpoints is not None:
        life.push_async_callback(checkpoints.save)  # once nothing is added any more
    return index, checkpoints


def build_device(name: str) -> Device | None:
    """None: the CPU. Raises `StartupError` where the GPU that is named cannot be used."""
    return None if name == "cpu" else CudaDevice(name)


def build_milvus(
    config: Config, environ: Mapping[str, str], embedder: str, dimension: int, clock: Clock
) -> MilvusIndex:
    """`embedder`: the fingerprint of its vectors. Nothing is asked of the server yet. Raises `StartupError`."""
    url, token = _address(config, environ)
    module = _import_module("gateway.adapters.milvus.index", config)
    index: MilvusIndex = module.MilvusIndex(
        url,
        dimension=dimension,
        collection=module.collection_name(embedder),
        clock=clock,
        timeout_s=config.index.timeout,
        token=token,
    )
    return index


async def count_filled(index: VectorIndex) -> int:
    """How many it holds after a filling. Raises `StartupError`."""
    if index.shared:
        outside = cast("MilvusIndex", index)
        try:
            await outside.flush()
            await outside.refresh()
        except IndexUnavailable as error:
            raise StartupError(f"everything was written, and could not be counted: {error}") from None
    return index.size


def milvus_version(config: Config, environ: Mapping[str, str], timeout_s: float) -> str:
    """What the server says of itself. A Lite file that is not there is not made. Raises `StartupError`, and
    `IndexUnavailable` where it does not answer."""
    url, token = _address(config, environ)
    module = _import_module("gateway.adapters.milvus.server", config)
    if "://" not in url and not Path(url).exists():
        return "Lite, on a file that the gateway makes,"
    version: str = module.server_version(url, token, timeout_s)
    return version


def _address(config: Config, environ: Mapping[str, str]) -> tuple[str, str]:
    """URL or path, and token."""
    section = config.index
    assert section.url is not None, "checked with the configuration"
    url = str(config.data_dir.resolve() / section.url) if milvus_lite_path(section.url) else section.url
    return url, read_secret(environ, section.token_env, "index.token_env") or ""


def _import_module(module: str, config: Config) -> Any:
    """An extra with pandas in it: imported only where it is asked for. Raises `StartupError`."""
    lite = milvus_lite_path(config.index.url or "")
    try:
        if lite:
            importlib.import_module("milvus_lite")
        return importlib.import_module(module)
    except ImportError as error:
        extra = "milvus-lite" if lite else "milvus"
        raise StartupError(
            f"index.adapter milvus needs an extra that is not installed ({error}): pip install 'nearhit[{extra}]'"
        ) from None
