"""Removal: in force at once, everywhere, for good; and only for what was meant."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.process import children
from gateway.adapters.redis import durability
from gateway.adapters.redis import purge as purge_store
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.cache import purge as purges
from gateway.cache.purge import POLL_S
from gateway.cache.text_likeness import letter_counts, likeness
from gateway.errors import StoreUnavailable
from tests.admin.test_admin_port import TOKEN, metrics
from tests.admin.test_admin_port import guarded as guarded
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, hexed
from tests.fixtures.gateways import EXACT_CACHE, Answer, Served, config_of, gateway_of, store_pid
from tests.fixtures.processes import changed, served_by_process, write_config
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until

KEYS = {"Authorization": "Bearer sk-of-a-client"}
PLAIN = """
version: 1
routes:
  - name: support
    match: {headers: {x-app: support}}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.6}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.6}, stale_if_error: 1h}
    route: {backend: main}
"""


async def purge(served: Served, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    async with served.session.post(served.admin_url + "/admin/cache/purge", json=body, headers=headers) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def purged(served: Served, **body: Any) -> int:
    answer = await purge(served, **body)
    assert answer.status == 200, answer.body
    assert answer.json["matched"] == answer.json["removed"]
    return int(answer.json["removed"])


async def admin(served: Served, path: str) -> Any:
    async with served.session.get(served.admin_url + path) as response:
        assert response.status == 200
        return await response.json()


def verdict(answer: Answer) -> str:
    """`exact`, `semantic`, or what else became of it."""
    assert answer.status == 200
    said = answer.cache_status
    return said.partition("detail=")[2].partition(";")[0] if "; hit" in said else said.partition("; ")[2]


# What removals wait for, of a store that is there and has no reason to fail: in this process, and in one of its own.
LONG_S = 60.0
PATIENTLY = changed(
    {
        "gateway.adapters.redis.durability.DISK_MS": int(LONG_S * 1e3),
        "gateway.adapters.redis.purge.POLL_TIMEOUT_S": LONG_S,
        "gateway.adapters.redis.purge.TIMEOUT_S": 2 * LONG_S,
    }
)


@pytest.fixture(autouse=True)
def _the_store_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_store, "POLL_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(purge_store, "TIMEOUT_S", LONG_S)


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PLAIN) as gateway:
        yield gateway


async def test_what_a_tag_names_is_gone_at_once_and_nothing_else(served: Served) -> None:
    for question, tags in (("one", "a, b"), ("two", "b"), ("three", "c")):
        await served.chat(question, headers={"Cache-Tag": tags})
        assert verdict(await served.chat(question)) == "exact"
    assert await purged(served, tags=["a", "x"]) == 1
    assert verdict(await served.chat("one")) == "fwd=miss; stored"
    assert verdict(await served.chat("two")) == "exact"
    assert await purged(served, tags=["b", "c"]) == 2, "the new answer to one came without a tag"


async def test_tags_that_the_backend_gives_count_too_and_go_before_the_clients(
    served: Served, upstream: Upstream
) -> None:
    async def tagged(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "x"), headers={"Cache-Tag": "doc-7, doc-8"})

    upstream.answer = tagged
    flood = ",".join(f"t{i}" for i in range(100))
    await served.chat("one", headers={"Cache-Tag": flood})
    (entry,) = (await admin(served, "/admin/cache/entries"))["entries"]
    assert entry["tags"][:3] == ["doc-7", "doc-8", "t0"]
    assert len(entry["tags"]) == 32
    assert await purged(served, tags=["doc-8"]) == 1


async def test_conditions_are_joined_by_and(served: Served) -> None:
    await served.chat("one", headers={"Cache-Tag": "a"})
    await served.chat("one", headers={"Cache-Tag": "a", "x-app": "support"})
    await served.chat("one", headers={"Cache-Tag": "a", **KEYS})
    tenants = {entry["tenant"] for entry in (await admin(served, "/admin/cache/entries"))["entries"]}
    (tenant,) = tenants - {"anonymous"}
    assert len(tenant) == 12
    assert await purged(served, tags=["a"], route="support", tenant=tenant) == 0
    assert await purged(served, tags=["a"], tenant=tenant) == 1
    assert await purged(served, route="support", model="other") == 0
    assert await purged(served, route="support", model="m") == 1
    assert verdict(await served.chat("one")) == "exact"
    assert await purged(served, all=True) == 1


async def test_by_age_and_by_fingerprint(upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PLAIN, clock=clock) as served:
        await served.chat("old")
        clock.advance(100)
        await served.chat("one two three four five")
        clock.advance(1)
        assert await purged(served, older_than="2m") == 0
        assert await purged(served, older_than="100s") == 1
        assert verdict(await served.chat("one two three four five")) == "exact"
        (entry,) = (await admin(served, "/admin/cache/entries"))["entries"]
        assert entry["question"] == "one two three four five"
        assert await purged(served, fingerprint=entry["fingerprint"]) == 1
        clock.advance(1)
        assert verdict(await served.chat("one two three four five")) == "fwd=miss; stored"
        assert verdict(await served.chat("one two three four five")) == "exact"


async def test_a_neighbour_of_what_was_removed_is_not_answered_with_it(served: Served, upstream: Upstream) -> None:
    await served.chat("how do I reset the password of my account", headers={"Cache-Tag": "a"})
    near = "how do I reset the password of my account please"
    assert verdict(await served.chat(near)) == "semantic"
    await purged(served, tags=["a"])
    assert verdict(await served.chat(near)) == "fwd=miss; stored"
    assert len(upstream.calls) == 2


async def test_everything_close_to_a_question_goes_in_every_scope(served: Served) -> None:
    question = "how do I reset the password of my account"
    await served.chat(question)
    await served.chat(question + " please", headers=KEYS)
    await served.chat(question, headers={"x-app": "support"})
    await served.chat("who won the cup in nineteen ninety")
    answer = await purge(served, like=question, dry_run=True)
    assert answer.json["matched"] == 3
    assert await purged(served, like=question, min_similarity=1) == 2
    assert await purged(served, like=question) == 1
    assert served.gateway.parts.space.index.size == 1
    assert verdict(await served.chat("who won the cup in nineteen ninety")) == "exact"
    assert verdict(await served.chat(question)) == "fwd=miss; stored"


async def test_a_dry_run_says_what_would_go_and_changes_nothing(served: Served) -> None:
    for i in range(12):
        await served.chat(f"number {i} " + "x" * 100, headers={"Cache-Tag": "a"})
    answer = (await purge(served, tags=["a"], dry_run=True)).json
    assert (answer["matched"], answer["removed"], len(answer["samples"])) == (12, 0, 10)
    sample = answer["samples"][0]
    assert set(sample) == {"fingerprint", "route", "tenant", "model", "age_s", "tags", "question"}
    assert len(sample["question"]) == 80
    assert len(served.gateway.stores.front.bans) == 0
    assert served.gateway.parts.space.index.size == 12
    assert verdict(await served.chat("number 3 " + "x" * 100)) == "exact"
    assert (await admin(served, "/admin/audit"))["entries"] == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "no condition is given: expected tags, tenant"),
        ({"dry_run": True}, "no condition is given"),
        ({"min_similarity": 0.9}, "no condition is given"),
        ({"all": False}, "no condition is given"),
        ({"tags": []}, "tags: expected at least one entry"),
        ({"tags": "a"}, "tags: expected a list"),
        ({"tags": [""]}, "tags"),
        ({"tenant": ""}, "tenant"),
        ({"older_than": "1"}, "older_than: expected a duration such as"),
        ({"older_than": 5}, "older_than: expected a duration such as"),
        ({"fingerprint": "0f" * 6}, "fingerprint: expected all 64 hex digits of one entry"),
        ({"rout": "x"}, "rout: unknown key, did you mean 'route'?"),
        ({"like": "x", "min_similarity": 2}, "min_similarity: expected at most 1"),
        ({"like": "x", "min_similarity": float("nan")}, "not JSON"),
        ([], "expected a JSON object"),
        ("x", "expected a JSON object"),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_a_sentence(served: Served, body: Any, sentence: str) -> None:
    data = json.dumps(body)
    async with served.session.post(served.admin_url + "/admin/cache/purge", data=data) as response:
        assert response.status == 400
        assert sentence in (await response.json())["error"]


async def test_only_who_has_the_token_may(guarded: Served) -> None:
    await guarded.chat("one")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert (await purge(guarded, headers, all=True)).status == 401
        for path in ("/admin/cache/entries", "/admin/cache/export", "/admin/audit"):
            async with guarded.session.get(guarded.admin_url + path, headers=headers) as response:
                assert response.status == 401
    assert verdict(await guarded.chat("one")) == "exact"
    token = {"Authorization": f"Bearer {TOKEN}"}
    assert (await purge(guarded, token, all=True)).json["removed"] == 1
    async with guarded.session.get(guarded.admin_url + "/admin/audit", headers=token) as response:
        (entry,) = (await response.json())["entries"]
    assert (entry["peer"], entry["by"]) == ("127.0.0.1", "token")


@pytest.mark.parametrize("header", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_page_of_another_site_cannot_empty_the_cache(served: Served, header: dict[str, str]) -> None:
    await served.chat("one")
    assert (await purge(served, header, all=True)).status == 403
    assert verdict(await served.chat("one")) == "exact"
    assert (await purge(served, {"Origin": served.admin_url, "Sec-Fetch-Site": "same-origin"}, all=True)).status == 200


async def test_it_is_written_down_who_removed_what_without_the_texts(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "the secret plan of mister X"
    await served.chat(secret, headers={"Cache-Tag": "a"})
    with caplog.at_level(logging.INFO, "nearhit.audit"):
        await purged(served, like=secret, tags=["a"])
    (record,) = [record for record in caplog.records if record.name == "nearhit.audit"]
    (entry,) = (await admin(served, "/admin/audit"))["entries"]
    for line in (record.__dict__["fields"], entry):
        assert (line["peer"], line["by"]) == ("127.0.0.1", "loopback")
        assert line["conditions"] == {"tags": ["a"], "like": True, "min_similarity": 0.8}
        assert (line["matched"], line["removed"], line["recorded"]) == (1, 1, True)
        assert "secret" not in json.dumps(line)
    given = await metrics(served)
    assert [(s.labels, s.value) for s in given["nearhit_purged"].samples if s.name.endswith("_total")] == [
        ({"route": "default"}, 1)
    ]
    assert given["nearhit_bans"].samples[0].value == 1


async def test_an_answer_fetched_before_a_removal_is_not_kept_after_it(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    waiting = asyncio.create_task(served.chat("one", headers={"Cache-Tag": "a"}))
    await until(lambda: upstream.calls)
    assert await purged(served, tags=["a"]) == 0
    upstream.gate.set()
    assert verdict(await waiting) == "fwd=miss", "its client gets it, as it asked before"
    assert (await admin(served, "/admin/cache/entries"))["entries"] == []
    assert verdict(await served.chat("one")) == "fwd=miss; stored"
    assert verdict(await served.chat("one")) == "exact"


async def test_nobody_who_comes_after_a_removal_joins_a_call_from_before_it(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    before = asyncio.create_task(served.chat("one", headers={"Cache-Tag": "a"}))
    await until(lambda: len(upstream.calls) == 1)
    await purged(served, tags=["a"])
    after = asyncio.create_task(served.chat("one"))
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert [verdict(answer) for answer in await asyncio.gather(before, after)] == ["fwd=miss", "fwd=miss; stored"]


async def test_a_stream_that_is_being_stored_is_meant_too(served: Served, upstream: Upstream) -> None:
    """It began long before the removal, and ends long after it."""
    go_on = asyncio.Event()

    async def slow(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three", between=go_on.wait)

    upstream.answer = slow
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "one"}]}
    headers = {"Cache-Tag": "a"}
    async with served.session.post(served.url + "/v1/chat/completions", json=body, headers=headers) as response:
        await response.content.readany()  # the answer has begun
        assert await purged(served, tags=["a"]) == 0
        go_on.set()
        assert b"[DONE]" in await response.read()
    await until(lambda: served.gateway.parts.telemetry.admissions.values.get(("default", "purged")))
    assert verdict(await served.chat("one", stream=True)) == "fwd=miss"
    assert len(upstream.calls) == 2


async def test_what_is_close_to_a_removed_question_and_came_late_is_not_kept(
    served: Served, upstream: Upstream
) -> None:
    upstream.gate.clear()
    waiting = asyncio.create_task(served.chat("how do I reset the password of my account please"))
    await until(lambda: upstream.calls)
    assert await purged(served, like="how do I reset the password of my account") == 0
    upstream.gate.set()
    assert verdict(await waiting) == "fwd=miss"
    assert served.gateway.parts.space.index.size == 0


@pytest.mark.parametrize("failure", ["status", "connection"])
async def test_a_removed_answer_is_not_served_stale_either(upstream: Upstream, tmp_path: Path, failure: str) -> None:
    clock = FakeClock()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PLAIN, clock=clock) as served:
        await served.chat("one", headers={"Cache-Tag": "a"})
        clock.advance(3601)

        async def broken(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            if failure == "connection":
                request.transport.abort()  # type: ignore[union-attr]
            return web.json_response({"error": {"message": "no"}}, status=500)

        upstream.answer = broken
        assert verdict(await served.chat("one")) == "stale"
        calls = len(upstream.calls)
        upstream.gate.clear()
        waiting = asyncio.create_task(served.chat("one"))
        await until(lambda: len(upstream.calls) > calls)
        await purged(served, tags=["a"])  # while the backend is asked
        upstream.gate.set()
        expected = 500 if failure == "status" else 502
        assert (await waiting).status == expected
        assert (await served.chat("one")).status == expected


async def test_after_a_crash_what_was_removed_stays_removed(upstream: Upstream, tmp_path: Path) -> None:
    """Killed right after it was said to be done."""
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, EXACT_CACHE)
    async with served_by_process(config, PATIENTLY) as process:
        for i in range(20):
            await process.chat(hexed(str(i)), headers={"Cache-Tag": "a" if i % 2 else "b"})
        answer = await purge(process, tags=["a"])
        await process.kill()
    assert (answer.json["removed"], answer.json["durable"]) == (10, True)
    calls = len(upstream.calls)
    async with served_by_process(config, PATIENTLY) as process:
        for i in range(20):
            expected = "fwd=miss; stored" if i % 2 else "exact"
            assert verdict(await process.chat(hexed(str(i)))) == expected
        assert len(upstream.calls) == calls + 10
        assert (await admin(process, "/admin/audit"))["entries"][0]["removed"] == 10


async def test_when_the_store_is_killed_with_the_gateway_it_stays_removed_too(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, EXACT_CACHE)
    async with served_by_process(config, PATIENTLY) as process:
        await process.chat("one", headers={"Cache-Tag": "a"})
        answer = await purge(process, tags=["a"])
        (store,) = children(process.process.pid)
        os.kill(store, 9)
        await process.kill()
    assert answer.json["durable"] is True
    async with served_by_process(config, PATIENTLY) as process:
        assert verdict(await process.chat("one")) == "fwd=miss; stored"
        assert verdict(await process.chat("one")) == "exact"


async def test_entries_without_a_vector_are_found_by_their_text(upstream: Upstream, tmp_path: Path) -> None:
    """Before its vector is made, and on a route that has no similarity cache."""
    question = "Wie setze ich mein Kennwort zurück?"
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        for asked in (question, "  wie setze ich  mein Kennwort zurück?", "How tall is the Eiffel Tower?"):
            await served.chat(asked)
        counted = (await purge(served, like=question, dry_run=True)).json
        assert (counted["matched"], counted["removed"]) == (2, 0)
        said = (await purge(served, like=question, min_similarity=1)).json
        assert said["removed"] == 2
        assert said["notes"] == ["3 entries have no vector: like was compared with their text"]
        assert verdict(await served.chat(question)) == "fwd=miss; stored", "the ban names it"
        assert verdict(await served.chat("How tall is the Eiffel Tower?")) == "exact"


@pytest.mark.parametrize(
    ("a", "b", "least", "most"),
    [
        ("one", "ONE ", 1.0, 1.0),
        ("", "", 0.0, 1.0),
        ("reset my password", "reset my passwords", 0.8, 0.99),
        ("reset my password", "delete my account", 0.0, 0.3),
        ("重置我的密码", "重置我的密码", 1.0, 1.0),
        ("a" * 10**6, "a" * 10**6, 1.0, 1.0),
    ],
)
def test_texts_are_alike_by_their_letters(a: str, b: str, least: float, most: float) -> None:
    assert least <= likeness(letter_counts(a), letter_counts(b)) <= most


async def test_a_ban_outlives_a_crash_in_the_middle_of_the_removal(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    """The record is still in the store, as after a crash between the ban and the sweep: nobody is served it."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store={"url": outside_store.url})
    async with gateway_of(config, PLAIN) as served:
        await served.chat("one", headers={"Cache-Tag": "a"})
        await until(lambda: outside_store.client.keys("nearhit:1:entry:*"))  # the client does not wait for the store
        (key,) = outside_store.client.keys("nearhit:1:entry:*")
        kept, listed = outside_store.client.dump(key), outside_store.client.zrange(ONE_SERVER.list_keys[0], 0, -1)
        await purged(served, tags=["a"])
        outside_store.client.restore(key, 3_600_000, kept)
        outside_store.client.zadd(ONE_SERVER.list_keys[0], {listed[0]: time.time() + 3600})
    async with gateway_of(config, PLAIN) as served:
        await until(lambda: served.gateway.recovery.ready)
        assert outside_store.client.exists(key)
        assert (await admin(served, "/admin/cache/entries"))["entries"] == []
        assert verdict(await served.chat("one one")) == "fwd=miss; stored"
        assert verdict(await served.chat("one")) == "semantic", "to what was stored since"


