"""A large partition on a device such as a GPU: searched there, and kept on the CPU as before.

FAISS' indexes on a GPU can be added to and searched; what leaves, and a copy list by list for the checkpoint, needs the
lists on the CPU. These stay the truth. The device has a copy, whose searches are made right here: what came since waits
in a small matrix until there is a batch of it, and what went is struck out of what is found.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

import faiss
import numpy as np

from gateway.adapters.faiss.partition import FlatPartition, Ids, Matrix, search_lists
from gateway.errors import StartupError
from gateway.messages import Vector

LOG = logging.getLogger("nearhit.index")

# Entries that wait for the next batch: a flat search of so many takes 0.05 ms, and each addition to a GPU is a call.
BATCH = 1024

# FAISS selects no more neighbours on a GPU, and looks through no more lists (getMaxKSelection).
MAX_RESULTS = 2048

# Made anew once that share of it is gone: searches fetch more than they were asked for to make up for it.
MAX_REMOVED_SHARE = 1 / 8


class Searchable(Protocol):
    """Lists on a device. One thread at a time; raises RuntimeError where the device fails, or has no room."""

    def __len__(self) -> int: ...

    def add(self, ids: Ids, vectors: Matrix) -> None: ...

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        """Inner products and ids, (at most k,) each, most similar first; fewer where the lists hold no more. k is at
        most `MAX_RESULTS`."""


class Device(Protocol):
    def place(self, empty: Any) -> Searchable:
        """`empty`: an inverted file of FAISS, without entries. May be called in another thread than the one that owns
        what was placed before. Raises RuntimeError where there is no room."""


class GpuReplica:
    """Implements `PartitionCopy`. A device that fails is left alone: from then on the partition is searched on the
    CPU."""

    def __init__(self, lists: Searchable, dimension: int, *, batch: int = BATCH) -> None:
        self._lists = lists
        self._dimension = dimension
        self._batch = batch
        self._unflushed = FlatPartition(dimension)  # not yet on the device
        self._removed_ids: set[int] = set()  # still on the device
        self.failed = False

    def __len__(self) -> int:
        """How many of the entries it can find, at most: what left before it was copied here counts as gone, too."""
        return len(self._lists) + len(self._unflushed) - len(self._removed_ids)

    @property
    def needs_rebuild(self) -> bool:
        return len(self._removed_ids) > MAX_REMOVED_SHARE * len(self._lists)

    def put(self, ids: Ids, vectors: Matrix) -> None:
        """Straight to the device, while it is being filled. Raises RuntimeError."""
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
        """None where the device has failed, or where so many of the nearest are gone that `MAX_RESULTS` do not reach
        beyond them."""
        if self.failed or k > MAX_RESULTS:
            return None
        try:
            found = self._search_device(vector, k)
        except RuntimeError as error:
            self._fail(error)
            return None
        if found is None or len(self._unflushed) == 0:
            return found
        return _merge_results(found, self._unflushed.search(vector, k), k)

    def _search_device(self, vector: Vector, k: int) -> tuple[Vector, Ids] | None:
        """The nearest on the device that are not gone. Most questions have none of these among their nearest."""
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
            "the device failed: the partition is searched on the CPU until it is made anew",
            extra={"fields": {"error": str(error)[:300]}},
        )


def _merge_results(left_results: tuple[Vector, Ids], right_results: tuple[Vector, Ids], k: int) -> tuple[Vector, Ids]:
    similarities = np.concatenate([left_results[0], right_results[0]])
    order = np.argsort(-similarities, kind="stable")[:k]
    return similarities[order], np.concatenate([left_results[1], right_results[1]])[order]


# FAISS' lists on an NVIDIA GPU. The extra `nearhit[faiss-gpu]` brings a faiss that can.

# Of GPU memory for each partition's scratch; FAISS would take 1.5 GB. A search of one question needs some kilobytes.
SCRATCH_BYTES = 64 * 2**20

_GPU: Any = faiss  # the stubs of a faiss for the CPU lack what is asked of it


class CudaDevice:
    """Implements `Device`. `name`: cuda or cuda:N, as torch names them. Raises `StartupError` where faiss cannot."""

    def __init__(self, name: str) -> None:
        self._number = int(name.partition(":")[2] or 0)
        if not hasattr(faiss, "StandardGpuResources"):
            raise StartupError(
                f"index.device {name}: the faiss that is installed, {faiss.__version__}, is built for the CPU alone, "
                "expected faiss-gpu over it: pip install 'nearhit[faiss-gpu]' and then pip install --force-reinstall "
                "--no-deps faiss-gpu, or device: cpu"
            )
        found = int(_GPU.get_num_gpus())
        if found <= self._number:
            there = "no GPU" if found == 0 else f"{found} GPU{'s' if found > 1 else ''}, the last one cuda:{found - 1}"
            raise StartupError(
                f"index.device {name}: faiss {faiss.__version__} finds {there}, expected that one with its driver "
                "(nvidia-smi lists it), or device: cpu"
            )

    def place(self, empty: Any) -> Searchable:
        # Of its own: resources may be used by one thread at a time, and one partition is filled while others are
        # searched.
        resources = _GPU.StandardGpuResources()
        resources.setTempMemory(SCRATCH_BYTES)
        return GpuLists(_GPU.index_cpu_to_gpu(resources, self._number, empty), resources)


class GpuLists:
    """Implements `Searchable` over an inverted file of FAISS, wherever it lies."""

    def __init__(self, index: Any, resources: object = None) -> None:
        self._index = index
        self._resources = resources  # which must outlive it

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, ids: Ids, vectors: Matrix) -> None:
        self._index.add_with_ids(vectors, ids)

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        return search_lists(self._index, vector, k)
