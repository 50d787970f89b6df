"""FAISS' lists on an NVIDIA GPU. The extra `nearhit[faiss-gpu]` brings a faiss that can."""

from __future__ import annotations

from typing import Any

import faiss

from gateway.adapters.faiss.gpu_partition import Searchable
from gateway.adapters.faiss.partition import Ids, Matrix, search_lists
from gateway.errors import StartFailed
from gateway.messages import Vector

# Of GPU memory for each partition's scratch; FAISS would take 1.5 GB. A search of one question needs some kilobytes.
SCRATCH_BYTES = 64 * 2**20
_GPU: Any = faiss  # the stubs of a faiss for the CPU lack what is asked of it


class CudaDevice:
    """Implements `Device`. `name`: cuda or cuda:N, as torch names them. Raises `StartFailed` where faiss cannot."""

    def __init__(self, name: str) -> None:
        self._number = int(name.partition(":")[2] or 0)
        if not hasattr(faiss, "StandardGpuResources"):
            raise StartFailed(
                f"index.device {name}: the faiss that is installed, {faiss.__version__}, is built for the CPU alone, "
                "expected faiss-gpu over it: pip install 'nearhit[faiss-gpu]' and then pip install --force-reinstall "
                "--no-deps faiss-gpu, or device: cpu"
            )
        found = int(_GPU.get_num_gpus())
        if found <= self._number:
            there = "no GPU" if found == 0 else f"{found} GPU{'s' if found > 1 else ''}, the last one cuda:{found - 1}"
            raise StartFailed(
                f"index.device {name}: faiss {faiss.__version__} finds {there}, expected that one with its driver "
                "(nvidia-smi lists it), or device: cpu"
            )

    def place(self, empty: Any) -> Searchable:
        # Of its own: resources may be used by one thread at a time, and one partition is filled while others are
        # searched.
        resources = _GPU.StandardGpuResources()
        resources.setTempMemory(SCRATCH_BYTES)
        return Lists(_GPU.index_cpu_to_gpu(resources, self._number, empty), resources)


class Lists:
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
