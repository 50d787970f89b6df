"""Build the vector index that the configuration names, for the composition root and for commands that inspect it."""

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
    """Open the index for an embedder's vectors; `life` closes it. Raise `StartupError`.

    `file` is the name of its checkpoint file, if it has one.
    """
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
        life.push_async_callback(checkpoints.save)  # runs once nothing is added any more
    return index, checkpoints


def build_device(name: str) -> Device | None:
    """Return the device, or None for the CPU. Raise `StartupError` where the named GPU cannot be used."""
    return None if name == "cpu" else CudaDevice(name)


def build_milvus(
    config: Config, environ: Mapping[str, str], embedder: str, dimension: int, clock: Clock
) -> MilvusIndex:
    """Build a Milvus index without contacting the server. Raise `StartupError`.

    `embedder` is the fingerprint of its vectors.
    """
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
    """Return the number of entries after a filling. Raise `StartupError`."""
    if index.shared:
        outside = cast("MilvusIndex", index)
        try:
            await outside.flush()
            await outside.refresh()
        except IndexUnavailable as error:
            raise StartupError(f"everything was written, but could not be counted: {error}") from None
    return index.size


def milvus_version(config: Config, environ: Mapping[str, str], timeout_s: float) -> str:
    """Return the server's version. A missing Lite file is not created.

    Raise `StartupError`, and `IndexUnavailable` where the server does not answer.
    """
    url, token = _address(config, environ)
    module = _import_module("gateway.adapters.milvus.server", config)
    if "://" not in url and not Path(url).exists():
        return "Lite, on a file that the gateway makes,"
    version: str = module.server_version(url, token, timeout_s)
    return version


def _address(config: Config, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return URL or path, and token."""
    section = config.index
    assert section.url is not None, "checked with the configuration"
    url = str(config.data_dir.resolve() / section.url) if milvus_lite_path(section.url) else section.url
    return url, read_secret(environ, section.token_env, "index.token_env") or ""


def _import_module(module: str, config: Config) -> Any:
    """Import an adapter of an extra on demand, as it loads pandas. Raise `StartupError`."""
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
