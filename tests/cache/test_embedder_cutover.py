"""One embedding model follows another: hits by meaning go on all the way, nothing is lost, nothing is mixed."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.embedding.embedders import BatchingEmbedder, InlineEmbedder
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.migration import RedisMigration
from gateway.adapters.redis.replies import data, list_of, nothing, optional
from gateway.adapters.redis.store import RedisStore
from gateway.cache import embedding_migration, model_factory
from gateway.cache.embedding_spaces import PendingEmbeddings
from gateway.cache.recovery import Recovery
from gateway.cache.threshold.route_control import Evidence
from gateway.config import Config
from gateway.entries import Embedding, Neighbour, Vector
from gateway.errors import EmbedderUnavailable
from gateway.ports import Embedder
from gateway.steps import opening
from tests.cache.test_embedding_migration import Reversed, alike, is_exact, is_miss, is_semantic
from tests.fixtures.entries import entry_of, vector_of
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, recovered
from tests.fixtures.gateways import gateway_of as gateway_with
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

gateway_of = partial(gateway_with, policy=BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.7"))
QUESTIONS = (
    "which trains go to Vienna tomorrow morning",
    "how do I bake bread with rye flour",
    "what does a red traffic light mean",
    "who painted the ceiling of the Sistine Chapel",
    "why is the sea salty and the lake not",
)
LATE = "when does the museum of natural history close"
HASH, ONNX = {"adapter": "hash"}, {"adapter": "onnx"}
Start = Callable[..., Config]


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_migration, "GRACE_S", 0.0)


@pytest.fixture
def start(upstream: Upstream, tmp_path: Path) -> Start:
    """A configuration on one store and data directory, with this model, after that one."""

    def start(model: dict[str, Any], after: dict[str, Any] | None = None, **sections: Any) -> Config:
        embedder = {"timeout": "30s", **model} | (
            {} if after is None else {"migrate_from": {"timeout": "30s", **after}}
        )
        backends = {"main": {"adapter": "openai", "url": upstream.url}}
        return config_of(tmp_path, backends, embedder=embedder, verifier={"adapter": "checks"}, **sections)

    return start


class Held:
    """The migration, stopped before the third entry gets its vector until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._free = asyncio.Event()
        self.reached: list[str] = []
        replace = RedisMigration.replace

        async def held(migration: RedisMigration, *given: Any) -> bool:
            self.reached.append(given[0])
            if len(self.reached) >= 3:
                await self._free.wait()
            return await replace(migration, *given)

        monkeypatch.setattr(RedisMigration, "replace", held)

    async def third(self) -> None:
        await until(lambda: len(self.reached) >= 3)

    def go(self) -> None:
        self._free.set()


async def fill(config: Config) -> None:
    async with gateway_of(config) as served:
        for question in QUESTIONS:
            assert is_miss(await served.chat(question))


async def all_found(served: Served, *questions: str) -> None:
    for question in questions:
        answer = await served.chat(alike(question))
        assert is_semantic(answer) and answer.text.endswith(question), question


async def is_gone(served: Served, question: str) -> bool:
    answer = await served.chat(alike(question), headers={"Cache-Control": "only-if-cached"})
    return answer.status == 504


async def followed(served: Served) -> None:
    """Returns once lookups go by the model that came, and the store keeps no other's vectors."""
    await until(lambda: served.gateway.parts.spaces.upcoming is None)
    await until(lambda: served.gateway.cutover.done)


