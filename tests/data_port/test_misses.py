"""Misses that are fetched and stored by callbacks, and nobody can tell: clients, upstream, store and index have the
same as by the stages, and books, metrics and the access log, too. What is otherwise goes on in the stages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sized
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from gateway.access.key_text import digest_of
from gateway.cache.removal import EVERYTHING, Ban
from gateway.data_port.fetching import Fetching
from gateway.data_port.plain_connection import PlainConnection
from gateway.errors import IndexUnavailable, StoreUnavailable
from gateway.flights.flight import Led
from gateway.http1.errors import ConnectFailed
from gateway.messages import Entry
from gateway.policy.load import policy_from_text
from gateway.stages.admit import Admit
from gateway.upkeep.removal_report import Wanted
from tests.data_port.test_lookups import ALIKE, ANSWER, ASKED, PARTS, POLICY, UNLIKE, chat, of_case
from tests.data_port.test_straight import (
    ANSWERS,
    COLD_ANSWERS,
    HOLD,
    TIMEOUT_S,
    TRACES,
    One,
    Piece,
    Scripted,
    answer,
    chunked,
    gateway_by,
    one,
    post,
    said,
    short,
    unreachable_alike,
    upstream_that_says,
)
from tests.fixtures.gateways import EXACT_CACHE, aboard
from tests.fixtures.waiting import until
from tests.fixtures.wire import Wire, connected

MORE = """
  - name: picked
    match: {model: picked}
    cache: {exact: {ttl: 1h}, admit: {max_temperature: 0.2}}
    route: {backend: main}
  - name: choosy
    match: {model: choosy}
    cache: {semantic: {ttl: 1h, min_similarity: 0.5}, admit: {max_tokens: 6}}
    route: {backend: main}
  - name: budgeted
    match: {model: budgeted}
    cache: {semantic: {ttl: 1h, min_similarity: 0.5}}
    route: {backend: main, latency_budget: 10s}
  - name: bare
    match: {model: bare}
    expose_headers: false
    cache: {semantic: {ttl: 1h, min_similarity: 0.5}}
    route: {backend: main}
  - name: crowded
    match: {model: crowded}
    cache: {semantic: {ttl: 1h, min_similarity: 0.5, coalesce: on}}
    route: {backend: main}
