"""A large partition on a device: nobody can tell from what is found. The device here is a copy on the CPU; a GPU holds
the same rules where one is there, and its test says why it is skipped where none is."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.adapters.faiss.checkpoint import PartitionKind, read_checkpoint, write_checkpoint
from gateway.adapters.faiss.device import Device
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.faiss.partition import FlatPartition, IvfPartition, Matrix, empty_lists
from gateway.adapters.faiss.rebuilder import IndexPlan
from gateway.config.schema import IndexConfig
from gateway.errors import StartupError
from gateway.features.gpu_index import partition as gpu_partition
from gateway.features.gpu_index.partition import MAX_RESULTS, CudaDevice, GpuReplica
from gateway.ports import StoredVector
from tests.fixtures.entries import DIMENSION, vector_of
from tests.fixtures.faiss_device import CpuDevice
from tests.fixtures.gateways import BOTH_CACHES, config_of, gateway_of
from tests.fixtures.upstream import Upstream

EVERYTHING = 10**6
TINY = IndexPlan(flat_up_to=8, probes=EVERYTHING, device_from=12, device_probes=EVERYTHING)
KIND = PartitionKind("test", DIMENSION)


@pytest.fixture
def device() -> CpuDevice:
    return CpuDevice()


@pytest.fixture
def index(device: CpuDevice) -> Iterator[FaissIndex]:
    with closing(index_on(device)) as made:
        yield made


def index_on(device: Device) -> FaissIndex:
    return FaissIndex(DIMENSION, max_entries=10_000, plan=TINY, device=device)


async def fill(index: FaissIndex, names: range) -> None:
    """Up to 64 at once: no training sees but some of them, and what is on the device is no matter of time."""
    await index.add_all([StoredVector(str(i), "s", vector_of(i), math.inf) for i in names])


async def found(index: FaissIndex, asked: int = 0, k: int = 2000) -> list[str]:
    return [neighbour.fingerprint for neighbour in await index.search("s", vector_of(asked), k)]


async def test_a_partition_is_on_the_cpu_while_small_and_searched_on_the_device_beyond(
    index: FaissIndex, device: CpuDevice
) -> None:
    await fill(index, range(11))
    await index.wait_settled()
    assert (index.entries_on_device, device.placed) == (0, [])
    await fill(index, range(11, 40))
    await index.wait_settled()
    assert index.entries_on_device == index.size == 40
    for i in range(40):
        assert (await found(index, i, 1)) == [str(i)]
    assert device.placed[-1].asked, "a search went there"


async def test_what_comes_and_goes_afterwards_is_found_and_gone_at_once(index: FaissIndex, device: CpuDevice) -> None:
    await fill(index, range(40))
    await index.wait_settled()
    await fill(index, range(40, 44))
    await index.remove(["0", "1", "41"])
    assert set(await found(index)) == {str(i) for i in range(44)} - {"0", "1", "41"}
    assert (await found(index, 42, 1), await found(index, 41, 1) == ["41"]) == (["42"], False)
    assert len(device.placed[-1]) == 40, "the four wait for a batch, what went is struck out"


async def test_once_much_of_it_is_gone_it_is_copied_anew(index: FaissIndex, device: CpuDevice) -> None:
    await fill(index, range(64))
    await index.wait_settled()
    copies = len(device.placed)
    await index.remove([str(i) for i in range(8)])
    await index.wait_settled()
    assert len(device.placed) == copies, "an eighth may be gone"
    await index.remove(["8"])
    await index.wait_settled()
    assert (len(device.placed), len(device.placed[-1]), index.entries_on_device) == (copies + 1, 55, 55)
    assert set(await found(index)) == set(map(str, range(9, 64)))


async def test_the_lists_that_a_checkpoint_brings_are_copied_to_the_device(device: CpuDevice, tmp_path: Path) -> None:
    with closing(FaissIndex(DIMENSION, max_entries=1000, plan=TINY)) as before:
        await fill(before, range(40))
        await before.wait_settled()
        await asyncio.to_thread(write_checkpoint, tmp_path / "checkpoint", KIND, before.chunks())
    with closing(index_on(device)) as index:
        await index.load(read_checkpoint(tmp_path / "checkpoint", KIND, 1000))
        await index.wait_settled()
        assert (index.entries_on_device, set(await found(index))) == (40, set(map(str, range(40))))
        await asyncio.to_thread(write_checkpoint, tmp_path / "again", KIND, index.chunks())
    with closing(FaissIndex(DIMENSION, max_entries=1000, plan=TINY)) as after:
        await after.load(read_checkpoint(tmp_path / "again", KIND, 1000))
        assert set(await found(after)) == set(map(str, range(40))), "what is on the device is written, too"


async def test_a_device_without_room_leaves_the_partition_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    class Full(CpuDevice):
        def copy_to_device(self, empty: object) -> object:
            raise RuntimeError("cudaMalloc error: out of memory")

    with closing(index_on(Full())) as index, caplog.at_level(logging.WARNING):
        await fill(index, range(40))
        await index.wait_settled()
        assert (index.entries_on_device, set(await found(index))) == (0, set(map(str, range(40))))
        asked = len(caplog.records)
        await index.remove(["0"])
        await index.wait_settled()
    assert caplog.messages == ["a partition could not be copied to the device: it is searched on the CPU"] * asked
    assert asked <= 2, "not tried again before there are twice as many"


@pytest.mark.parametrize("when", ["search", "add"])
async def test_a_device_that_fails_is_left_alone(
    index: FaissIndex, device: CpuDevice, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    await fill(index, range(40))
    await index.wait_settled()
    device.placed[-1].broken = True
    with caplog.at_level(logging.ERROR):
        if when == "add":
            partition = index._contents.partitions["s"]
            assert isinstance(partition, IvfPartition) and isinstance(partition.copy, GpuReplica)
            partition.copy._batch = 1
            await fill(index, range(40, 41))
        assert "7" in await found(index)
        await fill(index, range(41, 50))
        await index.remove(["3"])
        assert len(await found(index)) == index.size
    assert index.entries_on_device == 0
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert said == ["the device failed: the partition is searched on the CPU until it is rebuilt"]


async def test_additions_and_removals_while_it_is_copied_are_neither_lost_nor_revived(device: CpuDevice) -> None:
    with closing(index_on(device)) as index:

        async def work(worker: int) -> None:
            for i in range(100):
                await index.add(f"{worker}/{i}", "s", vector_of(1000 * worker + i))
                if i % 2:
                    await index.remove([f"{worker}/{i // 2}"])

        async with asyncio.TaskGroup() as tasks:
            for worker in range(4):
                tasks.create_task(work(worker))
        await index.wait_settled()
        expected = {f"{w}/{i}" for w in range(4) for i in range(50, 100)}
        assert set(await found(index)) == expected
        assert index.entries_on_device == index.size == len(expected)
        assert device.placed


async def test_a_gateway_starts_with_the_device_and_tells_what_is_on_it(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_partition, "CudaDevice", lambda _: CpuDevice())
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, index={"device": "cuda"})
    async with gateway_of(config, BOTH_CACHES) as served:
        assert (await served.chat("hello")).status == 200
        async with served.session.get(served.admin_url + "/metrics") as metrics:
            assert 'nearhit_cache_entries{kind="device"} 0' in await metrics.text()
    monkeypatch.undo()
    with pytest.raises(StartupError, match=r"index\.device cuda:31: "):
        async with gateway_of(config.model_copy(update={"index": IndexConfig(device="cuda:31")}), BOTH_CACHES):
            pass


def placed(entries: int, batch: int) -> tuple[GpuReplica, Matrix]:
    """With the entries 0 to `entries`, and their vectors."""
    vectors = np.stack([vector_of(i) for i in range(entries)])
    made = GpuReplica(CpuDevice().copy_to_device(empty_lists(vectors[:1], 1)), DIMENSION, batch=batch)
    made.put(np.arange(entries, dtype=np.int64), vectors)
    return made, vectors


Step = tuple[str, list[int]]
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.lists(st.integers(0, 60), max_size=9)), max_size=12)


@settings(max_examples=50, deadline=None)
@given(steps=STEPS, batch=st.integers(1, 9), k=st.integers(1, 30), asked=st.integers(0, 70))
def test_it_finds_what_a_matrix_of_all_that_is_left_finds(steps: list[Step], batch: int, k: int, asked: int) -> None:
    made, vectors = placed(20, batch)
    truth, held, fresh = FlatPartition(DIMENSION), set(range(20)), 20
    truth.add(np.arange(20, dtype=np.int64), vectors)
    for step, numbers in steps:
        ids = np.unique(np.array(numbers, dtype=np.int64))
        if step == "add":
            ids, fresh = np.arange(fresh, fresh + len(ids)), fresh + len(ids)
            some = np.stack([vector_of(i) for i in ids.tolist()]) if len(ids) else np.empty((0, DIMENSION), np.float32)
            held |= set(ids.tolist())
        else:
            ids = np.array([i for i in ids.tolist() if i in held], dtype=np.int64)
            held -= set(ids.tolist())
        if len(ids) == 0:
            continue
        for each in (made, truth):
            each.add(ids, some) if step == "add" else each.remove(ids)
    answer = made.search(vector_of(asked), k)
    expected, _ = truth.search(vector_of(asked), k) if held else (np.empty(0), None)
    assert answer is not None
    assert set(answer[1].tolist()) <= held
    np.testing.assert_allclose(answer[0], expected, atol=5e-4)


def test_a_search_fetches_no_more_than_it_needs_and_gives_up_where_all_that_is_near_is_gone() -> None:
    entries = MAX_RESULTS + 100
    target, vectors = vector_of(1), np.stack([vector_of(i) for i in range(entries)])
    nearest = np.argsort(-(vectors @ target)).astype(np.int64)
    lists = CpuDevice().copy_to_device(empty_lists(vectors[:1], 1))
    made = GpuReplica(lists, DIMENSION)
    made.put(np.arange(entries, dtype=np.int64), vectors)
    made.search(target, 4)
    assert lists.asked == [4], "nothing is gone: nothing more is fetched"
    made.remove(nearest[-50:])
    made.search(target, 4)
    assert lists.asked == [4, 8], "what is gone is far away"
    made.remove(nearest[:20])
    answer = made.search(target, 4)
    assert answer is not None and len(answer[1]) == 4 and lists.asked == [4, 8, 8, 64]
    made.remove(nearest[20:MAX_RESULTS])
    assert made.search(target, 4) is None
    assert max(lists.asked) == MAX_RESULTS
    assert made.search(target, MAX_RESULTS + 1) is None


def test_what_keeps_faiss_from_a_gpu_is_one_sentence() -> None:
    if not hasattr(faiss, "StandardGpuResources"):
        with pytest.raises(StartupError, match=r"supports only the CPU, expected faiss-gpu.*nearhit\[faiss-gpu\]"):
            CudaDevice("cuda")
    elif faiss.get_num_gpus() == 0:
        with pytest.raises(StartupError, match="finds no GPU, expected that GPU and its driver"):
            CudaDevice("cuda")
    else:
        with pytest.raises(StartupError, match=r"finds .* GPU.*, expected that one"):
            CudaDevice("cuda:99")


async def test_a_gpu_finds_what_the_cpu_finds() -> None:
    try:
        device = CudaDevice("cuda")
    except StartupError as reason:
        pytest.skip(str(reason))
    with closing(index_on(device)) as index:
        await fill(index, range(400))
        await index.wait_settled()
        await fill(index, range(400, 420))
        await index.remove([str(i) for i in range(0, 300, 2)])
        await index.wait_settled()
        assert index.entries_on_device == index.size
        assert set(await found(index)) == {str(i) for i in range(420) if i >= 300 or i % 2}
        for i in (1, 299, 399, 419):
            assert (await found(index, i, 1)) == [str(i)]