async def fields_of(served: Served, field: str) -> list[bytes | None]:
    names = [name async for name, _ in served.gateway.stores.redis.fingerprints()]

    async def read(client: Any) -> list[bytes | None]:
        return [await client.hget(ONE_SERVER.entry(name), field) for name in names]

    return await served.gateway.stores.redis.execute(read, 10.0, read=list_of(optional(data)))


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("old", "new"), [(HASH, ONNX), (ONNX, HASH)], ids=["hash to onnx", "onnx to hash"])
async def test_hits_by_meaning_go_on_before_during_and_after_one_swap(
    start: Start,
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    old: dict[str, str],
    new: dict[str, str],
) -> None:
    caplog.set_level(logging.INFO, "nearhit")
    await fill(start(old))
    calls, held = len(upstream.chats), Held(monkeypatch)
    async with gateway_of(start(new, old)) as served:
        await recovered(served)
        before = served.gateway.parts.space.embedder.fingerprint
        await held.third()
        await all_found(served, *QUESTIONS)
        assert served.gateway.describe()["migration"] == {"done": 2, "left": 3, "skipped": 0}
        assert is_miss(await served.chat(LATE))
        await all_found(served, LATE)
        assert served.gateway.parts.space.embedder.fingerprint == before
        held.go()
        await followed(served)
        await all_found(served, *QUESTIONS, LATE)
        space = served.gateway.parts.space
        assert space.embedder.fingerprint == served.gateway.describe()["embedder"] != before
        assert served.gateway.describe()["embedder_to_come"] is None
        assert space.index.size == len(QUESTIONS) + 1
        assert set(await fields_of(served, "embedder")) == {space.embedder.fingerprint.encode()}
        assert set(await fields_of(served, "former")) == {None}
    assert len(upstream.chats) == calls + 1
    assert said(caplog, "lookups now use the new embedding model") == 1


@pytest.mark.parametrize("checkpoint", ["5m", "off"])
async def test_a_migration_that_was_cut_goes_on_and_hits_go_on_with_it(
    start: Start,
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    checkpoint: str,
) -> None:
    start = partial(start, index={"checkpoint": checkpoint})
    await fill(start(HASH))
    calls = len(upstream.chats)
    for _ in range(2):
        with monkeypatch.context() as patch:
            held = Held(patch)
            async with gateway_of(start(ONNX, HASH)) as served:
                await recovered(served)
                await all_found(served, *QUESTIONS)
                if len(await fields_of(served, "former")) - (await fields_of(served, "former")).count(None) < 4:
                    await held.third()
    async with gateway_of(start(ONNX, HASH)) as served:
        await recovered(served)
        await all_found(served, *QUESTIONS)
        await followed(served)
        await all_found(served, *QUESTIONS)
    assert len(upstream.chats) == calls
    caplog.clear()
    caplog.set_level(logging.INFO, "nearhit")
    async with gateway_of(start(ONNX, HASH)) as served:
        assert served.gateway.parts.spaces.upcoming is None, "it has been done: the old model is not even loaded"
        assert said(caplog, "lookups use the new model already") == 1
        await recovered(served)
        await all_found(served, *QUESTIONS)
        assert said(caplog, "the saved learned state does not fit") == 0


