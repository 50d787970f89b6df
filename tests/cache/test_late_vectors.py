"""Entries that were stored without a vector get it later, unless they are gone by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from gateway.adapters.system.clock import SystemClock
from gateway.cache import late_vectors
from gateway.cache.bans import Ban, BanConditions, SimilarityCondition
from gateway.cache.late_vectors import LateVectors
from gateway.cache.load_level import EncoderLoad
from gateway.cache.memory_cache import TieredStore
from gateway.entries import Embedding, Entry, Vector
from gateway.errors import EmbedderUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import EncoderCpu, EncoderQueue, OwnedText
from gateway.tasks import cancel_and_wait
from tests.fixtures.entries import DIMENSION, entry_of, vector_of
from tests.fixtures.fakes import ExactIndex, MemoryStore
from tests.fixtures.waiting import until


class GatedEmbedder:
    """Embeds texts once `gate` is set: a text is a number, the seed of its vector. `down`: it fails."""

    fingerprint, dimension = "gated", DIMENSION

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.embedded: list[str] = []
        self.passes: list[int] = []  # texts in each
        self.down = False
        self.partial = False

    async def embed(self, text: str, owner: str = "") -> Embedding:
        await self.gate.wait()
        self.embedded.append(text)
        if self.down:
            raise EmbedderUnavailable("down")
        return Embedding(vector_of(int(text)), 3, self.partial)

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        return None

    async def embed_idle(self, texts: Sequence[str]) -> list[Embedding]:
        raise AssertionError("late vectors are no learning")

    async def embed_deferred(self, texts: Sequence[OwnedText]) -> list[Embedding]:
        self.passes.append(len(texts))
        return [await self.embed(text, owner) for owner, text in texts]

    @property
    def cpu(self) -> EncoderCpu:
        return EncoderCpu()

    @property
    def queue(self) -> EncoderQueue:
        return EncoderQueue()


class Late:
    def __init__(self, limit: int) -> None:
        self.backing = MemoryStore(SystemClock())
        self.store = TieredStore(self.backing, max_bytes=10**6, max_age_s=None, clock=SystemClock(), embedder="gated")
        self.index = ExactIndex(DIMENSION, max_entries=99)
        self.embedder = GatedEmbedder()
        self.telemetry = Telemetry()
        self.wait_s = 0.0
        load = EncoderLoad([lambda: EncoderQueue(self.wait_s)], 2.0, self.telemetry.left_out)
        self.vectors = LateVectors(self.embedder, self.index, self.store, self.telemetry, load, limit)
        self.ledger: list[str] = []
        self.vectors.stored = lambda entry, _: self.ledger.append(entry.fingerprint)

    async def stored_without_vector(self, seed: int) -> Entry:
        entry = entry_of(str(seed), question=str(seed))
        await self.store.put(entry, None)
        self.vectors.add(entry, "acme")
        return entry

    async def finished(self) -> dict[str, float]:
        """Let the embedder work, and return the counts by result."""
        self.embedder.gate.set()
        await until(lambda: self.vectors.idle)
        return self.results

    @property
    def results(self) -> dict[str, float]:
        return {result: count for (_, result), count in self.telemetry.late_vectors.values.items()}


@asynccontextmanager
async def late_of(limit: int = 9) -> AsyncIterator[Late]:
    late = Late(limit)
    job = asyncio.create_task(late.vectors.run())
    yield late
    await cancel_and_wait(job)


@pytest.fixture
async def late() -> AsyncIterator[Late]:
    async with late_of() as late:
        yield late


async def vectors_in(late: Late) -> dict[str, Vector]:
    return {each.fingerprint: each.vector async for each in late.backing.vectors()}


async def test_an_entry_gets_its_vector_in_store_index_and_ledger(late: Late) -> None:
    entry = await late.stored_without_vector(1)
    assert await late.finished() == {"stored": 1}
    assert list(await vectors_in(late)) == await late.index.fingerprints() == late.ledger == [entry.fingerprint]


async def test_an_entry_that_was_removed_or_fetched_again_is_left_alone(late: Late) -> None:
    removed, replaced = await late.stored_without_vector(1), await late.stored_without_vector(2)
    await late.store.delete([removed.fingerprint])
    await late.store.put(replace(replaced, created=replaced.created + 1), None)
    assert await late.finished() == {"gone": 2}
    assert not await vectors_in(late) and late.index.size == 0 and not late.ledger


async def test_a_ban_by_similarity_during_the_wait_removes_the_entry(late: Late) -> None:
    """Without its vector nobody could tell that the ban covers the entry."""
    entry = await late.stored_without_vector(1)
    near = SimilarityCondition(vector_of(1), 0.9, embedder="gated")
    late.store.bans.add(Ban("b", entry.created + 1, entry.expires, BanConditions(near=near)), entry.created)
    assert await late.store.get(entry.fingerprint) is not None
    assert await late.finished() == {"gone": 1}
    assert await late.backing.get(entry.fingerprint) is None
    assert late.index.size == 0


async def test_without_the_embedder_the_entry_stays_without_a_vector(late: Late) -> None:
    late.embedder.down = True
    entry = await late.stored_without_vector(1)
    assert await late.finished() == {"failed": 1}
    assert await late.store.get(entry.fingerprint) == entry


async def test_without_the_store_the_next_one_is_worked_on(late: Late) -> None:
    await late.stored_without_vector(1)
    late.backing.down = True
    assert await late.finished() == {"failed": 1}
    late.backing.down = False
    await late.stored_without_vector(2)
    assert await late.finished() == {"failed": 1, "stored": 1}


async def test_a_text_that_the_model_cuts_gets_no_vector(late: Late) -> None:
    late.embedder.partial = True
    await late.stored_without_vector(1)
    assert await late.finished() == {}
    assert late.index.size == 0


async def test_a_loaded_encoder_gets_no_late_question(late: Late) -> None:
    late.wait_s = 0.2
    await late.stored_without_vector(1)
    assert await late.finished() == {"dropped": 1}
    late.wait_s = 0.0
    await late.stored_without_vector(2)
    assert await late.finished() == {"dropped": 1, "stored": 1}
    assert late.embedder.embedded == ["2"]


async def test_beyond_the_bound_the_oldest_is_dropped() -> None:
    async with late_of(limit=2) as late:
        for seed in range(5):  # the first is being embedded, and the last two wait
            await late.stored_without_vector(seed)
            await until(lambda: len(late.vectors) <= 2)
            await asyncio.sleep(0)
        assert late.results == {"dropped": 2}
        assert await late.finished() == {"dropped": 2, "stored": 3}
        assert late.embedder.embedded == ["0", "3", "4"]


async def test_questions_that_wait_share_a_pass() -> None:
    async with late_of(limit=99) as late:
        await late.stored_without_vector(0)
        await until(lambda: late.embedder.passes == [1])
        for seed in range(1, 12):
            await late.stored_without_vector(seed)
        assert await late.finished() == {"stored": 12}
        assert late.embedder.passes == [1, 8, 3]
        assert late.embedder.embedded == [str(seed) for seed in range(12)]


async def test_a_question_is_checked_before_its_entry_is_in_the_index(late: Late) -> None:
    checked: list[int] = []

    async def check(embedding: Embedding) -> None:
        checked.append(late.index.size)

    entry = entry_of("1", question="1")
    late.vectors.begin(entry.fingerprint, "default", "acme", "1", check)
    await late.store.put(entry, None)
    late.vectors.add(entry, "acme")
    assert await late.finished() == {"stored": 1}
    assert checked == [0] and late.index.size == 1
    assert late.embedder.embedded == ["1"]


async def test_a_question_without_a_stored_answer_is_only_checked(late: Late) -> None:
    checked: list[Embedding] = []

    async def check(embedding: Embedding) -> None:
        checked.append(embedding)

    late.vectors.begin("f", "default", "acme", "1", check)
    assert await late.finished() == {}
    assert len(checked) == 1


async def test_a_check_that_fails_ends_nothing(late: Late) -> None:
    async def check(embedding: Embedding) -> None:
        raise ZeroDivisionError

    late.vectors.begin("f", "default", "acme", "1", check)
    await late.stored_without_vector(2)
    assert await late.finished() == {"failed": 1, "stored": 1}


async def test_the_end_waits_a_while_and_drops_the_rest(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    await late.stored_without_vector(1)
    draining = asyncio.create_task(late.vectors.drain())
    await late.finished()
    await draining
    assert late.results == {"stored": 1}
    late.embedder.gate.clear()
    await late.stored_without_vector(2)
    await until(lambda: not len(late.vectors))
    await late.stored_without_vector(3)
    monkeypatch.setattr(late_vectors, "DRAIN_S", 0.0)
    await late.vectors.drain()
    assert late.results == {"stored": 1, "dropped": 2}


async def test_an_embedding_that_is_there_before_the_answer_is_taken_once(late: Late) -> None:
    async def check(embedding: Embedding) -> None:
        pass

    late.vectors.begin("f", "default", "acme", "1", check)
    await late.finished()
    embedding = late.vectors.take("f")
    assert embedding is not None and np.array_equal(embedding.vector, vector_of(1))
    assert late.vectors.take("f") is None


async def test_an_embedding_that_comes_during_the_put_is_not_made_again(late: Late) -> None:
    async def check(embedding: Embedding) -> None:
        pass

    entry = entry_of("1", question="1")
    late.vectors.begin(entry.fingerprint, "default", "acme", "1", check)
    await late.store.put(entry, None)
    await late.finished()
    late.vectors.add(entry, "acme")
    assert await late.finished() == {"stored": 1}
    assert late.embedder.embedded == ["1"]
