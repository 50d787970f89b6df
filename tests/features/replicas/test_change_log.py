"""What is written tells of itself, and a log that was cut off says so. On a real Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.purge import RedisPurges
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable
from gateway.features.replicas.change_log import CHANGES_KEY, START, ChangeLogReader, ChangeLogWriter
from gateway.features.replicas.lease_store import RedisLeases
from gateway.ports import ChangeKind
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, hexed, vector_of
from tests.fixtures.gateways import PATIENT_S
from tests.fixtures.stores import OutsideServer

A, B = hexed("a"), hexed("b")


@pytest.fixture
async def store(outside_store: OutsideServer) -> AsyncIterator[RedisStore]:
    opened = RedisStore(
        connect(outside_store.url, PATIENT_S),
        embedder="e1",
        timeout_s=PATIENT_S,
        clock=FakeClock(),
        journal=ChangeLogWriter("g1", 1_000),
    )
    yield opened
    await opened.close()


@pytest.fixture
def log(store: RedisStore) -> ChangeLogReader:
    return ChangeLogReader(store._client)


async def read(log: ChangeLogReader, after: str = START) -> list[tuple[ChangeKind | None, str, str]]:
    page = await log.read(after)
    assert not page.missed
    return [(change.kind, change.by, change.value) for change in page.changes]


async def test_whatever_changes_entries_or_rules_is_told_with_it(store: RedisStore, log: ChangeLogReader) -> None:
    leases = RedisLeases(store, timeout_s=PATIENT_S, ttl_s=60.0)
    await store.put(entry_of("a"), vector_of(1))
    await store.put(entry_of("b"), None)
    await store.put(entry_of("a"), vector_of(1), (await leases.acquire(A, None)).token)
    await store.delete([A, B])
    await store.add_counterexample("key")
    await store.add_links(["one", "two"])
    await RedisPurges(store).write_bans({"1": b"ban"}, [])
    assert await read(log) == [
        (ChangeKind.VECTORS, "g1", A),
        (ChangeKind.RECORDS, "g1", B),
        (ChangeKind.VECTORS, "g1", A),
        (ChangeKind.VECTORS, "g1", f"{A} {B}"),
        (ChangeKind.COUNTEREXAMPLE, "g1", "key"),
        (ChangeKind.LINKS, "g1", "one two"),
        (ChangeKind.BANS, "g1", ""),
    ]


async def test_a_write_that_is_fenced_off_tells_nothing(store: RedisStore, log: ChangeLogReader) -> None:
    await store.put(entry_of("a"), vector_of(1))
    end = await log.end()
    assert not await store.put(entry_of("a"), vector_of(2), lease=1)  # lost, and what lies there came without one
    assert await read(log, end) == []


async def test_who_is_alone_writes_no_log(outside_store: OutsideServer) -> None:
    alone = RedisStore(connect(outside_store.url, PATIENT_S), embedder="e1", timeout_s=PATIENT_S, clock=FakeClock())
    await alone.put(entry_of("a"), vector_of(1))
    await alone.close()
    assert not outside_store.client.exists(CHANGES_KEY)


async def test_reading_goes_on_where_it_ended(store: RedisStore, log: ChangeLogReader) -> None:
    assert await log.end() == START
    assert not (await log.read(START)).missed  # nothing was ever written
    await store.put(entry_of("a"), None)
    first = await log.read(START)
    await store.put(entry_of("b"), None)
    second = await log.read(first.position)
    assert [change.names for change in second.changes] == [[B]]
    assert await log.end() == second.position
    assert (second.added, second.kept, second.more) == (2, 2, False)


async def test_what_is_trimmed_behind_a_reader_is_missed_by_nobody(store: RedisStore, log: ChangeLogReader) -> None:
    for _ in range(3):
        await store.put(entry_of("a"), None)
    end = await log.end()
    await store._client.xtrim(CHANGES_KEY, maxlen=0, approximate=False)
    assert not (await log.read(end)).missed


@pytest.mark.parametrize("left", [0, 1])
async def test_what_is_trimmed_before_it_was_read_is_noticed(
    store: RedisStore, log: ChangeLogReader, left: int
) -> None:
    await store.put(entry_of("a"), None)
    early = await log.end()
    for _ in range(3):
        await store.put(entry_of("b"), None)
    await store._client.xtrim(CHANGES_KEY, maxlen=left, approximate=False)
    for position in (START, early):
        page = await log.read(position)
        assert page.missed and not page.changes
        assert page.position == await log.end()


async def test_another_log_in_its_place_is_noticed(
    store: RedisStore, log: ChangeLogReader, outside_store: OutsideServer
) -> None:
    await store.put(entry_of("a"), None)
    page = await log.read(START)
    outside_store.client.flushall()
    gone = await log.read(page.position)
    assert (gone.missed, gone.position) == (True, START)
    outside_store.client.xadd(CHANGES_KEY, {"by": "g2", "records": A}, id="1-1")  # younger than none of what was read
    assert (await log.read(page.position)).missed


async def test_the_log_is_bounded(outside_store: OutsideServer) -> None:
    client = connect(outside_store.url, PATIENT_S)
    async with client.pipeline(transaction=False) as pipe:
        for _ in range(2_500):
            ChangeLogWriter("g1", 1_000).append(pipe, ChangeKind.VECTORS, A)
        await pipe.execute()
    assert 1_000 <= await client.xlen(CHANGES_KEY) <= 1_200
    await client.aclose()


async def test_what_a_later_version_writes_is_read_as_unknown(
    log: ChangeLogReader, outside_store: OutsideServer
) -> None:
    outside_store.client.xadd(CHANGES_KEY, {"by": "g2", "whatever": "x"})
    assert await read(log) == [(None, "g2", "")]


async def test_waiting_ends_with_a_change(store: RedisStore, log: ChangeLogReader) -> None:
    await store.put(entry_of("a"), None)
    await log.wait(START)


async def test_a_store_that_is_away_is_said_to_be() -> None:
    log = ChangeLogReader(connect("redis://127.0.0.1:1"))
    with pytest.raises(StoreUnavailable, match="the store failed: ConnectionError"):
        await log.read(START)