async def test_a_gateway_on_the_same_store_serves_it_no_longer_within_a_second(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from its front store, nor by its index, nor what it stored itself: its next look at the store tells it,
    and it looks more than twice a second."""
    removed, knew = False, list[bool]()
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    store = {"url": outside_store.url}
    question, near = "how do I reset the password", "how do I reset the password please"
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(gateway_of(config_of(tmp_path / name, backends, store=store), PLAIN))
            for name in ("one", "other")
        ]
        await until(lambda: one.gateway.recovery.ready and other.gateway.recovery.ready)
        await other.chat(question, headers={"Cache-Tag": "a"})
        assert verdict(await other.chat(question)) == "exact"
        assert verdict(await other.chat(near)) == "semantic"
        refresh = other.gateway.removal.refresh

        async def look() -> None:
            behind = removed
            await refresh()
            if behind:
                knew.append(len(other.gateway.stores.front.bans) == 1)

        monkeypatch.setattr(other.gateway.removal, "refresh", look)
        assert await purged(one, tags=["a"]) == 1
        removed = True
        await until(lambda: knew)
        assert knew[0] and POLL_S < 0.5
        assert verdict(await other.chat(near)) == "fwd=miss; stored"
        await until(lambda: one.gateway.parts.space.index.size == 1)  # it follows what the other one stores
        assert await purged(one, like=question) == 1
        await until(lambda: len(other.gateway.stores.front.bans) == 2)
        assert verdict(await other.chat(near)) == "fwd=miss; stored"
        assert verdict(await one.chat(near)) == "exact"


async def test_under_load_nobody_who_asks_after_a_removal_gets_what_was_fetched_before_it(
    served: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, by similarity, streamed, from memory, by sharing a call: whatever way an answer may take."""
    monkeypatch.setattr(durability, "DISK_MS", 1)
    published, floor, draw = 0, 0, random.Random(1)
    verdicts: Counter[str] = Counter()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        text = f"v{published}"

        async def dawdle() -> None:
            for _ in range(draw.randrange(200)):
                await asyncio.sleep(0)

        if call.get("stream"):
            return await stream(request, call, text, between=dawdle)
        await dawdle()
        return web.json_response(completion(call, text), headers={"Cache-Tag": "doc"})

    upstream.answer = answer
    question = "how do I reset the password of my account"

    async def ask(worker: int) -> None:
        while published < 25:
            least = floor
            words = question + (" please" if draw.random() < 0.3 else "")
            got = await served.chat(words, stream=worker % 2 == 0, headers={"Cache-Tag": "doc"})
            versions = re.findall(rb'"content": ?"v(\d+)"', got.body)
            assert int(versions[-1]) >= least
            verdicts[verdict(got)] += 1

    async with asyncio.TaskGroup() as tasks:
        for worker in range(8):
            tasks.create_task(ask(worker))
        for version in range(1, 26):
            published = version
            assert (await purge(served, tags=["doc"])).status == 200
            floor = version
            for _ in range(draw.randrange(300)):
                await asyncio.sleep(0)
    assert verdicts["exact"] > 25
    print(verdicts)


async def test_ten_thousand_entries_go_within_seconds(served: Served) -> None:
    redis = served.gateway.stores.redis
    made = time.time() - 10
    for i in range(0, 10_000, 50):
        entries = [entry_of(f"{n}", created=made, tags=(f"t{n % 2}",)) for n in range(i, i + 50)]
        await asyncio.gather(*(redis.put(entry, None) for entry in entries))
    begun = time.monotonic()
    assert await purged(served, tags=["t1"]) == 5_000
    half = time.monotonic() - begun
    begun = time.monotonic()
    assert await purged(served, all=True) == 5_000
    print(f"10,000 entries: half of them by a tag in {half:.2f} s, the other half in {time.monotonic() - begun:.2f} s")
    assert half < 20
    assert (await redis.stats()).entries == 0


class Failing:
    """The removal's side of the store, which fails from one call on."""

    def __init__(self, store: Any, name: str, after: int) -> None:
        self._store, self._name, self._after = store, name, after

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._after -= 1
            if self._after < 0:

                async def fail(*arguments: object) -> None:
                    raise StoreUnavailable("the store failed: TimeoutError")

                return fail
        return getattr(self._store, name)


async def test_a_store_that_fails_in_the_middle_is_told_with_what_was_done(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(600):
        await served.gateway.stores.redis.put(entry_of(str(i), created=time.time() - 1), None)
    removal = served.gateway.removal
    monkeypatch.setattr(purges, "DELETED_AT_ONCE", 100)
    monkeypatch.setattr(removal, "_store", Failing(served.gateway.stores.removals, "delete", 1))
    answer = await purge(served, all=True)
    assert answer.status == 503
    said = answer.json
    assert 0 < said["removed"] < said["matched"] < 600
    assert said["recorded"] is True
    assert "in force in every gateway on this store" in said["error"]
    assert await served.gateway.stores.front.get(hexed("599")) is None
    monkeypatch.undo()
    assert await purged(served, all=True) == 600 - said["removed"]


async def test_what_the_store_could_not_be_told_is_in_force_here_and_recorded_later(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.chat("one", headers={"Cache-Tag": "a"})
    removal = served.gateway.removal
    monkeypatch.setattr(removal, "_store", Failing(served.gateway.stores.removals, "write_bans", 0))
    answer = await purge(served, tags=["a"])
    assert (answer.status, answer.json["recorded"], answer.json["removed"]) == (503, False, 1)
    assert "in this gateway only" in answer.json["error"]
    monkeypatch.undo()
    await removal.refresh()
    assert len(await served.gateway.stores.removals.bans()) == 1


@pytest.mark.usefixtures("killed_for_good")
async def test_a_dead_store_is_a_503_and_what_is_hot_is_not_served_either(served: Served) -> None:
    await served.chat("one", headers={"Cache-Tag": "a"})
    os.kill(store_pid(served), 9)
    assert (await purge(served, tags=["a"], dry_run=True)).status == 503
    assert verdict(await served.chat("one")) == "exact", "a dry run changes nothing"
    answer = await purge(served, tags=["a"])
    assert (answer.status, answer.json["recorded"]) == (503, False)
    assert verdict(await served.chat("one")).startswith("fwd=miss")


async def test_the_number_of_bans_is_bounded_and_what_they_meant_stays_gone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "DISK_MS", 1)  # the disk is not what this is about
    await served.chat("one", headers={"Cache-Tag": "t3"})
    for i in range(70):
        assert (await purge(served, tags=[f"t{i}"])).status == 200
    removals = served.gateway.stores.removals
    assert len(await removals.bans()) == len(served.gateway.stores.front.bans) <= 64
    assert verdict(await served.chat("one")) == "fwd=miss; stored"
    assert verdict(await served.chat("one")) == "exact"