"""
ROUTES = POLICY.replace("  - name: both", MORE.lstrip("\n") + "  - name: both")
# -> the request, and whether it is fetched without the stages.
REQUESTS: dict[str, tuple[bytes, bool]] = {
    "a chat": (chat(), True),
    "a chat that is renamed": (chat(model="alias-1"), True),
    "several turns": (post(messages=[{"role": "system", "content": "be"}, {"role": "user", "content": ASKED}]), True),
    "spaces, unicode, numbers": (
        post(raw=b'{ "messages":[{"content":"\\u00e9 \xc3\xa9","role":"user"}], "x":1.50, "model": "m"}'),
        True,
    ),
    "parts": (post(messages=[{"role": "user", "content": PARTS}]), True),
    "max_tokens, temperature": (chat(max_tokens=7, temperature=0.5), True),
    "a completion": (post(path=b"/v1/completions", prompt=ASKED), True),
    "a query": (post(path=b"/v1/chat/completions?a=b%20c", messages=[{"role": "user", "content": ASKED}]), True),
    "what traces it": (chat(headers=TRACES), True),
    "an id that is none": (chat(headers=b'x-request-id: "\r\n'), True),
    "tags": (chat(headers=b"Cache-Tag: b, c\r\n"), True),
    "a cookie": (chat(headers=b"Cookie: a=b\r\nAccept-Encoding: gzip\r\n"), True),
    "max-age": (chat(headers=b"Cache-Control: max-age=5\r\n"), True),
    "hidden": (chat(model="bare"), True),
    "exact off": (chat(model="semantic"), True),
    "under a promise": (chat(model="promised"), True),
    "audited": (chat(model="audited"), False),
    "the exact cache alone": (chat(model="exact"), True),
    "the exact cache alone, no text": (post(messages=[{"role": "assistant", "content": "x"}], model="exact"), True),
    "the exact cache alone, what admission picks": (chat(model="picked", temperature=0.5), True),
    "embeddings of one text": (post(path=b"/v1/embeddings", input="a", model="exact"), True),
    "embeddings of two": (post(path=b"/v1/embeddings", input=["a", "b"], model="exact"), False),
    "one that waits for questions in flight": (chat(model="crowded"), False),
    "a route with a budget": (chat(model="budgeted"), False),
    "a route with limits": (chat(model="limited"), False),
    "a route that records": (chat(model="recorded"), False),
    "embeddings": (post(path=b"/v1/embeddings", input="a"), False),
    "no text": (post(messages=[{"role": "assistant", "content": "x"}]), False),
    "a stream": (chat(stream=True), False),
    "no-cache": (chat(headers=b"Cache-Control: no-cache\r\n"), False),
    "no-store": (chat(headers=b"Cache-Control: no-store\r\n"), False),
    "a priority": (chat(headers=b"x-priority: low\r\n"), False),
    "a long body": (chat(filler="x" * 70_000), False),
    "the last one": (chat(headers=b"Connection: close\r\n"), False),
}


def chosen(finish: str = "stop", **message: Any) -> bytes:
    fields = json.loads(ANSWER)
    fields["choices"][0] = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps(fields).encode()


# -> how the upstream answers, and whether that is the end of it.
SAID: dict[str, tuple[list[Piece], bool]] = {
    "as a rule": ([answer(ANSWER)], True),
    "cut short": ([answer(chosen("length", content="a"))], True),
    "a tool": ([answer(chosen("tool_calls", content=None, tool_calls=[{"id": "1"}]))], True),
    "an error": ([answer(b'{"error": {"message": "x"}, "choices": []}')], True),
    "no choices": ([answer(b'{"choices": []}')], True),
    "no usage": ([answer(json.dumps({"choices": json.loads(ANSWER)["choices"]}).encode())], True),
    "no JSON": ([answer(b"oops", kind=b"text/plain")], True),
    "no-store": ([answer(ANSWER, b"Cache-Control: private, no-store")], True),
    "tags": ([answer(ANSWER, b"Cache-Tag: a, b", b"Cache-Tag: c", b"Age: 3", b"X-NearHit-A: b")], True),
    "no type": ([answer(ANSWER).replace(b"Content-Type: application/json\r\n", b"")], True),
    "another type": ([answer(ANSWER, kind=b"application/json; charset=utf-8")], True),
    "chunks": ([chunked(ANSWER)], True),
    "head and body apart": ([answer(ANSWER)[:-20], answer(ANSWER)[-20:]], True),
    "limits that are reached": (
        [answer(ANSWER, b"x-ratelimit-remaining-requests: 0", b"x-ratelimit-reset-requests: 5s")],
        True,
    ),
    "a long one": ([answer(chosen(content="x" * 200_000))], False),
    # These are other answers to a call than to a request that passes through.
    **{
        name: given
        for name, given in ANSWERS.items()
        if name not in ("chunks", "no JSON", "head and body apart", "a long one")
    },
}


def misses(it: One) -> Any:
    return it.served.gateway.data_port._misses


def kept(it: One) -> list[tuple[Any, ...]]:
    """What lies in memory, and whether the ledger and the index know it."""
    gateway = it.served.gateway
    ledger, index = gateway.parts.evictions.ledger, gateway.parts.space.index
    entries: list[Entry] = [entry for entry, *_ in gateway.parts.store._kept.entries.values()]
    now = it.clock.wall()
    of_now = [replace(each, created=round(each.created - now), expires=round(each.expires - now)) for each in entries]
    return [(each, ledger._places.get(each.fingerprint), index.holds(each.fingerprint)) for each in of_now]


async def of_one(
    it: One, upstream: Scripted, number: int, request: bytes, script: list[Piece] | None, *, cold: bool = False
) -> dict[str, Any]:
    """What comes of a request, and of the same once more, after one that has left a connection idle; `cold`: which has
    ended since."""
    await said(it.served, post(model="through"))
    if cold:
        await it.disconnect()
    upstream.seen.clear()
    it.logged()
    before, taken, had = it.figures(), misses(it).fetched, len(kept(it))
    if script is not None:
        upstream.script.extend([script] if script[-1] != "" else [script[:-1]] * 2)
    answered = await said(it.served, of_case(number, request))
    upstream.script.clear()
    again = await said(it.served, of_case(number, request))
    await until(lambda: it.served.gateway.data_port.inflight == 0)
    after, log = it.figures(), it.logged()
    assert it.served.gateway.parts.flights == {}
    stored = kept(it)[had:]
    it.clock.advance(120)
    return {
        "said": answered,
        "again": again,
        "seen": list(upstream.seen),
        "log": log,
        "taken": misses(it).fetched - taken,
        "kept": stored,
        "unstorable": list(it.served.gateway.parts.unstorable._until),
        **it.books(),
        **{name: (before.get(name), value) for name, value in after.items() if before.get(name) != value},
    }


upstream = upstream_that_says(answer(ANSWER))
it = gateway_by(ROUTES)


@pytest.fixture
async def pair(tmp_path: Path, upstream: Scripted) -> AsyncIterator[tuple[One, One]]:
    """The same gateway twice: with and without."""
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(one(tmp_path / name, upstream, ROUTES)) for name in ("on", "off")]
        misses(both[1])._on = False
        yield both[0], both[1]


async def differences(
    pair: tuple[One, One],
    upstream: Scripted,
    cases: Mapping[str, tuple[bytes, list[Piece] | None]],
    first: int = 0,
    *,
    cold: bool = False,
) -> tuple[dict[str, Any], dict[str, int]]:
    """-> where both do not do the same; how many of each were fetched without the stages."""
    different, taken = {}, {}
    for number, (name, (request, script)) in enumerate(cases.items(), first):
        on, off = [await of_one(it, upstream, number, request, script, cold=cold) for it in pair]
        taken[name] = on.pop("taken")
        assert not off.pop("taken")
        assert on["said"]
        keys = [key for key in {**on, **off} if on.get(key) != off.get(key) and key != "traffic"]
        if keys:
            different[name] = {key: (str(on.get(key)), str(off.get(key))) for key in keys}
    return different, taken


async def test_requests_are_sent_answered_and_stored_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    different, taken = await differences(pair, upstream, {name: (each, None) for name, (each, _) in REQUESTS.items()})
    assert not different, json.dumps(different, indent=1)
    assert {name: count > 0 for name, count in taken.items()} == {name: on for name, (_, on) in REQUESTS.items()}


async def test_answers_are_given_and_stored_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    for first in (0, 100):  # the heads of most are known by the second time
        cases = {name: (chat(), script) for name, (script, _) in SAID.items()}
        different, taken = await differences(pair, upstream, cases, first)
        assert not different, json.dumps(different, indent=1)
        assert taken == {name: int(on) for name, (_, on) in SAID.items()}


async def test_embeddings_are_fetched_and_stored_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    vectors = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1]}], "model": "e"}
    told = {"whole": {**vectors, "usage": {"prompt_tokens": 3, "total_tokens": 3}}, "none": {**vectors, "data": []}}
    request = post(path=b"/v1/embeddings", input="a", model="exact")
    cases = {name: (request, [answer(json.dumps(each).encode())]) for name, each in told.items()}
    different, taken = await differences(pair, upstream, cases)
    assert not different, json.dumps(different, indent=1)
    assert taken == {"whole": 1, "none": 1}
    assert [entry.operation for entry, *_ in kept(pair[0])] == ["embeddings"]


async def idle(it: One) -> None:
    """A connection to the upstream lies idle."""
    await said(it.served, post(model="through"))
    await settled(it)


async def settled(it: One) -> None:
    """Nothing holds a place any more: who has its answer may be a step ahead of the books."""
    await until(lambda: it.books()["load"] == (0, 0, 0, 0))


@asynccontextmanager
async def asking(it: One, request: bytes, begun: Sized) -> AsyncIterator[Wire]:
    """A client whose request has come so far that something is in `begun`; it leaves at the end."""
    async with connected(it.served.url) as wire:
        await wire.send(request)
        await until(lambda: begun)
        yield wire


async def flying(it: One, upstream: Scripted, request: bytes = chat()) -> asyncio.Task[bytes]:
    """A miss whose answer is held back."""
    await idle(it)
    upstream.hold.clear()
    upstream.seen.clear()
    asked = asyncio.create_task(said(it.served, request))
    await until(lambda: upstream.seen)
    return asked


@pytest.mark.parametrize("model", ["m", "exact"])
async def test_a_crowd_makes_one_call(it: One, upstream: Scripted, model: str) -> None:
    first = await flying(it, upstream, chat(model=model))
    others = [asyncio.create_task(said(it.served, chat(model=model, metadata={"n": str(n)}))) for n in range(5)]
    await until(lambda: aboard(it.served) == 6)
    upstream.hold.set()
    assert b"fwd=miss; stored" in await first
    for other in others:
        assert b"fwd=miss; collapsed" in await other
    assert len(upstream.seen) == 1
    assert it.books()["load"] == (0, 0, 0, 0)
    assert misses(it).fetched == 0
    assert it.served.gateway.parts.flights == {}


async def test_a_crowd_whose_answer_comes_in_pieces(it: One, upstream: Scripted) -> None:
    await idle(it)
    upstream.script.append([answer(ANSWER)[:-200], b"", b"", b"", answer(ANSWER)[-200:]])
    upstream.hold.clear()
    asked = [asyncio.create_task(said(it.served, chat(metadata={"n": str(n)}))) for n in range(3)]
    await until(lambda: aboard(it.served) == 3)
    upstream.hold.set()
    answers = [await each for each in asked]
    assert sorted(b"collapsed" in each for each in answers) == [False, True, True]
    assert all(ANSWER in each for each in answers)


async def test_who_comes_later_has_the_answer_when_the_first_has_left(it: One, upstream: Scripted) -> None:
    await idle(it)
    upstream.hold.clear()
    upstream.seen.clear()
    async with asking(it, chat(), upstream.seen):
        second = asyncio.create_task(said(it.served, chat(metadata={"n": "1"})))
        await until(lambda: aboard(it.served) == 2)
    await until(lambda: it.served.gateway.data_port.inflight == 1)
    upstream.hold.set()
    assert b"fwd=miss; collapsed" in await second
    assert len(upstream.seen) == 1
    assert it.books()["load"] == (0, 0, 0, 0)
    assert 499 in [line["status"] for line in it.logged()]


async def test_a_client_that_leaves_cancels_upstream(it: One, upstream: Scripted) -> None:
    for number, more in enumerate(([], [answer(ANSWER)[:-9]])):  # before the answer, and within
        await idle(it)
        upstream.seen.clear()
        upstream.left = 0
        upstream.script.append([*more, HOLD])
        async with connected(it.served.url) as wire:
            await wire.send(of_case(number, chat()))
            await until(lambda: upstream.seen)
            assert it.lane.load == it.served.gateway.data_port.inflight == len(it.served.gateway.parts.flights) == 1
        await until(lambda: it.served.gateway.data_port.inflight == 0)
        await until(lambda: upstream.left)
        assert it.books()["load"] == (0, 0, 0, 0)
        assert it.logged()[-1]["status"] == 499
        assert it.served.gateway.parts.flights == {}


async def test_a_client_that_leaves_at_any_moment_gives_its_place_back(it: One, upstream: Scripted) -> None:
    for rounds in range(16):  # of the loop
        await idle(it)
        async with connected(it.served.url) as wire:
            wire.writer.write(of_case(rounds, chat()))
            for _ in range(rounds):
                await asyncio.sleep(0)
            wire.writer.transport.abort()
        await until(lambda: it.books()["load"] == (0, 0, 0, 0) and not it.served.gateway.parts.flights)
        for writer in tuple(upstream.writers):
            writer.close()


@pytest.fixture
def puts(it: One, monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[Any]]:
    """The replies to what is put, each held back until it is let go."""
    store, held = it.served.gateway.parts.store._store, list[asyncio.Future[Any]]()
    begin = type(store).begin_put

    def later(self: Any, *given: Any) -> asyncio.Future[Any]:
        reply, told = begin(self, *given), asyncio.get_running_loop().create_future()
        gate: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        held.append(gate)

        async def passed() -> None:
            try:
                failure = await gate
                if failure is not None:
                    raise failure
                told.set_result(await reply)
            except RedisError as error:
                told.set_exception(error)

        told.passing = asyncio.create_task(passed())  # type: ignore[attr-defined]
        return told

    monkeypatch.setattr(type(store), "begin_put", later)
    return held


async def test_the_answer_comes_when_it_is_stored(it: One, upstream: Scripted, puts: list[asyncio.Future[Any]]) -> None:
    await idle(it)
    first = asyncio.create_task(said(it.served, chat()))
    await until(lambda: puts)
    assert not first.done()
    assert b"detail=exact" in await said(it.served, chat(metadata={"n": "1"}))  # it lies in memory
    puts[0].set_result(None)
    assert b"fwd=miss; stored" in await first


async def test_who_asks_what_is_being_stored_waits_for_that(
    it: One, upstream: Scripted, puts: list[asyncio.Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(it.served.gateway.parts.store._kept, "largest", 0)  # none has room in memory
    await idle(it)
    upstream.seen.clear()
    first = asyncio.create_task(said(it.served, chat()))
    await until(lambda: puts)
    second = asyncio.create_task(said(it.served, chat(metadata={"n": "1"})))
    await until(lambda: [each._landing for each in it.served.gateway.parts.flights.values()] != [None])
    puts[0].set_result(None)
    assert b"fwd=miss; stored" in await first
    assert b"fwd=miss; collapsed" in await second
    assert len(upstream.seen) == 1


async def test_what_is_being_stored_is_stored_when_its_client_leaves(
    it: One, upstream: Scripted, puts: list[asyncio.Future[Any]]
) -> None:
    await idle(it)
    async with asking(it, chat(), puts):
        pass
    await until(lambda: it.served.gateway.data_port.inflight == 0)
    assert it.logged()[-1]["status"] == 499
    puts[0].set_result(None)
    await until(lambda: not it.served.gateway.parts.flights)
    assert [(found, indexed) for _, found, indexed in kept(it)] == [(kept(it)[0][1], True)]
    assert b"detail=exact" in await said(it.served, chat(metadata={"n": "1"}))


async def test_a_store_that_fails_keeps_no_answer_back(
    it: One, upstream: Scripted, puts: list[asyncio.Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await idle(it)
    first = asyncio.create_task(said(it.served, chat()))
    await until(lambda: puts)
    puts[0].set_result(RedisError("gone"))
    answered = await first
    assert b"fwd=miss\r\n" in answered and ANSWER in answered
    assert it.figures()["store_errors"] == {(): 1.0}

    def refused(*_: Any) -> None:
        raise StoreUnavailable("left alone")

    monkeypatch.setattr(type(it.served.gateway.parts.store._store), "begin_put", refused)
    answered = await said(it.served, of_case(1, chat()))
    assert b"fwd=miss\r\n" in answered and ANSWER in answered
    assert it.figures()["store_errors"] == {(): 2.0}
    assert misses(it).fetched == 2


async def test_a_server_that_has_forgotten_its_scripts_is_told_them_again(it: One, upstream: Scripted) -> None:
    store = it.served.gateway.parts.store._store
    for number in range(2):
        await idle(it)
        await store._client.script_flush()
        assert b"fwd=miss; stored" in await said(it.served, of_case(number, chat()))
    assert misses(it).fetched == 2
    assert (await store.stats()).entries == 2
    assert all(found is not None and indexed for _, found, indexed in kept(it))


async def test_an_index_that_is_busy_is_waited_for(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    await idle(it)
    monkeypatch.setattr(type(it.served.gateway.parts.space.index), "add_at_hand", lambda *_: False)
    assert b"fwd=miss; stored" in await said(it.served, chat())
    assert kept(it)[0][2]
    assert b"detail=semantic" in await said(it.served, chat(ALIKE))


async def test_what_fails_as_an_answer_is_stored_keeps_it_from_nobody(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = it.served.gateway

    def broken(error: Exception) -> Any:
        def fail(*_: object) -> None:
            raise error

        return fail

    faults = [
        (type(gateway.parts.space.index), "add_at_hand", IndexUnavailable("no memory")),
        (type(gateway.parts.evictions), "stored", RuntimeError("a fault of ours")),
        (type(gateway.parts.store._store), "was_put", RuntimeError("a fault of ours")),
        (type(gateway.parts.store._store), "begin_put", RuntimeError("a fault of ours")),
    ]
    for number, (kind, name, error) in enumerate(faults):
        await idle(it)
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, broken(error))
            assert ANSWER in await said(it.served, of_case(number, chat())), name
        assert gateway.data_port.inflight == 0
        assert gateway.parts.flights == {}
    assert misses(it).fetched == len(faults)


async def test_tags_that_are_no_text_keep_no_answer_back(it: One, upstream: Scripted) -> None:
    upstream.usual = answer(ANSWER, b"Cache-Tag: caf\xe9")
    for number in range(2):
        misses(it)._on = number == 0
        await idle(it)
        answered = await said(it.served, of_case(number, chat()))
        assert b"fwd=miss\r\n" in answered and ANSWER in answered
        assert it.served.gateway.data_port.inflight == 0
    assert it.figures()["store_errors"] == {(): 2.0}


async def test_who_leaves_while_the_gateway_stops_is_counted_once(
    it: One, upstream: Scripted, puts: list[asyncio.Future[Any]]
) -> None:
    await idle(it)
    async with asking(it, chat(), puts):
        it.logged()
        stopping = asyncio.create_task(it.served.gateway.data_port.stop())
        await until(lambda: it.served.gateway.data_port._service.draining)
    await stopping
    assert it.served.gateway.data_port.inflight == 0
    assert [line["status"] for line in it.logged()] == [499]
    puts[0].set_result(None)
    await until(lambda: not it.served.gateway.parts.flights)


async def test_what_was_removed_meanwhile_is_not_stored(it: One, upstream: Scripted) -> None:
    upstream.usual = answer(ANSWER, b"Cache-Tag: a")
    first = await flying(it, upstream)
    await it.served.gateway.removal.purge(Wanted(tags=("a",)), dry_run=False)
    upstream.hold.set()
    assert b"fwd=miss\r\n" in await first
    assert kept(it) == []
    assert it.figures()["admissions"] == {("both", "purged"): 1.0}


async def test_what_was_removed_before_the_stages_went_on_is_not_stored(it: One, upstream: Scripted) -> None:
    of_no_length = chunked(ANSWER, b"Cache-Tag: a")
    upstream.script.append([answer(ANSWER)])
    upstream.script.append([of_no_length[:-20], of_no_length[-20:]])
    first = await flying(it, upstream)
    await it.served.gateway.removal.purge(Wanted(tags=("a",)), dry_run=False)
    it.clock.advance(1)
    upstream.hold.set()
    assert b"fwd=miss\r\n" in await first
    assert misses(it).fetched == 0
    assert kept(it) == []


async def test_what_was_removed_before_it_is_put_once_more_is_not_stored(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, now = it.served.gateway, it.clock.wall()

    def forgotten(*_: object) -> bool:
        gateway.parts.store.bans.add(Ban("1", now, now + 60, EVERYTHING), now)
        return False

    await idle(it)
    monkeypatch.setattr(type(gateway.parts.store._store), "was_put", forgotten)
    assert b"fwd=miss\r\n" in await said(it.served, chat())
    assert misses(it).fetched == 1
    assert len(gateway.parts.evictions.ledger) == 0


async def test_who_asks_after_a_removal_does_not_share_what_was_sent_before_it(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over = []

    def resumed(self: PlainConnection, *given: Any) -> None:
        handed_over.append(given)
        usual(self, *given)

    usual = PlainConnection.resumed
    monkeypatch.setattr(PlainConnection, "resumed", resumed)
    upstream.script.append([answer(ANSWER)])
    upstream.script.append([chunked(ANSWER)[:-20], HOLD])
    first = await flying(it, upstream)
    await it.served.gateway.removal.purge(Wanted(tags=("a",)), dry_run=False)
    upstream.hold.set()
    await until(lambda: handed_over)
    for _ in range(10):
        await asyncio.sleep(0)  # by when the stages wait for the rest
    async with asyncio.timeout(TIMEOUT_S):
        assert b"fwd=miss" in await said(it.served, chat(metadata={"n": "1"}))
    assert len(upstream.seen) == 2
    first.cancel()
    await settled(it)


async def test_a_request_keeps_to_the_policy_that_it_was_sent_under(it: One, upstream: Scripted) -> None:
    first = await flying(it, upstream)
    gateway = it.served.gateway
    gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "other"), "policy.yaml", gateway.config))
    upstream.hold.set()
    assert b"x-nearhit-route: both" in await first
    assert b"x-nearhit-route: other" in await said(it.served, chat(UNLIKE))
    assert misses(it).fetched == 2


async def test_what_is_under_way_when_the_gateway_stops_is_answered(
    it: One, upstream: Scripted, puts: list[asyncio.Future[Any]]
) -> None:
    await idle(it)
    async with asking(it, chat(), puts) as wire:
        stopping = asyncio.create_task(it.served.gateway.data_port.stop())
        await until(lambda: it.served.gateway.data_port._service.draining)
        await asyncio.sleep(0)
        puts[0].set_result(None)
        answered = await wire.rest()
        await stopping
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n") and ANSWER in answered
    assert b"\r\nConnection: close\r\n" in answered and b"; stored" in answered


async def test_what_there_is_to_wait_for_is_the_stages(tmp_path: Path, upstream: Scripted) -> None:
    async with one(tmp_path, upstream, ROUTES, main={"max_concurrency": 1, "adaptive": False}) as it:
        assert b"fwd=miss; stored" in await said(it.served, chat())
        assert misses(it).fetched == 1  # a connection was opened for it
        for number in range(2, 12):  # while the index is at something else, the stages wait for it
            await settled(it)
            upstream.hold.clear()
            upstream.seen.clear()
            first = asyncio.create_task(said(it.served, of_case(number, chat(UNLIKE))))
            await until(lambda: upstream.seen)
            if any(isinstance(each, Fetching) for each in it.served.gateway.parts.flights.values()):
                break
            upstream.hold.set()
            await first
        second = asyncio.create_task(said(it.served, of_case(1, chat())))
        await until(lambda: it.lane.load == 2)
        upstream.hold.set()
        assert b"fwd=miss; stored" in await first
        assert b"fwd=miss; stored" in await second
        assert misses(it).fetched == 2  # there was no place at the gate for the second one
        assert it.books()["load"] == (0, 0, 0, 0)


async def test_an_answer_that_takes_too_long_is_told_by_the_stages(tmp_path: Path, upstream: Scripted) -> None:
    async with one(tmp_path, upstream, ROUTES, main=short("first_byte")) as it:
        await idle(it)
        upstream.hold.clear()
        assert b" 504 " in (await said(it.served, chat())).partition(b"\r\n")[0]
        upstream.hold.set()
        assert it.books()["load"] == (0, 0, 0, 0)
        assert misses(it).fetched == 0


async def test_keys_that_are_at_hand(tmp_path: Path, upstream: Scripted) -> None:
    auth = {"mode": "keys", "keys": {"acme": [digest_of("secret")]}}
    async with one(tmp_path, upstream, ROUTES, auth=auth, main={"api_key_env": "KEY"}) as it:
        secret = b"Authorization: Bearer secret\r\n"
        await said(it.served, post(secret, model="through"))
        upstream.seen.clear()
        assert b"fwd=miss; stored" in await said(it.served, chat(headers=secret))
        assert b"Authorization: Bearer own-key\r\n" in upstream.seen[0] and b"secret" not in upstream.seen[0]
        assert it.logged()[-1]["tenant"] == "acme"
        assert misses(it).fetched == 1
        first = await flying_with(it, upstream, secret)
        it.served.gateway.access.keyring._configured.clear()
        upstream.hold.set()
        assert b" 200 " in (await first).partition(b"\r\n")[0]
        assert b" 401 " in (await said(it.served, chat(headers=secret))).partition(b"\r\n")[0]


async def flying_with(it: One, upstream: Scripted, headers: bytes) -> asyncio.Task[bytes]:
    upstream.hold.clear()
    upstream.seen.clear()
    asked = asyncio.create_task(said(it.served, chat(UNLIKE, headers=headers)))
    await until(lambda: upstream.seen)
    return asked


async def test_who_watches_is_told(it: One, upstream: Scripted) -> None:
    await idle(it)
    with it.served.gateway.dashboard.decisions.watch() as watch:
        await said(it.served, chat())
        told = await watch.take(TIMEOUT_S)
    assert misses(it).fetched == 1
    assert [(each["verdict"], each["reason"], each["backend"]) for each in told] == [("miss", "only-backend", "main")]


async def test_a_fault_in_the_books_is_not_the_clients(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    await idle(it)
    for number, (kind, name) in enumerate([(Admit, "whole"), (type(it.lane), "relayed")]):
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, broken)
            assert ANSWER in await said(it.served, of_case(number, chat()))
        assert it.served.gateway.data_port.inflight == 0
        assert it.served.gateway.parts.flights == {}


async def test_what_was_asked_at_once_is_answered_in_order(it: One, upstream: Scripted) -> None:
    await idle(it)
    several = [chat(f"{'abcdefgh'[n]} " * 8) for n in range(8)]
    answered = await said(it.served, *several, chat(), chat(ALIKE))
    told = re.findall(rb"Cache-Status: nearhit; ([^\r]*)", answered)
    assert told == [b"fwd=miss; stored"] * 9 + [b"hit; detail=semantic"]
    assert misses(it).fetched == 9


COLD = ("as a rule", *(name for name in COLD_ANSWERS if name in SAID))


async def test_new_connections_are_asked_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    cases = {name: (chat(), SAID[name][0]) for name in COLD}
    different, taken = await differences(pair, upstream, cases, cold=True)
    assert not different, different
    assert taken == {name: int(SAID[name][1]) for name in COLD}


@pytest.fixture
def opening(it: One, monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """Connections that are opened, each held back until it is let go."""
    held = list[asyncio.Event]()
    connected = type(it.connections).connected

    async def later(self: Any, due: float) -> Any:
        gate = asyncio.Event()
        held.append(gate)
        await gate.wait()
        return await connected(self, due)

    monkeypatch.setattr(type(it.connections), "connected", later)
    return held


@pytest.fixture
def refused(it: One, monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """The first connection that is opened: it is refused when that is let happen, and others are not."""
    held = list[asyncio.Event]()
    connected = type(it.connections).connected

    async def refusing(self: Any, due: float) -> Any:
        if held:
            return await connected(self, due)
        held.append(asyncio.Event())
        await held[0].wait()
        raise ConnectFailed("connection refused")

    monkeypatch.setattr(type(it.connections), "connected", refusing)
    return held


async def test_a_crowd_makes_one_call_when_a_connection_is_opened_for_the_first(
    it: One, upstream: Scripted, opening: list[asyncio.Event]
) -> None:
    first = asyncio.create_task(said(it.served, chat()))
    await until(lambda: opening)
    others = [asyncio.create_task(said(it.served, chat(metadata={"n": str(n)}))) for n in range(5)]
    await until(lambda: len(opening) == 2)  # the stages open one for themselves
    await until(lambda: it.books()["load"] == (1, 1, 1, 6))
    opening[1].set()
    assert b"fwd=miss; stored" in await first
    for other in others:
        assert b"fwd=miss; collapsed" in await other
    await until(lambda: it.books()["load"] == (0, 0, 0, 0))
    assert len(upstream.seen) == len(opening) - 1 == it.connections.open == 1
    assert misses(it).fetched == 0
    assert it.books()["asked"] == [1]
    assert it.served.gateway.parts.flights == {}


async def test_who_comes_later_has_the_answer_when_the_first_has_left_before_it_was_sent(
    it: One, upstream: Scripted, opening: list[asyncio.Event]
) -> None:
    async with asking(it, chat(), opening):
        second = asyncio.create_task(said(it.served, chat(metadata={"n": "1"})))
        await until(lambda: len(opening) == 2)
    await until(lambda: it.served.gateway.data_port.inflight == 1)
    opening[1].set()
    assert b"fwd=miss; collapsed" in await second
    assert len(upstream.seen) == 1
    assert it.books()["load"] == (0, 0, 0, 0)


async def test_a_client_that_leaves_before_it_was_sent_leaves_nothing_behind(
    it: One, upstream: Scripted, opening: list[asyncio.Event]
) -> None:
    async with asking(it, chat(), opening):
        pass
    await until(lambda: it.books()["load"] == (0, 0, 0, 0))
    assert it.logged()[-1]["status"] == 499
    await until(lambda: not it.served.gateway.parts.flights)
    assert not upstream.seen and not it.connections.open and not it.connections._opening
    before = len(opening)
    second = asyncio.create_task(said(it.served, chat()))
    await until(lambda: len(opening) > before)
    opening[-1].set()
    assert b"fwd=miss; stored" in await second
    assert misses(it).fetched == 1


@pytest.mark.parametrize("model", ["exact", "through"])
async def test_who_leaves_in_the_turn_in_which_no_connection_was_to_be_had_is_given_up_once(
    it: One, upstream: Scripted, refused: list[asyncio.Event], model: str
) -> None:
    async with asking(it, chat(model=model), refused):
        [connection] = it.served.gateway.data_port._connections._plain  # type: ignore[union-attr]
        refused[0].set()
        connection._transport.abort()
        told = list[dict[str, Any]]()
        await until(lambda: told.extend(it.logged()) or told)
        for _ in range(20):  # of the loop
            await asyncio.sleep(0)
        assert it.books()["load"] == (0, 0, 0, 0)
    assert [line["status"] for line in [*told, *it.logged()]] == [499]
    assert not upstream.seen
    assert it.served.gateway.parts.flights == {}


async def test_who_asks_the_same_in_the_turn_in_which_no_connection_was_to_be_had_has_it_asked_once(
    it: One, upstream: Scripted, refused: list[asyncio.Event]
) -> None:
    async with asking(it, chat(model="exact"), refused) as wire:
        [fetching] = it.served.gateway.parts.flights.values()
        refused[0].set()
        with pytest.raises(Led):
            await asyncio.create_task(fetching.join())
        assert ANSWER in (await wire.message()).body  # asked again, as where nobody else came
    await until(lambda: it.books()["load"] == (0, 0, 0, 0))
    assert len(upstream.seen) == len(it.logged()) == 1


async def test_where_no_connection_is_to_be_had_the_stages_say_so(tmp_path: Path) -> None:
    def turned(it: One, on: bool) -> None:
        misses(it)._on = on

    await unreachable_alike(tmp_path, ROUTES, chat(), turned)
