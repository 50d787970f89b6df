"""Build the vector index that the configuration names, for the composition root and for commands that inspect it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from gateway.adapters.faiss.checkpoint import PartitionKind
from gateway.adapters.faiss.index import FaissIndex
from gateway.cache.index_checkpoints import IndexCheckpoints, checkpoints_of
from gateway.config import Config
from gateway.config.schema import INDEXES
from gateway.errors import IndexUnavailable, StartupError
from gateway.ports import Clock, Embedder, VectorIndex

if TYPE_CHECKING:  # a feature brings it
    from gateway.adapters.faiss.device import Device


class IndexOpener(Protocol):
    """Opens the index of one adapter: what an entry point of `nearhit.indexes` names."""

    def __call__(
        self,
        life: AsyncExitStack,
        config: Config,
        environ: Mapping[str, str],
        embedder: Embedder,
        clock: Clock,
        file: str,
        /,
    ) -> tuple[VectorIndex, IndexCheckpoints | None]:
        """Open the index for an embedder's vectors; `life` closes it. Raise `StartupError`.

        `file` is the name of its checkpoint file, if it has one.
        """


class OutsideIndex(VectorIndex, Protocol):
    """An index outside of the process, which all gateways share."""

    async def flush(self) -> None:
        """Wait until all that was added is written. Raise `IndexUnavailable`."""

    async def refresh(self) -> None:
        """Read the number of entries. Raise `IndexUnavailable`."""


def open_index(
    life: AsyncExitStack, config: Config, environ: Mapping[str, str], embedder: Embedder, clock: Clock, file: str
) -> tuple[VectorIndex, IndexCheckpoints | None]:
    """Open the index that the configuration names, as its `IndexOpener` does."""
    opener: IndexOpener = INDEXES.load(config.index.adapter)
    return opener(life, config, environ, embedder, clock, file)


def open_faiss(
    life: AsyncExitStack, config: Config, _: Mapping[str, str], embedder: Embedder, __: Clock, file: str
) -> tuple[VectorIndex, IndexCheckpoints | None]:
    """`open_faiss` implements `IndexOpener`."""
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
    if name == "cpu":
        return None
    device: Device = import_module("gateway.features.gpu_index.partition").CudaDevice(name)
    return device


async def count_filled(index: VectorIndex) -> int:
    """Return the number of entries after a filling. Raise `StartupError`."""
    if index.shared:
        outside = cast(OutsideIndex, index)
        try:
            await outside.flush()
            await outside.refresh()
        except IndexUnavailable as error:
            raise StartupError(f"everything was written, but could not be counted: {error}") from None
    return index.size
