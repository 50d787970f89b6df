"""The index at size: partitions change their form in the background, and nobody can tell from what is found."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.adapters.faiss.exclusive_executor import ExecutorClosed
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.faiss.partition import FlatPartition, IvfPartition, Matrix
from gateway.adapters.faiss.rebuilder import Check, IndexPlan, train_centroids
from gateway.entries import Vector
from tests.fixtures.entries import DIMENSION, vector_of
from tests.fixtures.waiting import until

EVERYTHING = 10**6  # lists to look through: all there are, so that what is found is exact
TINY = IndexPlan(flat_up_to=8, probes=EVERYTHING, small_up_to=0)
HALF = 5e-4  # what half floats may change of a similarity


class HeldTraining:
    """Training that waits until it is let go, and then is the real one."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, sample: Matrix, lists: int, check: Check) -> Matrix:
        self.begun.set()
        assert self.go.wait(30)
        return train_centroids(sample, lists, check)


@pytest.fixture
def held() -> Iterator[HeldTraining]:
    training = HeldTraining()
    yield training
    training.go.set()


def form(index: FaissIndex, scope: str = "s") -> type:
    return type(index._contents.partitions[scope])


async def fill(index: FaissIndex, names: range, scope: str = "s") -> None:
    for i in names:
        await index.add(str(i), scope, vector_of(i))


async def found(index: FaissIndex, asked: int = 0, scope: str = "s") -> list[str]:
    return [neighbour.fingerprint for neighbour in await index.search(scope, vector_of(asked), EVERYTHING)]


async def test_a_partition_is_flat_while_small_and_made_of_lists_beyond() -> None:
    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY)) as index:
        await fill(index, range(8))
        await index.wait_settled()
        assert form(index) is FlatPartition
        (best,) = await index.search("s", vector_of(3), 1)
        assert best.similarity == pytest.approx(1.0, abs=1e-6)
        await fill(index, range(8, 9))
        await index.wait_settled()
        assert form(index) is IvfPartition
        for i in range(9):
            (best,) = await index.search("s", vector_of(i), 1)
            assert (best.fingerprint, best.similarity) == (str(i), pytest.approx(1.0, abs=HALF))


async def test_it_is_trained_again_when_it_has_grown_fourfold_and_flat_again_when_little_is_left() -> None:
    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY)) as index:
        await fill(index, range(9))
        await index.wait_settled()
        await fill(index, range(9, 36))
        await index.wait_settled()
        assert index._contents.partitions["s"].trained_for == 9
        await fill(index, range(36, 37))
        await index.wait_settled()
        assert index._contents.partitions["s"].trained_for == 37
        await index.remove([str(i) for i in range(36)])
        await index.wait_settled()
        assert form(index) is FlatPartition, "one is too few for lists"
        assert await found(index) == ["36"]


async def test_lists_of_few_entries_are_made_anew_at_twice_as_many() -> None:
    plan = IndexPlan(flat_up_to=8, probes=EVERYTHING, small_up_to=20)
    with closing(FaissIndex(DIMENSION, max_entries=100, plan=plan)) as index:
        trained = []
        for entries in (9, 18, 19, 38, 39, 76, 100):
            await fill(index, range(index.size, entries))
            await index.wait_settled()
            trained.append(index._contents.partitions["s"].trained_for)
        assert trained == [9, 9, 19, 19, 39, 39, 39]


async def test_the_old_form_serves_while_the_new_one_is_trained(held: HeldTraining) -> None:
    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY, train=held)) as index:
        await fill(index, range(9))
        await asyncio.to_thread(held.begun.wait)
        for i in range(9):
            assert (await found(index, i))[0] == str(i)
        assert form(index) is FlatPartition
        held.go.set()
        await index.wait_settled()
        assert form(index) is IvfPartition


