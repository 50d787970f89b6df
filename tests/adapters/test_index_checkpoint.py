"""The index on disk: whole or not used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.adapters.faiss import checkpoint
from gateway.adapters.faiss.checkpoint import (
    CheckpointChunk,
    CheckpointRefused,
    InvertedLists,
    PartitionKind,
    read_checkpoint,
    write_checkpoint,
)
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.faiss.partition import IvfPartition, Slice
from gateway.adapters.faiss.rebuilder import IndexPlan
from tests.fixtures.entries import DIMENSION, vector_of

KIND = PartitionKind("model/int8", DIMENSION)
PLAN = IndexPlan(flat_up_to=8, probes=10**6)


def new_index(max_entries: int = 100) -> FaissIndex:
    return FaissIndex(DIMENSION, max_entries=max_entries, plan=PLAN)


async def filled(index: FaissIndex) -> FaissIndex:
    """One scope in lists, one flat, one with a single entry."""
    for i in range(30):
        await index.add(f"n{i}", "big" if i % 3 else "small", vector_of(i))
    await index.add("alone", "tiny", vector_of(99))
    await index.remove(["n3", "n4"])
    await index.wait_settled()
    return index


async def everything(index: FaissIndex) -> dict[str, list[tuple[str, float]]]:
    return {
        scope: [(n.fingerprint, n.similarity) for n in await index.search(scope, vector_of(5), 100)]
        for scope in ("big", "small", "tiny")
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index" / "checkpoint"


@pytest.fixture
async def written(path: Path) -> Path:
    with closing(await filled(new_index())) as index:
        write_checkpoint(path, KIND, index.chunks())
    return path


def refusal(path: Path, kind: PartitionKind = KIND, max_entries: int = 100) -> str:
    with pytest.raises(CheckpointRefused) as refused:
        list(read_checkpoint(path, kind, max_entries))
    return str(refused.value)


async def test_what_was_written_is_found_again_in_the_same_form(path: Path) -> None:
    with closing(await filled(new_index())) as index, closing(new_index()) as loaded:
        assert write_checkpoint(path, KIND, index.chunks()) == index.size == 29
        await loaded.load(read_checkpoint(path, KIND, 100))
        assert await everything(loaded) == await everything(index)
        assert (loaded.size, loaded.changes) == (29, 0)
        assert isinstance(loaded._contents.partitions["big"], IvfPartition)
        assert loaded._contents.partitions["big"].trained_for == index._contents.partitions["big"].trained_for
        assert set(await loaded.fingerprints()) == set(await index.fingerprints())


async def test_a_loaded_index_is_added_to_and_removed_from_as_any(written: Path) -> None:
    with closing(new_index()) as index:
        await index.load(read_checkpoint(written, KIND, 100))
        assert await index.remove(["n5", "n9", "alone", "n3"]) == 3
        await index.add("new", "big", vector_of(500))
        assert "n5" not in [n.fingerprint for n in await index.search("big", vector_of(5), 100)]
        (best,) = await index.search("big", vector_of(500), 1)
        assert best.fingerprint == "new"
        assert index.size == 27


async def test_the_oldest_still_go_first(written: Path) -> None:
    with closing(new_index(max_entries=29)) as index:
        await index.load(read_checkpoint(written, KIND, 29))
        await index.add("new", "tiny", vector_of(500))
        assert set(await index.fingerprints()) == {"new", "alone", *(f"n{i}" for i in range(1, 30) if i not in (3, 4))}


async def test_what_was_added_before_the_load_is_younger_and_stays(written: Path) -> None:
    with closing(new_index(max_entries=29)) as index:
        await index.add("early", "small", vector_of(600))
        await index.add("n9", "tiny", vector_of(700))  # stored anew, elsewhere
        await index.load(read_checkpoint(written, KIND, 29))
        assert index.size == 29
        assert (await index.fingerprints())[-2:] == ["early", "n9"]
        assert "n9" not in [n.fingerprint for n in await index.search("small", vector_of(9), 100)]
        assert [n.fingerprint for n in await index.search("tiny", vector_of(700), 1)] == ["n9"]


async def test_an_entry_that_changed_its_scope_during_the_copy_is_there_once(path: Path) -> None:
    def chunks() -> Iterator[CheckpointChunk]:
        yield CheckpointChunk("old", ["a", "b"], Slice(np.array([1, 2]), np.stack([vector_of(1), vector_of(2)])), None)
        yield CheckpointChunk("new", ["a"], Slice(np.array([3]), vector_of(3)[np.newaxis]), None)

    write_checkpoint(path, KIND, chunks())
    with closing(new_index()) as index:
        await index.load(read_checkpoint(path, KIND, 100))
        assert index.size == 2
        assert [n.fingerprint for n in await index.search("old", vector_of(1), 9)] == ["b"]
        assert [n.fingerprint for n in await index.search("new", vector_of(3), 9)] == ["a"]


async def test_a_copy_taken_while_the_index_changes_holds_all_that_stayed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(await filled(new_index())) as index, closing(new_index()) as loaded:
        pieces = index.chunks()
        first = next(pieces)
        await index.remove(["n6", "n29", "alone"])
        await index.add("late", "big", vector_of(800))
        write_checkpoint(path, KIND, iter([first, *pieces]))
        await loaded.load(read_checkpoint(path, KIND, 100))
        assert set(await loaded.fingerprints()) >= set(await index.fingerprints()) - {"late"}


async def test_the_file_is_its_owners_alone(written: Path) -> None:
    """Vectors tell something of the questions that they were made of."""
    assert [each.stat().st_mode & 0o077 for each in (written, written.parent)] == [0, 0]


def test_there_is_none_at_first(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_checkpoint(path, KIND, 100))


async def test_one_of_another_embedder_dimension_or_version_is_refused(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of two models are never compared."""
    assert refusal(written, PartitionKind("other", DIMENSION)) == "its embedder is 'model/int8', expected 'other'"
    assert refusal(written, PartitionKind("model/int8", 8)) == f"its dimension is {DIMENSION}, expected 8"
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    assert refusal(written) == "its version is 1, expected 2"


