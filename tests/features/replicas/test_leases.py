"""What leases must do, and the puts that they fence: the real ones on real servers, and the fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from redis.cluster import RedisCluster

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.config.store_url import parse_store_url
from gateway.errors import StoreUnavailable
from gateway.features.replicas.lease_store import RedisLeases
from gateway.ports import Claim, Leases, ResponseStore
from tests.contracts.test_response_store import OUTSIDE
from tests.fixtures.entries import entry_of, hexed, vector_of
from tests.fixtures.fakes import MemoryLeases, MemoryStore
from tests.fixtures.stores import OutsideServer

CLOCK = SystemClock()
TTL_S = 60.0
PATIENCE_S = 30.0
NAME, OTHER = hexed("a"), hexed("b")


@dataclass
class Opened:
    leases: Leases
    store: ResponseStore
    expire: Callable[[str], object]  # what time does to a lease


def operator_of(url: str) -> Redis | RedisCluster:
    if not url.startswith("redis+cluster:"):
        return Redis.from_url(url)
    target = parse_store_url(url)
    (host, port), *_ = target.addresses
    return RedisCluster(host, port, username=target.username, password=target.password)


@pytest.fixture(params=["embedded", "redis", "rediss", "cluster", "memory"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            memory = MemoryStore(CLOCK)
            yield Opened(MemoryLeases(memory, CLOCK, ttl_s=TTL_S), memory, lambda name: memory.leases.pop(name))
            return
        if request.param == "embedded":
            server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
            stack.push_async_callback(server.stop)
            url = server.url
        else:
            url = request.getfixturevalue(OUTSIDE[request.param]).url
        client = connect(url, PATIENCE_S)
        store = RedisStore(client, embedder="e1", timeout_s=PATIENCE_S, clock=CLOCK)
        stack.push_async_callback(store.close)
        operator = stack.enter_context(operator_of(url))
        leases = RedisLeases(store, timeout_s=PATIENCE_S, ttl_s=TTL_S)
        yield Opened(leases, store, lambda name: operator.delete(store.names.lease(name)))


async def lost(opened: Opened, name: str = NAME) -> int:
    """The token of a lease that was given and has expired."""
    token = (await opened.leases.acquire(name, None)).token
    opened.expire(name)
    return token


async def test_a_lookup_without_an_entry_asks_for_the_lease(opened: Opened) -> None:
    found = [await opened.leases.look_up(NAME) for _ in range(2)]
    assert all(isinstance(claim, Claim) for claim in found)
    first, second = (claim for claim in found if isinstance(claim, Claim))
    assert (bool(first.token), first.holder) == (True, 0)
    assert (second.token, second.holder) == (0, first.token)
    entry = entry_of("a")
    assert await opened.store.put(entry, None, first.token)
    assert await opened.leases.look_up(NAME) == entry
    assert list(await opened.leases.holders([NAME])) == [0], "an entry needs no lease"


async def test_of_many_that_ask_at_once_one_gets_it(opened: Opened) -> None:
    claims = await asyncio.gather(*(opened.leases.acquire(NAME, None) for _ in range(20)))
    (token,) = [claim.token for claim in claims if claim.token]
    assert [claim for claim in claims if not claim.token] == [Claim(0, token)] * 19
    assert await opened.leases.holders([NAME, OTHER]) == [token, 0]


async def test_a_lease_is_of_one_fingerprint(opened: Opened) -> None:
    first, second = await opened.leases.acquire(NAME, None), await opened.leases.acquire(OTHER, None)
    assert first.token and second.token
    assert await opened.leases.holders([OTHER, NAME]) == [second.token, first.token]


async def test_tokens_rise_whether_leases_are_given_back_lost_or_kept(opened: Opened) -> None:
    tokens = [(await opened.leases.acquire(NAME, None)).token]
    await opened.leases.release({NAME: tokens[0]})
    tokens.append(await lost(opened))
    tokens.append((await opened.leases.acquire(NAME, None)).token)
    assert tokens == sorted(set(tokens))


async def test_who_has_lost_a_lease_neither_renews_nor_releases_the_next_ones(opened: Opened) -> None:
    old = await lost(opened)
    new = (await opened.leases.acquire(NAME, None)).token
    kept = (await opened.leases.acquire(OTHER, None)).token
    assert await opened.leases.renew({NAME: old, OTHER: kept}) == [NAME]
    await opened.leases.release({NAME: old})
    assert await opened.leases.holders([NAME, OTHER]) == [new, kept]
    await opened.leases.release({NAME: new, OTHER: kept})
    assert await opened.leases.holders([NAME, OTHER]) == [0, 0]


async def test_an_answer_that_lies_there_keeps_a_lease_from_being_given(opened: Opened) -> None:
    token = (await opened.leases.acquire(NAME, None)).token
    assert await opened.store.put(entry_of("a"), vector_of(1), token)
    assert await opened.leases.acquire(NAME, 0) == Claim(0, 0)
    assert await opened.leases.acquire(NAME, token) == Claim(0, 0)
    assert (await opened.leases.acquire(NAME, token + 1)).token > token, "it is older than what is waited for"


async def test_an_answer_without_a_lease_is_none_that_was_waited_for(opened: Opened) -> None:
    await opened.store.put(entry_of("a"), None)
    assert await opened.leases.acquire(NAME, 0) == Claim(0, 0)
    assert (await opened.leases.acquire(NAME, 1)).token


async def test_a_put_ends_its_lease(opened: Opened) -> None:
    token = (await opened.leases.acquire(NAME, 0)).token
    entry = entry_of("a", streamed=True, payload=(b"\x00\xff", b"more"))
    assert await opened.store.put(entry, vector_of(1), token)
    assert await opened.leases.holders([NAME]) == [0]
    assert await opened.store.get(NAME) == entry
    (stored,) = await opened.store.vectors_of([NAME])
    assert (stored.vector == vector_of(1)).all()
    assert [pair async for pair in opened.store.fingerprints()] == [(NAME, pytest.approx(entry.expires, abs=0.001))]


async def test_a_late_put_does_not_overwrite_what_a_later_lease_has_stored(opened: Opened) -> None:
    late = await lost(opened)
    token = (await opened.leases.acquire(NAME, None)).token
    assert await opened.store.put(entry_of("a", backend="newer"), None, token)
    assert not await opened.store.put(entry_of("a", backend="late"), None, late)
    kept = await opened.store.get(NAME)
    assert kept is not None
    assert kept.backend == "newer"


async def test_a_late_put_does_not_overwrite_what_was_stored_without_a_lease(opened: Opened) -> None:
    late = await lost(opened)
    await opened.store.put(entry_of("a", backend="refreshed"), None)
    assert not await opened.store.put(entry_of("a", backend="late"), None, late)


async def test_a_late_put_is_welcome_where_nothing_newer_lies(opened: Opened) -> None:
    late = await lost(opened)
    assert await opened.store.put(entry_of("a"), None, late)
    again = await lost(opened)
    assert await opened.store.put(entry_of("a", backend="again"), None, again)


async def test_a_late_put_leaves_the_lease_of_the_next_one(opened: Opened) -> None:
    late = await lost(opened)
    token = (await opened.leases.acquire(NAME, None)).token
    assert await opened.store.put(entry_of("a", backend="late"), None, late)
    assert await opened.leases.holders([NAME]) == [token]
    assert await opened.store.put(entry_of("a", backend="newer"), None, token)


async def test_tokens_rise_over_a_store_that_has_forgotten_them(outside_store: OutsideServer) -> None:
    store = RedisStore(connect(outside_store.url, PATIENCE_S), embedder="e1", timeout_s=PATIENCE_S, clock=CLOCK)
    leases = RedisLeases(store, timeout_s=PATIENCE_S, ttl_s=TTL_S)
    first = (await leases.acquire(NAME, None)).token
    await asyncio.to_thread(outside_store.client.flushall)
    assert (await leases.acquire(NAME, None)).token >= first
    assert 0 < outside_store.client.pttl(ONE_SERVER.lease(NAME)) <= TTL_S * 1000
    assert outside_store.client.exists(ONE_SERVER.counter(NAME))
    await store.close()


async def test_a_store_that_is_away_says_so() -> None:
    memory = MemoryStore(CLOCK)
    memory.down = True
    client = connect("redis://127.0.0.1:1")
    store = RedisStore(client, embedder="e1", timeout_s=PATIENCE_S, clock=CLOCK)
    both: tuple[Leases, ...] = (
        MemoryLeases(memory, CLOCK, ttl_s=TTL_S),
        RedisLeases(store, timeout_s=PATIENCE_S, ttl_s=TTL_S),
    )
    for leases in both:
        for ask in (
            leases.acquire(NAME, 0),
            leases.renew({NAME: 1}),
            leases.release({NAME: 1}),
            leases.holders([NAME]),
        ):
            with pytest.raises(StoreUnavailable):
                await ask
    await store.close()
