"""Open the index in Milvus that the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config import Config
from gateway.config.environment import read_secret
from gateway.config.fields import milvus_lite_path
from gateway.errors import StartupError
from gateway.ports import Clock, Embedder
from gateway.tasks import run_in

if TYPE_CHECKING:
    from gateway.features.milvus.index import MilvusIndex


def open_milvus(
    life: AsyncExitStack, config: Config, environ: Mapping[str, str], embedder: Embedder, clock: Clock, _: str
) -> tuple[MilvusIndex, None]:
    """`open_milvus` implements `IndexOpener`."""
    outside = build_milvus(config, environ, embedder.fingerprint, embedder.dimension, clock)
    life.push_async_callback(outside.close)
    run_in(life, outside.run())
    return outside, None


def build_milvus(
    config: Config, environ: Mapping[str, str], embedder: str, dimension: int, clock: Clock
) -> MilvusIndex:
    """Build a Milvus index without contacting the server. Raise `StartupError`.

    `embedder` is the fingerprint of its vectors.
    """
    url, token = _address(config, environ)
    module = _import_module("gateway.features.milvus.index", config)
    index: MilvusIndex = module.MilvusIndex(
        url,
        dimension=dimension,
        collection=module.collection_name(embedder),
        clock=clock,
        timeout_s=config.index.timeout,
        token=token,
    )
    return index


def milvus_version(config: Config, environ: Mapping[str, str], timeout_s: float) -> str:
    """Return the server's version. A missing Lite file is not created.

    Raise `StartupError`, and `IndexUnavailable` where the server does not answer.
    """
    url, token = _address(config, environ)
    module = _import_module("gateway.features.milvus.server", config)
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