async def test_what_is_added_and_removed_during_the_training_is_there_and_gone_after_the_swap(
    held: HeldTraining,
) -> None:
    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY, train=held)) as index:
        await fill(index, range(9))
        await asyncio.to_thread(held.begun.wait)
        await fill(index, range(20, 40))
        await index.add("3", "s", vector_of(300))  # another vector under a known name
        await index.add("4", "elsewhere", vector_of(4))
        await index.remove(["0", "20", "8"])
        expected = {"1", "2", "3", "5", "6", "7", *map(str, range(21, 40))}
        assert set(await found(index)) == expected
        held.go.set()
        await index.wait_settled()
        assert form(index) is IvfPartition
        names = await found(index)
        assert (set(names), len(names)) == (expected, len(expected))
        assert (await found(index, 300))[0] == "3"
        assert await found(index, 4, "elsewhere") == ["4"]


async def test_a_swap_amid_concurrent_additions_and_removals_loses_and_revives_nothing() -> None:
    with closing(FaissIndex(DIMENSION, max_entries=10_000, plan=IndexPlan(flat_up_to=50, probes=EVERYTHING))) as index:

        async def work(worker: int) -> None:
            for i in range(200):
                await index.add(f"{worker}/{i}", "s", vector_of(1000 * worker + i))
                if i % 3 == 0:
                    await index.remove([f"{worker}/{i // 2}"])

        async with asyncio.TaskGroup() as tasks:
            for worker in range(4):
                tasks.create_task(work(worker))
        await index.wait_settled()
        assert form(index) is IvfPartition
        expected = {f"{w}/{i}" for w in range(4) for i in range(200)} - {
            f"{w}/{i // 2}" for w in range(4) for i in range(0, 200, 3)
        }
        names = await found(index)
        assert (set(names), len(names), index.size) == (expected, len(expected), len(expected))


async def test_a_partition_that_is_emptied_during_its_training_stays_empty(held: HeldTraining) -> None:
    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY, train=held)) as index:
        await fill(index, range(9))
        await asyncio.to_thread(held.begun.wait)
        await index.remove([str(i) for i in range(9)])
        await fill(index, range(50, 52))
        held.go.set()
        await index.wait_settled()
        assert sorted(await found(index)) == ["50", "51"]
        assert index.size == 2


async def test_a_training_that_fails_leaves_the_old_form_and_is_not_repeated_at_every_addition() -> None:
    tried: list[int] = []

    def train(sample: Matrix, lists: int, check: Check) -> Matrix:
        tried.append(len(sample))
        raise MemoryError

    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY, train=train)) as index:
        for i in range(30):
            await fill(index, range(i, i + 1))
            await index.wait_settled()
        assert tried == [9, 18]
        assert sorted(await found(index)) == sorted(map(str, range(30)))


async def test_the_oldest_leave_in_order_however_many_came_and_went_before() -> None:
    with closing(FaissIndex(DIMENSION, max_entries=3)) as index:
        for i in range(5000):
            await index.add(str(i), "s", vector_of(0))
            if i % 2:
                await index.remove([str(i)])
        assert len(index._contents.ages) < 2000, "what is gone is forgotten now and then"
        assert sorted(await index.fingerprints()) == ["4996", "4998"]


async def test_closing_ends_a_training() -> None:
    begun, ended = threading.Event(), threading.Event()

    def train(sample: Matrix, lists: int, check: Check) -> Matrix:
        begun.set()
        try:
            while True:
                check()
        except ExecutorClosed:
            ended.set()
            raise

    with closing(FaissIndex(DIMENSION, max_entries=100, plan=TINY, train=train)) as index:
        await fill(index, range(9))
        assert await asyncio.to_thread(begun.wait, 30)
    await until(ended.is_set)


async def test_the_bytes_it_reports_are_those_of_the_form_it_has() -> None:
    plan = IndexPlan(flat_up_to=1000)
    with closing(FaissIndex(256, max_entries=10_000, plan=plan)) as index:
        for i in range(1000):
            await index.add(str(i), "s", vector_of(i, 256))
        flat = index.bytes
        assert 1000 * 4 * 256 <= flat <= 2.5 * 1000 * 4 * 256
        await index.add("1000", "s", vector_of(1000, 256))
        await index.wait_settled()
        assert 1000 * 2 * 256 <= index.bytes < flat
        await index.remove([str(i) for i in range(1001)])
        assert (index.bytes, index.size) == (0, 0)


