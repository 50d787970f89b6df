"""The append-only file of the embedded store, which has what was deleted until it is rewritten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.adapters.redis import append_only_file
from gateway.adapters.redis.append_only_file import OUTSIDE, AppendOnlyFile
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from tests.fixtures.entries import entry_of
from tests.fixtures.stores import OutsideServer

CANARY = "the canary of alice"


@asynccontextmanager
async def store_in(path: Path) -> AsyncIterator[RedisStore]:
    async with AsyncExitStack() as stack:
        valkey = await EmbeddedValkey.start(path, max_memory=2**26)
        stack.push_async_callback(valkey.stop)
        store = RedisStore(connect(valkey.url, 30.0), embedder="e1", timeout_s=30.0, clock=SystemClock())
        stack.push_async_callback(store.close)
        yield store


def is_on_disk(path: Path) -> bool:
    return any(CANARY.encode() in file.read_bytes() for file in (path / "store").rglob("*") if file.is_file())


async def put_and_delete(store: RedisStore) -> None:
    entry = entry_of("alice", question=CANARY)
    await store.put(entry, None)
    await store.put(entry_of("bob", question="of bob"), None)
    await store.delete([entry.fingerprint])


async def test_what_was_deleted_is_not_on_disk_any_more(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await put_and_delete(store)
        assert is_on_disk(tmp_path), "it is there until the file is rewritten"
        assert await AppendOnlyFile(store, owned=True).drop_deleted() == []
        assert not is_on_disk(tmp_path)
        assert await store.get(entry_of("bob").fingerprint) is not None


async def test_a_rewrite_that_began_before_is_followed_by_another(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await put_and_delete(store)
        file = AppendOnlyFile(store, owned=True)
        await store.send("BGREWRITEAOF")
        assert await asyncio.gather(*(file.drop_deleted() for _ in range(4))) == [[], [], [], []]
        assert not is_on_disk(tmp_path)


async def test_the_wait_is_bounded_and_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_only_file, "REWRITE_S", 0.0)
    async with store_in(tmp_path) as store:
        (sentence,) = await AppendOnlyFile(store, owned=True).drop_deleted()
    assert sentence.startswith("not reached: the append-only file")
    assert "did not end within 0 s" in sentence


async def test_a_store_that_does_not_answer_is_not_reached(tmp_path: Path) -> None:
    store = RedisStore(connect("redis://127.0.0.1:1"), embedder="e1", timeout_s=5.0, clock=SystemClock())
    (sentence,) = await AppendOnlyFile(store, owned=True).drop_deleted()
    await store.close()
    assert sentence.startswith("not reached: ")


async def test_the_server_of_an_operator_stays_as_it_is(outside_store: OutsideServer) -> None:
    store = RedisStore(connect(outside_store.url, 30.0), embedder="e1", timeout_s=30.0, clock=SystemClock())
    assert await AppendOnlyFile(store, owned=False).drop_deleted() == [OUTSIDE]
    await store.close()
    assert outside_store.client.info("persistence")["aof_rewrites"] == 0


async def test_a_start_removes_what_a_rewrite_that_was_cut_off_left(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "appendonlydir"
    folder.mkdir(parents=True)
    for left in (folder / "temp-appendonly.aof.incr", folder.parent / "temp-rewriteaof-bg-17.aof"):
        left.write_text(CANARY)
    async with store_in(tmp_path):
        assert not is_on_disk(tmp_path)