async def test_one_with_more_than_the_index_takes_is_refused(written: Path) -> None:
    assert refusal(written, max_entries=28) == "it holds 29 entries, expected at most 28 (index.max_entries)"


@pytest.mark.parametrize("kept", [0, 10, 1023, 1024, 1500, -1])
async def test_a_torn_file_is_refused(written: Path, kept: int) -> None:
    data = written.read_bytes()
    written.write_bytes(data[:kept])
    assert "truncated" in refusal(written)
    written.write_bytes(data + b"x")
    assert "truncated" in refusal(written)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
async def test_no_flipped_bit_goes_unnoticed(written: Path, position: int, bit: int) -> None:
    whole = written.read_bytes()
    data = bytearray(whole)
    used = [*range(whole.index(b"}\n") + 1), *range(1024, len(whole))]  # the rest of the header is padding
    data[used[position % len(used)]] ^= 1 << bit
    written.write_bytes(data)
    try:
        refusal(written)
    finally:
        written.write_bytes(whole)


ODD_VECTOR = Slice(np.array([1]), vector_of(1, DIMENSION - 1)[np.newaxis])
ODD_COUNT = Slice(np.array([1, 2]), vector_of(1)[np.newaxis])
ODD_LIST = Slice(np.array([1]), vector_of(1)[np.newaxis].astype(np.float16), np.array([1], dtype=np.int32))
ONE_LIST = InvertedLists(vector_of(1)[np.newaxis], 1)


@pytest.mark.parametrize(("part", "lists"), [(ODD_VECTOR, None), (ODD_COUNT, None), (ODD_LIST, ONE_LIST)])
def test_a_sound_file_with_odd_content_is_refused(path: Path, part: Slice, lists: InvertedLists | None) -> None:
    write_checkpoint(path, KIND, iter([CheckpointChunk("s", ["a"], part, lists)]))
    assert refusal(path) == "its content cannot be read (ValueError)"


async def test_a_crash_before_the_rename_leaves_the_last_one(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def crash(self: Path, target: Path) -> None:
        raise OSError("the machine stops here")

    monkeypatch.setattr(Path, "replace", crash)
    with closing(new_index()) as index, pytest.raises(OSError, match="stops here"):
        write_checkpoint(written, KIND, index.chunks())
    monkeypatch.undo()
    assert written.read_bytes() == before
    # What a killed process leaves beside it is no obstacle and is never read.
    written.with_name("checkpoint.new").write_bytes(b"half of it")
    with closing(new_index()) as index:
        await index.load(read_checkpoint(written, KIND, 100))
        assert index.size == 29
        write_checkpoint(written, KIND, index.chunks())
    assert [file.name for file in written.parent.iterdir()] == ["checkpoint"]


async def test_a_disk_that_fills_up_leaves_the_last_one(written: Path) -> None:
    before = written.read_bytes()

    def chunks() -> Iterator[CheckpointChunk]:
        yield CheckpointChunk("s", ["a"], Slice(np.array([1]), vector_of(1)[np.newaxis]), None)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_checkpoint(written, KIND, chunks())
    assert written.read_bytes() == before
    assert [file.name for file in written.parent.iterdir()] == ["checkpoint"]
