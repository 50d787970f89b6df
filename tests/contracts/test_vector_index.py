"""What every vector index must do: FAISS, flat, in lists and with a copy of them on a device, Milvus, and the fake that
looks at everything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.adapters.faiss.device import Device
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.faiss.rebuilder import IndexPlan
from gateway.entries import Neighbour, Vector
from gateway.features.gpu_index.partition import CudaDevice
from gateway.ports import VectorIndex
from tests.fixtures import cuda
from tests.fixtures.entries import DIMENSION, vector_of
from tests.fixtures.faiss_device import CpuDevice
from tests.fixtures.fakes import ExactIndex
from tests.fixtures.milvus import LACKING, LiteIndex

EXACT = 1e-6
HALF_FLOATS = 5e-4  # what they may change of a similarity


class ListIndex(FaissIndex):
    """FAISS with a partition in lists as soon as it has three entries, looked through to the end."""

    def __init__(self, dimension: int, *, max_entries: int, device: Device | None = None) -> None:
        plan = IndexPlan(flat_up_to=2, probes=10**6, device_from=4, device_probes=10**6)
        super().__init__(dimension, max_entries=max_entries, plan=plan, device=device)

    async def add(self, fingerprint: str, scope: str, vector: Vector) -> None:
        await super().add(fingerprint, scope, vector)
        await self.wait_settled()


class DeviceIndex(ListIndex):
    """The same with a device, on which the lists are searched from the fourth entry on."""

    def __init__(self, dimension: int, *, max_entries: int) -> None:
        super().__init__(dimension, max_entries=max_entries, device=CpuDevice())


class CudaIndex(ListIndex):
    """The same with the GPU of `NEARHIT_TEST_DEVICE`."""

    def __init__(self, dimension: int, *, max_entries: int) -> None:
        super().__init__(dimension, max_entries=max_entries, device=CudaDevice(cuda.NAME or "cuda"))


KINDS = (FaissIndex, ListIndex, DeviceIndex, ExactIndex)
GPU_LACKING = cuda.lacking()
ON_GPU = pytest.param(CudaIndex, marks=pytest.mark.skipif(GPU_LACKING is not None, reason=str(GPU_LACKING)))
OUTSIDE = pytest.param(LiteIndex, marks=pytest.mark.skipif(LACKING is not None, reason=str(LACKING)))


@pytest.fixture(params=(*KINDS, ON_GPU, OUTSIDE), ids=lambda kind: kind.__name__)
def index(request: pytest.FixtureRequest) -> Iterator[VectorIndex]:
    with closing(request.param(DIMENSION, max_entries=100)) as made:
        yield made


def names(found: list[Neighbour]) -> list[str]:
    return [neighbour.fingerprint for neighbour in found]


async def test_an_empty_index_finds_nothing(index: VectorIndex) -> None:
    assert await index.search("s", vector_of(1), 4) == []
    assert (index.size, await index.remove(["a"])) == (0, 0)


async def test_neighbours_come_most_similar_first_and_at_most_k(index: VectorIndex) -> None:
    target, other = vector_of(1), vector_of(2)
    for name, share in (("far", 0.2), ("near", 0.9), ("equal", 1.0), ("middle", 0.6)):
        mixed = share * target + (1 - share) * other
        await index.add(name, "s", (mixed / np.linalg.norm(mixed)).astype(np.float32))
    found = await index.search("s", target, 3)
    assert names(found) == ["equal", "near", "middle"]
    assert found[0].similarity == pytest.approx(1.0, abs=HALF_FLOATS if isinstance(index, ListIndex) else EXACT)
    assert all(a.similarity >= b.similarity for a, b in pairwise(found))


async def test_a_search_without_waiting_finds_what_a_search_finds(index: VectorIndex) -> None:
    for i in range(140):  # beyond what is compared without FAISS
        await index.add(f"e{i}", "s", vector_of(i))
        found = index.search_nowait("s", vector_of(3), 1)
        searched = await index.search("s", vector_of(3), 1)
        assert found is None or names(found) == names(searched)
    assert not index.search_nowait("nobody's", vector_of(1), 1)


async def test_similarity_lies_between_0_and_1(index: VectorIndex) -> None:
    await index.add("same", "s", vector_of(1))
    await index.add("opposite", "s", -vector_of(1))
    assert [n.similarity for n in await index.search("s", vector_of(1), 2)] == [pytest.approx(1.0, abs=1e-6), 0.0]
    assert all(n.similarity <= 1.0 for n in await index.search("s", vector_of(1), 2))


async def test_adding_again_replaces_vector_and_scope(index: VectorIndex) -> None:
    await index.add("a", "old", vector_of(1))
    await index.add("a", "new", vector_of(2))
    assert index.size == 1
    assert await index.search("old", vector_of(1), 4) == []
    (found,) = await index.search("new", vector_of(2), 4)
    assert found.similarity == pytest.approx(1.0, abs=1e-6)


async def test_what_was_removed_is_never_found_again(index: VectorIndex) -> None:
    for i in range(10):
        await index.add(str(i), "s", vector_of(i))
    assert await index.remove(["3", "7", "nothing"]) == 2
    assert sorted(names(await index.search("s", vector_of(3), 10))) == list("01245689")
    assert await index.remove([str(i) for i in range(10)]) == 8
    assert (index.size, await index.search("s", vector_of(3), 10)) == (0, [])


async def test_beyond_its_bound_the_oldest_go_first(index: VectorIndex) -> None:
    if index.shared:
        pytest.skip("an index outside is bounded by what the store lets go")
    for i in range(100):
        await index.add(str(i), f"s{i % 2}", vector_of(i))
    await index.add("0", "s0", vector_of(0))  # put again: young again
    await index.add("new", "s1", vector_of(500))
    assert index.size == 100
    kept = {*names(await index.search("s0", vector_of(0), 100)), *names(await index.search("s1", vector_of(0), 100))}
    assert kept == {"0", "new", *map(str, range(2, 100))}


@pytest.mark.parametrize(
    "wrong",
    [vector_of(1)[:-1], vector_of(1).astype(np.float64), vector_of(1)[np.newaxis], np.zeros(0, dtype=np.float32)],
    ids=["short", "float64", "matrix", "empty"],
)
async def test_a_vector_of_the_wrong_form_is_refused(index: VectorIndex, wrong: np.ndarray) -> None:
    await index.add("a", "s", vector_of(1))
    with pytest.raises(ValueError, match="expected float32"):
        await index.add("b", "s", wrong)
    with pytest.raises(ValueError, match="expected float32"):
        await index.search("s", wrong, 1)
    assert names(await index.search("s", vector_of(1), 4)) == ["a"]


async def test_it_names_everything_it_holds(index: VectorIndex) -> None:
    assert list(await index.fingerprints()) == []
    for i in range(5):
        await index.add(str(i), f"s{i % 2}", vector_of(i))
    await index.remove(["2"])
    assert sorted(await index.fingerprints()) == ["0", "1", "3", "4"]


async def test_the_bytes_it_takes_grow_with_what_it_holds(index: VectorIndex) -> None:
    await index.add("a", "s", vector_of(1))
    one = index.bytes
    for i in range(50):
        await index.add(str(i), "s", vector_of(i))
    assert index.bytes > one > 4 * DIMENSION - 1


async def test_concurrent_adds_searches_and_removals_neither_crash_nor_cross_scopes(index: VectorIndex) -> None:
    """FAISS crashes the process when it is added to and searched at once: the adapter has to prevent it."""

    async def work(worker: int) -> None:
        draw = random.Random(worker)
        for i in range(60):
            scope = f"s{draw.randrange(3)}"
            name = f"{scope}/{draw.randrange(30)}"
            await index.add(name, scope, vector_of(draw.randrange(1000)))
            found = await index.search(scope, vector_of(i), 5)
            assert all(neighbour.fingerprint.startswith(f"{scope}/") for neighbour in found)
            if draw.random() < 0.3:
                await index.remove([f"{scope}/{draw.randrange(30)}"])

    async with asyncio.TaskGroup() as tasks:
        for worker in range(8):
            tasks.create_task(work(worker))
    assert index.size <= 90


ADD = st.tuples(st.just("add"), st.integers(0, 12), st.integers(0, 3), st.integers(0, 30))
Operation = tuple[str, int, int, int]
REMOVE = st.tuples(st.just("remove"), st.integers(0, 12), st.just(0), st.just(0))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(st.one_of(ADD, REMOVE), max_size=40), asked=st.integers(0, 3), seed=st.integers(0, 30))
def test_a_search_returns_all_of_its_scope_and_nothing_else(
    kind: type[FaissIndex | ExactIndex], operations: list[Operation], asked: int, seed: int
) -> None:
    asyncio.run(all_of_its_scope(kind(DIMENSION, max_entries=8), 8, operations, asked, seed))


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
@settings(max_examples=5, deadline=None)  # a second each
@given(operations=st.lists(st.one_of(ADD, REMOVE), max_size=40), asked=st.integers(0, 3), seed=st.integers(0, 30))
def test_a_search_outside_returns_all_of_its_scope_and_nothing_else(
    operations: list[Operation], asked: int, seed: int
) -> None:
    asyncio.run(all_of_its_scope(LiteIndex(DIMENSION), 100, operations, asked, seed))


async def all_of_its_scope(made: VectorIndex, bound: int, operations: list[Operation], asked: int, seed: int) -> None:
    with closing(made) as index:
        held: dict[str, int] = {}
        for operation, name, scope, vector in operations:
            held.pop(str(name), None)
            if operation == "add":
                await index.add(str(name), f"s{scope}", vector_of(vector))
                held[str(name)] = scope
                for oldest in list(held)[: max(0, len(held) - bound)]:
                    del held[oldest]
            else:
                await index.remove([str(name)])
        found = await index.search(f"s{asked}", vector_of(seed), 100)
        assert sorted(names(found)) == sorted(name for name, scope in held.items() if scope == asked)
        assert index.size == len(held)


async def test_near_looks_into_every_scope_and_takes_all_within_the_similarity(index: VectorIndex) -> None:
    target, other = vector_of(1), vector_of(2)
    for i, share in enumerate((0.2, 0.5, 0.8, 0.9, 1.0)):
        mixed = share * target + (1 - share) * other
        await index.add(str(i), f"s{i % 2}", (mixed / np.linalg.norm(mixed)).astype(np.float32))
    assert sorted(await index.near(target, 0.9)) == ["2", "3", "4"]
    assert sorted(await index.near(target, -1.0)) == list("01234")
    await index.remove(["3"])
    assert sorted(await index.near(target, 0.9)) == ["2", "4"]
    with pytest.raises(ValueError, match="expected float32"):
        await index.near(vector_of(1)[:-1], 0.9)