def test_what_has_few_entries_has_more_of_its_lists_looked_through() -> None:
    plan = IndexPlan()
    probes = [plan.probes_for(entries) for entries in (1, 4_000, 10_000, 40_000, 160_000, 1_000_000)]
    assert probes[1:] == [51, 32, 16, 8, 8]
    assert probes[0] >= 1
    assert IndexPlan(probes=64).probes_for(1_000_000) == 64


async def test_every_hit_is_found_among_clusters_with_the_usual_number_of_lists() -> None:
    """What matters is what could be served: the nearest one, when it is near."""
    draw = np.random.default_rng(5)
    centres = draw.standard_normal((60, 64))
    points = centres[draw.integers(60, size=4000)] + 0.7 * draw.standard_normal((4000, 64))
    stored = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    with closing(FaissIndex(64, max_entries=10_000, plan=IndexPlan(flat_up_to=500))) as index:
        for i, vector in enumerate(stored):
            await index.add(str(i), "s", vector)
        await index.wait_settled()
        assert form(index) is IvfPartition
        for i in range(0, 4000, 20):
            asked = stored[i] + 0.03 * draw.standard_normal(64).astype(np.float32)
            (best,) = await index.search("s", (asked / np.linalg.norm(asked)).astype(np.float32), 1)
            assert best.fingerprint == str(i)


def test_vectors_that_add_up_to_nothing_and_equal_ones_can_be_trained_on() -> None:
    sample = np.stack([vector_of(1), -vector_of(1)] * 20 + [vector_of(2)] * 20)
    centroids = train_centroids(sample, 5, lambda: None)
    assert centroids.shape == (5, DIMENSION)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1.0, rtol=1e-5)


NAMES = st.integers(0, 40)
STEPS = st.one_of(
    st.tuples(st.just("add"), NAMES, st.integers(0, 1), st.integers(0, 200)),
    st.tuples(st.just("remove"), st.lists(NAMES, max_size=12, unique=True)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("search"), st.integers(0, 1), st.integers(0, 200)),
)


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(STEPS, max_size=120))
def test_any_sequence_finds_what_looking_at_everything_would(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    async def run() -> None:
        model: dict[str, tuple[int, Vector]] = {}
        with closing(FaissIndex(DIMENSION, max_entries=25, plan=IndexPlan(flat_up_to=6, probes=EVERYTHING))) as index:
            for step in steps:
                match step:
                    case ("add", name, scope, seed):
                        await index.add(str(name), f"s{scope}", vector_of(seed))
                        model.pop(str(name), None)
                        model[str(name)] = (scope, vector_of(seed))
                        while len(model) > 25:
                            del model[next(iter(model))]
                    case ("remove", names):
                        known = [str(name) for name in names if str(name) in model]
                        assert await index.remove([str(name) for name in names]) == len(known)
                        for name in known:
                            del model[name]
                    case ("settle",):
                        await index.wait_settled()
                    case ("search", scope, seed):
                        await same(index, model, scope, vector_of(seed))
            await index.wait_settled()
            for scope in (0, 1):
                await same(index, model, scope, vector_of(7))
            assert index.size == len(model)

    asyncio.run(run())


async def same(index: FaissIndex, model: dict[str, tuple[int, Vector]], scope: int, asked: Vector) -> None:
    expected = {name: float(vector @ asked) for name, (owner, vector) in model.items() if owner == scope}
    neighbours = await index.search(f"s{scope}", asked, 100)
    assert {n.fingerprint for n in neighbours} == expected.keys()
    assert len(neighbours) == len(expected)
    for neighbour in neighbours:
        assert neighbour.similarity == pytest.approx(max(0.0, expected[neighbour.fingerprint]), abs=HALF)