async def test_what_is_on_its_way_while_models_are_swapped_is_found_afterwards(
    start: Start, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(start(HASH))
    held = Held(monkeypatch)
    async with gateway_of(start(ONNX, HASH)) as served:
        await held.third()
        upstream.gate.clear()
        upstream.arrived.clear()
        asked = asyncio.create_task(served.chat(LATE))
        await upstream.arrived.wait()
        held.go()
        await followed(served)
        upstream.gate.set()
        assert is_miss(await asked)
        index = served.gateway.parts.space.index
        await until(lambda: index.size == len(QUESTIONS) + 1)
        await all_found(served, LATE)


@pytest.mark.parametrize("how", ["fingerprint", "like", "tag"])
async def test_a_removal_in_between_holds_for_both_models(
    start: Start, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with gateway_of(start(HASH)) as served:
        for question in QUESTIONS:
            await served.chat(question, headers={"Cache-Tag": question.split()[-1]})
    held = Held(monkeypatch)
    async with gateway_of(start(ONNX, HASH)) as served:
        await recovered(served)
        await held.third()
        done, _, waits = held.reached
        for name in (done, waits):
            entry = await served.gateway.parts.store.get(name)
            assert entry is not None and entry.question is not None
            wanted: dict[str, Any] = {"fingerprint": {"fingerprint": name}, "tag": {"tags": list(entry.tags)}}.get(
                how, {"like": entry.question, "min_similarity": 0.9}
            )
            async with served.session.post(served.admin_url + "/admin/cache/purge", json=wanted) as response:
                assert (await response.json())["removed"] == 1
            assert await is_gone(served, entry.question)
            for space in served.gateway.parts.spaces.all:
                assert name not in await space.index.fingerprints()
        held.go()
        await followed(served)
        assert not {done, waits} & set(await served.gateway.parts.space.index.fingerprints())
        assert served.gateway.parts.space.index.size == len(QUESTIONS) - 2


async def test_the_former_model_and_its_index_are_let_go_of(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(start(HASH))
    held = Held(monkeypatch)
    async with gateway_of(start(ONNX, HASH)) as served:
        await recovered(served)
        former = [weakref.ref(served.gateway.parts.space.index), weakref.ref(served.gateway.parts.space.embedder)]
        await held.third()
        await all_found(served, *QUESTIONS)
        held.go()
        await followed(served)
        await all_found(served, *QUESTIONS)

        def let_go() -> bool:
            gc.collect()
            return [each() for each in former] == [None, None]

        await until(let_go)  # a thread holds its last work for a moment after the result
        folder = served.gateway.config.data_dir / "index"
        assert not (folder / "former").exists()
    assert [file.name for file in folder.iterdir()] == ["checkpoint"]


async def test_more_newcomers_than_are_remembered_are_found_in_the_store(
    start: Start, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "PendingEmbeddings", partial(PendingEmbeddings, 1))
    await fill(start(HASH))
    held = Held(monkeypatch)
    late = [LATE, "how many legs does a spider have", "what is the tallest tree in the forest"]
    async with gateway_of(start(ONNX, HASH)) as served:
        await recovered(served)
        await held.third()
        for question in late:
            assert is_miss(await served.chat(question))
        assert served.gateway.parts.spaces.pending.overflowed
        calls = len(upstream.chats)
        held.go()
        await followed(served)
        await all_found(served, *QUESTIONS, *late)
        assert len(upstream.chats) == calls


async def test_too_many_newcomers_at_the_very_end_hold_the_swap_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "PendingEmbeddings", partial(PendingEmbeddings, 1))
    await fill(start(HASH))
    reconcile, late, times = Recovery.reconcile, [LATE, "how many legs does a spider have"], 0
    started = asyncio.Event()

    async def while_they_come(self: Recovery) -> None:
        nonlocal times
        times += 1
        if times == 3:  # the serving index, the one that is coming, and that one once more before the swap
            await started.wait()
            for question in late:
                assert is_miss(await served.chat(question))
        await reconcile(self)

    monkeypatch.setattr(Recovery, "reconcile", while_they_come)
    async with gateway_of(start(ONNX, HASH)) as served:
        started.set()
        await followed(served)
        assert times == 4
        assert served.gateway.parts.space.index.size == len(QUESTIONS) + len(late)
        await all_found(served, *QUESTIONS, *late)


async def test_two_gateways_on_one_store_swap_each_by_itself(
    start: Start, upstream: Upstream, outside_store: OutsideServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"store": {"url": outside_store.url, "timeout": "10s"}}
    await fill(start(HASH, **shared))
    held = Held(monkeypatch)
    one = start(ONNX, HASH, **shared)
    async with gateway_of(one) as first, gateway_of(one.model_copy(update={"data_dir": tmp_path / "2"})) as second:
        await recovered(first)
        await recovered(second)
        await held.third()
        await all_found(first, *QUESTIONS)
        await all_found(second, *QUESTIONS)
        held.go()
        await followed(first)
        await all_found(second, *QUESTIONS)
        await followed(second)
        for served in (first, second):
            await all_found(served, *QUESTIONS)
            assert served.gateway.parts.space.index.size == len(QUESTIONS)
        assert set(await fields_of(first, "former")) == {None}


async def test_the_figures_say_what_lookups_go_by(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(start(HASH))
    held = Held(monkeypatch)
    async with gateway_of(start(ONNX, HASH)) as served:
        await held.third()
        during = served.gateway.stats.report()
        held.go()
        await followed(served)
        after = served.gateway.stats.report()
    assert during["embedder_to_come"].startswith("all-MiniLM-L6-v2")
    assert during["migration"] == {"done": 2, "left": 3, "skipped": 0}
    assert after["embedder_to_come"] is None
    assert after["migration"] == {"done": 5, "left": 0, "skipped": 0}


async def test_what_the_server_lets_go_leaves_both_indexes(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(start(HASH))
    held = Held(monkeypatch)
    async with gateway_of(start(ONNX, HASH)) as served:
        await recovered(served)
        await held.third()
        gone = held.reached[0]
        await served.gateway.stores.redis.execute(
            lambda client: client.delete(ONE_SERVER.entry(gone)), 10.0, read=nothing
        )
        await served.gateway.parts.evictions.compare()
        for space in served.gateway.parts.spaces.all:
            assert gone not in await space.index.fingerprints()


def noting(made: dict[bytes, str], embed: Callable[[Any, str, str], Awaitable[Embedding]]) -> Any:
    """With each vector, in `made`, by whom it was made."""

    async def embedded(self: Embedder, text: str, owner: str = "") -> Embedding:
        found = await embed(self, text, owner)
        made[found.vector.tobytes()] = self.fingerprint
        return found

    return embedded


def noting_nowait(made: dict[bytes, str], embed: Callable[[Any, str, str], Embedding | None]) -> Any:
    def embedded(self: Embedder, text: str, owner: str = "") -> Embedding | None:
        found = embed(self, text, owner)
        if found is not None:
            made[found.vector.tobytes()] = self.fingerprint
        return found

    return embedded


async def test_vectors_of_two_models_are_never_compared(
    start: Start, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two models of one dimension, so that nothing but the code keeps them apart."""
    monkeypatch.setattr(model_factory, "OnnxEncoder", lambda *_, **__: Reversed())
    made: dict[bytes, str] = {}
    met: dict[Any, set[str]] = defaultdict(set)
    add, search, near, shift = FaissIndex.add, FaissIndex.search, FaissIndex.near, Evidence.shift
    search_nowait = FaissIndex.search_nowait

    def searched_at_once(self: FaissIndex, scope: str, vector: Vector, k: int) -> Sequence[Neighbour] | None:
        met[self].add(made[vector.tobytes()])
        return search_nowait(self, scope, vector, k)

    async def added(self: FaissIndex, fingerprint: str, scope: str, vector: Vector, expires: float) -> None:
        met[self].add(made[vector.tobytes()])
        await add(self, fingerprint, scope, vector, expires)

    async def searched(self: FaissIndex, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        met[self].add(made[vector.tobytes()])
        return await search(self, scope, vector, k)

    async def looked(self: FaissIndex, vector: Vector, similarity: float) -> Sequence[str]:
        met[self].add(made[vector.tobytes()])
        return await near(self, vector, similarity)

    def shifted(self: Evidence, vector: Vector) -> float:
        met[self].add(made[vector.tobytes()])
        return shift(self, vector)

    for owner, name, replacement in (
        (BatchingEmbedder, "embed", noting(made, BatchingEmbedder.embed)),
        (InlineEmbedder, "embed", noting(made, InlineEmbedder.embed)),
        (BatchingEmbedder, "embed_nowait", noting_nowait(made, BatchingEmbedder.embed_nowait)),
        (InlineEmbedder, "embed_nowait", noting_nowait(made, InlineEmbedder.embed_nowait)),
        (FaissIndex, "search_nowait", searched_at_once),
        (FaissIndex, "add", added), (FaissIndex, "search", searched), (FaissIndex, "near", looked),
        (Evidence, "shift", shifted),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, replacement)
    learning = partial(gateway_with, policy=BOTH_CACHES)
    async with learning(start(HASH)) as served:
        for question in QUESTIONS:
            await served.chat(question)
    held = Held(monkeypatch)
    async with learning(start(ONNX, HASH)) as served:
        await recovered(served)
        await held.third()
        for question in (*QUESTIONS, LATE):
            await served.chat(alike(question) + " please")
        held.go()
        await asyncio.gather(followed(served), *(served.chat(f"{question}, please") for question in QUESTIONS))
        for question in (*QUESTIONS, LATE):
            await served.chat("please: " + question)
    assert set(map(len, met.values())) == {1}
    assert set().union(*met.values()) == {"hash/384/v2", "hash/reversed"}


@pytest.mark.parametrize("checkpoint", ["5m", "off"])
async def test_who_goes_back_in_the_middle_has_lost_nothing(
    start: Start, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, checkpoint: str
) -> None:
    await fill(start(HASH, index={"checkpoint": checkpoint}))
    calls = len(upstream.chats)
    with monkeypatch.context() as patch:
        held = Held(patch)
        async with gateway_of(start(ONNX, HASH, index={"checkpoint": checkpoint})) as served:
            await held.third()
    async with gateway_of(start(HASH, index={"checkpoint": checkpoint})) as served:
        await recovered(served)
        await all_found(served, *QUESTIONS)
        await until(lambda: served.gateway.cutover.done)
        assert served.gateway.describe()["migration"] == {"done": 0, "left": 0, "skipped": 0}
        assert set(await fields_of(served, "former")) == {None}
        assert set(await fields_of(served, "embedder")) == {b"hash/384/v2"}
    assert len(upstream.chats) == calls


async def test_without_the_old_model_it_says_so_and_embeds_anew_without_it(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(start(HASH))
    async with gateway_of(start(ONNX, {"adapter": "onnx", "model": "none-such"})) as served:
        assert said(caplog, "embedder.migrate_from: the model cannot be loaded") == 1
        assert served.gateway.parts.spaces.upcoming is None
        await recovered(served)
        assert is_exact(await served.chat(QUESTIONS[0]))
        await until(lambda: served.gateway.migration.complete)
        await all_found(served, *QUESTIONS)


async def test_the_model_in_use_is_no_model_to_migrate_from(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_of(start(HASH, HASH)) as served:
        assert said(caplog, "embedder.migrate_from names the model in use") == 1
        assert served.gateway.parts.spaces.upcoming is None


async def test_lookups_stay_with_the_old_model_while_the_new_one_gives_no_vectors(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its texts would all be skipped, and the cache be empty after the swap."""
    await fill(start(HASH))
    monkeypatch.setattr("gateway.cache.embedding_migration.RETRY_S", 0.01)
    monkeypatch.setattr("gateway.cache.embedding_migration.MAX_UNANSWERED", 2)
    embed, away, tries = BatchingEmbedder.embed, asyncio.Event(), 0

    async def sometimes(self: BatchingEmbedder, text: str, owner: str = "") -> Embedding:
        nonlocal tries
        if not self.fingerprint.startswith("hash") and not away.is_set() and text in QUESTIONS:
            tries += 1
            raise EmbedderUnavailable("not now")
        return await embed(self, text, owner)

    monkeypatch.setattr(BatchingEmbedder, "embed", sometimes)
    async with gateway_of(start(ONNX, HASH)) as served:
        await recovered(served)
        await until(lambda: tries > 20)
        await all_found(served, *QUESTIONS)
        away.set()
        await followed(served)
        await all_found(served, *QUESTIONS)


async def test_feedback_on_a_hit_of_the_old_model_teaches_the_new_one_nothing_and_is_heeded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(start(HASH))
    held = Held(monkeypatch)
    async with gateway_of(start(ONNX, HASH)) as served:
        await held.third()
        hit = await served.chat(alike(QUESTIONS[0]))
        assert is_semantic(hit)
        held.go()
        await followed(served)
        said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
        assert (await served.post("/v1/feedback", said)).status == 200
        assert served.gateway.parts.space.controls.of("default").labels == 0
        assert await is_gone(served, QUESTIONS[0])


async def test_a_fenced_answer_is_a_newcomer_too_and_one_without_a_vector_is_none(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    async with gateway_of(start(HASH)) as served:
        view: RedisStore = served.gateway.stores.redis.for_embedder("e1", told.append)
        entry = entry_of("with")
        await view.put(entry, vector_of(1))
        await view.put(entry_of("without"), None)
        assert not await view.put(entry, vector_of(1), 1), "what lies there may be newer"
        assert told == [entry.fingerprint]
