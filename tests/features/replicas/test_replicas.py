"""Gateways on one store know what the others do: real gateways, a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.circuit_breaker import BreakerState
from gateway.features.replicas.change_log import CHANGES_KEY, ChangeLogReader
from gateway.ports import EntryPage
from tests.fixtures.gateways import BOTH_CACHES, Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

ALIKE = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.8")
ASKED, SAME = "how do I reset the password of my account", "How do I reset the password of my account?"
OTHER, OTHER_SAME = "which trains go to Vienna tomorrow morning", "Which trains go to Vienna tomorrow morning?"

Start = Callable[[str], Any]


@pytest.fixture
async def start(upstream: Upstream, tmp_path: Path, outside_store: OutsideServer) -> AsyncIterator[Start]:
    """Starts a gateway of that name on the store."""
    async with AsyncExitStack() as stack:

        async def started(name: str) -> Served:
            served = await stack.enter_async_context(on(outside_store, upstream, tmp_path / name))
            await recovered(served)
            return served

        yield started


def on(store: OutsideServer, upstream: Upstream, folder: Path, policy: str = ALIKE) -> Any:
    config = config_of(
        folder,
        {"main": {"adapter": "openai", "url": upstream.url}},
        store={"url": store.url, "timeout": "10s", "front_size": "1kB"},
    )
    return gateway_of(config, policy)


def size(served: Served) -> int:
    return served.gateway.parts.space.index.size


def is_semantic(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status == "nearhit; hit; detail=semantic"


def is_miss(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status.startswith("nearhit; fwd=miss")


async def asked(served: Served, *questions: str) -> None:
    for question in questions:
        assert is_miss(await served.chat(question))


async def let_go(served: Served) -> list[str]:
    """As an eviction does it."""
    names = list(await served.gateway.parts.space.index.fingerprints())
    await served.gateway.parts.store.delete(names)
    await served.gateway.parts.spaces.forget(names)
    return names


async def test_what_one_stores_the_other_finds_in_other_words(start: Start) -> None:
    one, two = await start("one"), await start("two")
    await asked(one, ASKED)
    await until(lambda: size(two) == 1)
    assert is_semantic(await two.chat(SAME))


async def test_what_one_lets_go_leaves_the_others_index_and_front(start: Start) -> None:
    one, two = await start("one"), await start("two")
    await asked(one, ASKED)
    await until(lambda: size(two) == 1)
    names = await let_go(one)
    await until(lambda: size(two) == 0)
    assert two.gateway.parts.store.peek(names[0]) is None
    assert is_miss(await two.chat(SAME))


async def test_a_purge_by_one_is_heeded_by_the_other_before_the_next_poll(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cache.purge.POLL_S", 3600.0)
    one, two = await start("one"), await start("two")
    await asked(one, ASKED)
    await until(lambda: size(two) == 1)
    async with one.session.post(one.admin_url + "/admin/cache/purge", json={"all": True}) as purged:
        assert (await purged.json())["matched"] == 1
    await until(lambda: len(two.gateway.parts.store.bans) == 1)
    assert is_miss(await two.chat(SAME))


async def test_a_replica_that_lags_serves_nothing_that_was_deleted(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await start("one"), await start("two")
    await asked(one, ASKED)
    await until(lambda: size(two) == 1)
    await until(lambda: two.gateway.parts.evictions.comparisons > 0)  # it does not find out by that either
    freeze(two)
    await let_go(one)
    assert size(two) == 1  # it does not know yet
    assert is_miss(await two.chat(SAME))


def freeze(served: Served) -> Callable[[], None]:
    """Keeps it from reading the log -> what lets it read on."""
    replication = served.gateway.replication
    assert replication is not None
    log = replication.consumer._log
    assert isinstance(log, ChangeLogReader)
    thawed = asyncio.Event()
    read, wait = log.read, log.wait

    async def later(after: str) -> EntryPage:
        await thawed.wait()
        return await read(after)

    async def never(after: str) -> None:
        await thawed.wait()

    log.read, log.wait = later, never  # type: ignore[method-assign]

    def thaw() -> None:
        log.read, log.wait = read, wait  # type: ignore[method-assign]
        thawed.set()

    return thaw


async def test_a_replica_beneath_which_the_log_was_trimmed_compares_itself_with_the_store_while_it_serves(
    start: Start, outside_store: OutsideServer
) -> None:
    one, two = await start("one"), await start("two")
    await asked(one, ASKED)
    await until(lambda: size(two) == 1)
    thaw = freeze(two)
    await let_go(one)
    await asked(one, OTHER)
    outside_store.client.xtrim(CHANGES_KEY, maxlen=0, approximate=False)
    thaw()
    rebuilds = two.gateway.parts.telemetry.replication.rebuilds
    await until(lambda: rebuilds.values.get(("done",)) == 1)
    assert await two.gateway.parts.space.index.fingerprints() == await one.gateway.parts.space.index.fingerprints()
    assert is_semantic(await two.chat(OTHER_SAME))
    await asked(one, "who painted the ceiling of the chapel")
    await until(lambda: size(two) == 2)


async def test_a_gateway_that_was_away_goes_on_where_its_checkpoint_ends(
    start: Start, upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nearhit")
    async with on(outside_store, upstream, tmp_path / "away") as away:
        await recovered(away)
        await asked(away, ASKED)
    one = await start("one")
    await asked(one, OTHER)
    async with on(outside_store, upstream, tmp_path / "away") as back:
        await recovered(back)
        assert "the index continues from its checkpoint" in caplog.messages
        assert is_semantic(await back.chat(SAME))
        assert is_semantic(await back.chat(OTHER_SAME))


async def test_a_gateway_that_was_killed_goes_on_where_its_last_checkpoint_ends(
    start: Start, upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has stored and forgotten itself since then is in the log, too."""
    caplog.set_level("INFO", "nearhit")
    checkpoint = tmp_path / "killed" / "index" / "checkpoint"
    async with on(outside_store, upstream, tmp_path / "killed") as killed:
        await recovered(killed)
        await asked(killed, ASKED)
        checkpoints = killed.gateway.parts.space.checkpoints
        assert checkpoints is not None
        await checkpoints.save()
        kept = checkpoint.read_bytes()
        await let_go(killed)
        await asked(killed, OTHER)
    checkpoint.write_bytes(kept)  # as if it had had no time to write another one
    async with on(outside_store, upstream, tmp_path / "killed") as back:
        await recovered(back)
        assert "the index continues from its checkpoint" in caplog.messages
        assert size(back) == 1
        assert is_semantic(await back.chat(OTHER_SAME))
        assert is_miss(await back.chat(SAME))


