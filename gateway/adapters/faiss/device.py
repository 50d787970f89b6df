"""The port of a device such as a GPU, which searches copies of large partitions."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.adapters.faiss.partition import Ids, Matrix, PartitionCopy


class Replica(PartitionCopy, Protocol):
    """A copy of a partition on a device."""

    def __len__(self) -> int:
        """Return an upper bound of the entries that it can find."""

    def put(self, ids: Ids, vectors: Matrix) -> None:
        """Add entries directly to the device, while it is being filled. Raise RuntimeError."""


class Device(Protocol):
    def replica(self, empty: Any, dimension: int) -> Replica:
        """Copy `empty`, an inverted file of FAISS without entries, to the device. Raise RuntimeError if there is no
        room.

        May be called from another thread than the owner of earlier copies.
        """
