"""Whatever stands under the gateway's keys in the store, requests are answered: garbage is a miss, never an error."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway.adapters.redis.entry_sizes import RedisEntrySizes
from gateway.adapters.redis.keyspace import ONE_SERVER
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.stores import outside_server
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}, stale_if_error: 1h}
    route: {backend: main}
    limits: [{per: tenant, requests: 10000/s}]
"""
ENTRY = ONE_SERVER.entry("").encode()
QUESTIONS = [f"what is the capital of country {number}" for number in range(8)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Redis]:
    with outside_server(tmp_path) as server:
        yield server.client


Configs = Callable[[str], Any]


@pytest.fixture
def config_for(upstream: Upstream, store: Redis, tmp_path: Path) -> Configs:
    """Return the configuration of the gateway with a name."""
    address = store.connection_pool.connection_kwargs
    url = f"redis://:{address['password']}@{address['host']}:{address['port']}/0"
    # Nothing is kept in memory: every lookup reads the store.
    section = {"url": url, "front_size": "1kB"}
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    return lambda name: config_of(tmp_path / name, backends, store=dict(section))


@pytest.fixture
async def served(config_for: Configs) -> AsyncIterator[Served]:
    async with gateway_of(config_for("one"), POLICY, clock=FakeClock()) as served:
        await recovered(served)
        for question in QUESTIONS:
            assert (await served.chat(question)).status == 200
        assert is_hit(await served.chat(QUESTIONS[0]))
        yield served


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")


def entries(store: Redis) -> list[bytes]:
    found = sorted(store.scan_iter(match=ENTRY + b"*"))
    assert len(found) == len(QUESTIONS)
    return found


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit of the version": lambda data: flipped(data, 3),
    "a bit of the checksum": lambda data: flipped(data, 20),
    "a bit of the answer": lambda data: flipped(data, 8 * data.index(b"answers")),
    "the last bit": lambda data: flipped(data, 8 * len(data) - 1),
    "half of it": lambda data: data[: len(data) // 2],
    "its last byte": lambda data: data[:-1],
    "nothing": lambda data: data[:0],
    "garbage": lambda data: bytes(random.Random(7).randbytes(len(data))),
    "another record": lambda data: data + data,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_record_is_a_miss_and_counted(
    served: Served, store: Redis, upstream: Upstream, damage: str
) -> None:
    for key in entries(store):
        store.hset(key, "record", DAMAGES[damage](store.hget(key, "record")))
    calls = len(upstream.calls)
    answer = await served.chat(QUESTIONS[0])
    assert (answer.status, answer.text) == (200, f"upstream answers: {QUESTIONS[0]}")
    assert not is_hit(answer)
    assert len(upstream.calls) == calls + 1
    assert served.gateway.parts.telemetry.unreadable_records.total() >= 1
    assert is_hit(await served.chat(QUESTIONS[0])), "the new answer has replaced it"


async def test_a_record_of_another_question_is_a_miss(served: Served, store: Redis) -> None:
    one, other = entries(store)[:2]
    records = [store.hget(key, "record") for key in (one, other)]
    for key, record in zip((other, one), records, strict=True):
        store.hset(key, "record", record)
    for question in QUESTIONS:
        answer = await served.chat(question)
        assert (answer.status, answer.text) == (200, f"upstream answers: {question}")


def put_text(store: Redis, key: bytes) -> None:
    store.set(key, b"\xffgarbage")


def put_list(store: Redis, key: bytes) -> None:
    store.rpush(key, b"\xff", b"garbage")


def put_hash(store: Redis, key: bytes) -> None:
    store.hset(key, mapping={b"\xff": b"garbage", b"record": b"\xff", b"token": b"x"})


def put_zset(store: Redis, key: bytes) -> None:
    store.zadd(key, {b"\xff": 1e300, b"": -1.0, b"garbage": 4e9})


@pytest.mark.parametrize("put", [put_text, put_list, put_hash, put_zset])
async def test_keys_of_any_type_with_any_content_disturb_no_request(
    config_for: Configs, served: Served, store: Redis, upstream: Upstream, put: Callable[[Redis, bytes], None]
) -> None:
    """Every key of the gateway is replaced, also those that it makes while it answers, and then it starts again."""
    for _ in range(3):
        for key in store.keys(b"*"):
            store.delete(key)
            put(store, key)
        for question in (*QUESTIONS, "a new one"):
            for stream in (False, True):
                answer = await served.chat(question, stream=stream)
                assert answer.status == 200, answer.body
    assert (await served.get("/readyz")).status == 200
    async with gateway_of(config_for("another"), POLICY, clock=FakeClock()) as again:
        for question in QUESTIONS:
            assert (await again.chat(question)).status == 200


async def test_garbage_in_each_field_of_an_entry_disturbs_no_start(
    config_for: Configs, served: Served, store: Redis
) -> None:
    for number, key in enumerate(entries(store)):
        for field in store.hkeys(key):
            kinds = [b"", b"\xff\xff", b"nan", store.hget(key, field)[:-3], b"\x00" * 7, b"\xff" * 384 * 4]
            store.hset(key, field, kinds[number % len(kinds)])
    store.zadd(ONE_SERVER.list_keys[0], {b"\xff\xfe": 4e9, "x" * 300: 4e9})
    async with gateway_of(config_for("another"), POLICY, clock=FakeClock()) as again:
        await recovered(again)
        assert [page async for page in RedisEntrySizes(again.gateway.stores.redis, FakeClock()).weights()]
        for question in (*QUESTIONS, "what is the capital of a country"):
            assert (await again.chat(question)).status == 200
