"""A large partition on a device such as a GPU: searched there, and kept on the CPU as before.

FAISS indexes on a GPU support only addition and search. Removal, and copying list by list for the checkpoint, need the
lists on the CPU, which remain the truth. The device has a replica. Additions wait in a small matrix until there is a
batch of them. Removed entries are filtered from the results.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import faiss
import numpy as np

from gateway.adapters.faiss.partition import FlatPartition, Ids, Matrix, search_lists
from gateway.entries import Vector
from gateway.errors import StartupError

LOG = logging.getLogger("nearhit.index")

# Entries that wait for the next batch. A flat search of 1,024 takes 0.05 ms, while each addition to a GPU is a call.
BATCH = 1024

# Limit of FAISS on a GPU, for neighbours and for lists to search (getMaxKSelection).
MAX_RESULTS = 2048

# The replica is rebuilt once this share of it is removed: searches fetch extra results to make up for removed entries.
MAX_REMOVED_SHARE = 1 / 8


class DeviceLists(Protocol):
    """Lists on a device. Use from one thread at a time. Raises RuntimeError if the device fails or is full."""

    def __len__(self) -> int: ...

    def add(self, ids: Ids, vectors: Matrix) -> None: ...

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        """Return inner products and ids, (at most k,) each, most similar first; fewer if the lists have fewer entries.
        k is at most `MAX_RESULTS`."""


class GpuReplica:
    """`GpuReplica` implements `Replica`. After a device failure it is no longer used: the partition is then
    searched on the CPU."""

    def __init__(self, lists: DeviceLists, dimension: int, *, batch: int = BATCH) -> None:
        self._lists = lists
        self._dimension = dimension
        self._batch = batch
        self._unflushed = FlatPartition(dimension)  # not yet on the device
        self._removed_ids: set[int] = set()  # removed here, but still on the device
        self.failed = False

    def __len__(self) -> int:
        """Return an upper bound of the entries it can find. Removals from before the copy count as removed, too."""
        return len(self._lists) + len(self._unflushed) - len(self._removed_ids)

    @property
    def needs_rebuild(self) -> bool:
        return len(self._removed_ids) > MAX_REMOVED_SHARE * len(self._lists)

    def put(self, ids: Ids, vectors: Matrix) -> None:
        """Add entries directly to the device, while it is being filled. Raise RuntimeError."""
        if len(ids):
            self._lists.add(ids, np.ascontiguousarray(vectors, dtype=np.float32))

    def add(self, ids: Ids, vectors: Matrix) -> None:
        if self.failed:
            return
        self._unflushed.add(ids, vectors)
        if len(self._unflushed) < self._batch:
            return
        waiting, self._unflushed = self._unflushed.part(0), FlatPartition(self._dimension)
        try:
            self.put(waiting.ids, waiting.vectors)
        except RuntimeError as error:
            self._fail(error)

    def remove(self, ids: Ids) -> None:
        if self.failed:
            return
        waiting, _ = self._unflushed.vectors(ids)
        if len(waiting):
            self._unflushed.remove(waiting)
        self._removed_ids.update(np.setdiff1d(ids, waiting).tolist())

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids] | None:
        """Return the nearest entries. Return None if the device has failed. Return None also if so many of the nearest
        are removed that `MAX_RESULTS` does not suffice."""
        if self.failed or k > MAX_RESULTS:
            return None
        try:
            neighbours = self._search_device(vector, k)
        except RuntimeError as error:
            self._fail(error)
            return None
        if neighbours is None or len(self._unflushed) == 0:
            return neighbours
        return _merge_results(neighbours, self._unflushed.search(vector, k), k)

    def _search_device(self, vector: Vector, k: int) -> tuple[Vector, Ids] | None:
        """Return the nearest entries on the device without removed ones. Few searches meet any removed entry."""
        enough = k + len(self._removed_ids)
        wanted = min(2 * k, enough, MAX_RESULTS)
        while True:
            similarities, ids = self._lists.search(vector, wanted)
            stay = np.array([i not in self._removed_ids for i in ids.tolist()], dtype=bool)
            if wanted == enough or len(ids) < wanted or np.count_nonzero(stay) >= k:
                return similarities[stay][:k], ids[stay][:k]
            if wanted == MAX_RESULTS:
                return None
            wanted = min(8 * wanted, enough, MAX_RESULTS)

    def _fail(self, error: RuntimeError) -> None:
        self.failed = True
        self._removed_ids.clear()
        self._unflushed = FlatPartition(self._dimension)
        LOG.error(
            "the device failed: the partition is searched on the CPU until it is rebuilt",
            extra={"fields": {"error": str(error)[:300]}},
        )


def _merge_results(left_results: tuple[Vector, Ids], right_results: tuple[Vector, Ids], k: int) -> tuple[Vector, Ids]:
    similarities = np.concatenate([left_results[0], right_results[0]])
    order = np.argsort(-similarities, kind="stable")[:k]
    return similarities[order], np.concatenate([left_results[1], right_results[1]])[order]


# FAISS lists on an NVIDIA GPU. The extra `nearhit[faiss-gpu]` installs a faiss that supports it.

# GPU memory for each partition's scratch space; FAISS's default is 1.5 GB. A search of one question needs some
# kilobytes.
SCRATCH_BYTES = 64 * 2**20

_GPU: Any = faiss  # the stubs of the CPU build lack the GPU functions


class CudaDevice:
    """`CudaDevice` implements `Device`. `name` is `cuda` or `cuda:N`, as in torch. Raise `StartupError` if faiss cannot
    use it."""

    def __init__(self, name: str) -> None:
        self._number = int(name.partition(":")[2] or 0)
        if not hasattr(faiss, "StandardGpuResources"):
            raise StartupError(
                f"index.device {name}: the installed faiss {faiss.__version__} supports only the CPU, "
                "expected faiss-gpu over it: pip install 'nearhit[faiss-gpu]' and then pip install --force-reinstall "
                "--no-deps faiss-gpu, or device: cpu"
            )
        count = int(_GPU.get_num_gpus())
        if count <= self._number:
            there = "no GPU" if count == 0 else f"{count} GPU{'s' if count > 1 else ''}, the last one cuda:{count - 1}"
            raise StartupError(
                f"index.device {name}: faiss {faiss.__version__} finds {there}, expected that GPU and its driver "
                "(nvidia-smi lists it), or device: cpu"
            )

    def replica(self, empty: Any, dimension: int) -> GpuReplica:
        # Each partition has its own resources: one thread at a time may use them, and one partition is filled while
        # others are searched.
        resources = _GPU.StandardGpuResources()
        resources.setTempMemory(SCRATCH_BYTES)
        lists = GpuLists(_GPU.index_cpu_to_gpu(resources, self._number, empty), resources)
        return GpuReplica(lists, dimension)


@dataclass(slots=True, eq=False)
class GpuLists:
    """`GpuLists` implements `DeviceLists` over an inverted file of FAISS, on any device."""

    index: Any
    resources: object = None  # must outlive the index

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def add(self, ids: Ids, vectors: Matrix) -> None:
        self.index.add_with_ids(vectors, ids)

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        return search_lists(self.index, vector, k)