async def test_a_store_that_was_away_is_followed_again(
    upstream: Upstream, tmp_path: Path, store_servers: Callable[..., OutsideServer]
) -> None:
    store = store_servers()
    async with on(store, upstream, tmp_path / "one") as one, on(store, upstream, tmp_path / "two") as two:
        await recovered(one)
        await recovered(two)
        await asked(one, ASKED)
        await until(lambda: size(two) == 1)
        lag = two.gateway.parts.telemetry.replication.lag_seconds
        store.freeze()
        await until(lambda: lag.values[()] > 0)
        store.thaw()
        await until(lambda: lag.values[()] == 0)
        await until(lambda: one.gateway.stores.redis.breaker is BreakerState.CLOSED)
        await asked(one, OTHER)
        await until(lambda: size(two) == 2)
        assert is_semantic(await two.chat(OTHER_SAME))


async def test_a_counterexample_of_one_holds_for_the_other_at_once(start: Start) -> None:
    one, two = await start("one"), await start("two")
    await asked(one, ASKED)
    hit = await one.chat(SAME)
    assert is_semantic(hit)
    told = await one.post("/v1/feedback", {"request_id": hit.headers["x-request-id"], "verdict": "wrong"})
    assert told.status == 200
    await until(lambda: len(two.gateway.parts.memory.counterexamples) == 1 and size(two) == 1)
    assert is_miss(await two.chat(SAME))


async def test_who_is_alone_follows_nobody(served: Served) -> None:
    assert served.gateway.replication is None
