"""Calls whose answers lie in memory are answered by their connection, and nobody can tell: clients are sent the same
bytes as by the stages, and metrics and the access log have the same of it. What is otherwise goes on in the stages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.access.key_text import digest_of
from gateway.data_port import plain_connection
from gateway.policy.load import policy_from_text
from gateway.upkeep.removal_report import Wanted
from tests.data_port.test_straight import (
    PARTS,
    TIMEOUT_S,
    TRACES,
    One,
    Scripted,
    answer,
    one,
    post,
    said,
    upstream_that_says,
)
from tests.fixtures.gateways import EXACT_CACHE, aboard
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

POLICY = """
version: 1
routes:
  - {name: hidden, match: {model: hidden}, expose_headers: false, cache: {exact: {ttl: 1h}}, route: {backend: main}}
  - {name: exact, match: {model: exact}, cache: {exact: {ttl: 100s}, jitter: 50%}, route: {backend: main}}
  - name: stale
    match: {model: stale}
    cache: {exact: {ttl: 2s}, stale_while_revalidate: 1h}
    route: {backend: main}
  - name: semantic
    match: {model: semantic}
    cache: {semantic: {ttl: 1h, min_similarity: 0.5}}
    route: {backend: main}
  - name: promised
    match: {model: promised}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}}
    route: {backend: main}
  - name: audited
    match: {model: audited}
    cache: {semantic: {ttl: 1h, max_wrong_hits: 1%, audit: {share: 1%}}, exact: {ttl: 1h}}
    route: {backend: main}
  - {name: fresh, match: {model: fresh}, cache: {exact: {ttl: 1h}, fresh_ids: on}, route: {backend: main}}
  - name: counted
    match: {model: counted}
    cache: {exact: {ttl: 1h}}
    limits: {requests: 600/min, count_hits: on}
    route: {backend: main}
  - name: limited
    match: {model: limited}
    cache: {exact: {ttl: 1h}}
    limits: {requests: 600/min}
    route: {backend: main}
  - {name: recorded, match: {model: recorded}, cache: {exact: {ttl: 1h}}, record: on, route: {backend: main}}
  - {name: through, match: {model: through}, route: {backend: main}}
  - {name: of-users, match: {model: of-users}, cache: {exact: {ttl: 1h}, share: user}, route: {backend: main}}
  - name: both
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.5}}
    route: {backend: main}
"""
ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }
).encode()
# Of limits, by a clock that goes on, and ids that are made for each answer.
OWN = re.compile(rb"(r=\d+;t=\d+|re(?:set|maining)-requests: [0-9.ms]+|chatcmpl-[0-9a-f]{24})")
ASKED = "how do I return a parcel that never came"


def chat(text: str = ASKED, headers: bytes = b"", **fields: Any) -> bytes:
    return post(headers, messages=[{"role": "user", "content": text}], **fields)


def new(**fields: Any) -> bytes:
    """In bytes that were not seen before, with the same meaning."""
    return chat(metadata={"n": "1"}, **fields)


ALIKE = ASKED + " please"
UNLIKE = "what is the capital of France"
# -> what is asked before, the request, and how often, of three times, its connection answers it from memory: what was
# answered exactly the front knows from then on, and what was fetched lies in memory the second time.
CASES: dict[str, tuple[Sequence[bytes], bytes, int]] = {
    "exact": ([chat()], new(), 1),
    "exact, spaces": (
        [chat()],
        post(raw=json.dumps(json.loads(chat().split(b"\r\n\r\n")[1]), indent=2).encode()),
        1,
    ),
    "exact, what traces it": ([chat()], new(headers=TRACES), 1),
    "exact, hidden": ([chat(model="hidden")], new(model="hidden"), 1),
    "exact, with a jitter": ([chat(model="exact")], new(model="exact"), 1),
    "exact, of a user": ([chat(model="of-users", user="a")], new(model="of-users", user="a"), 1),
    "exact, of another user": ([chat(model="of-users", user="a")], new(model="of-users", user="b"), 1),
    "exact, of another tenant": ([chat(headers=b"x-api-key: a\r\n")], new(headers=b"x-api-key: b\r\n"), 1),
    "exact, under a limit that counts misses": ([chat(model="limited")], new(model="limited"), 1),
    "exact, under a promise": ([chat(model="promised")], new(model="promised"), 1),
    "parts": (
        [post(messages=[{"role": "user", "content": PARTS}])],
        post(messages=[{"role": "user", "content": PARTS}], metadata={}),
        1,
    ),
    "semantic": ([chat()], chat(ALIKE), 3),
    "semantic, exact off": ([chat(model="semantic")], chat(ALIKE, model="semantic"), 3),
    "semantic, the same words": ([chat(model="semantic")], new(model="semantic"), 3),
    "semantic, in another scope": ([chat()], chat(ALIKE, temperature=1), 1),
    "semantic, hidden by a promise": ([chat(model="promised")], chat(ALIKE, model="promised"), 0),
    "a miss": ([], chat(), 1),
    "a miss beside others": ([chat()], chat(UNLIKE), 1),
    "a stream": ([chat()], new(stream=True), 0),
    "several embeddings": (
        [post(path=b"/v1/embeddings", input=["a", "b"])],
        post(path=b"/v1/embeddings", input=["b", "a"]),
        0,
    ),
    "no text": ([], post(messages=[{"role": "assistant", "content": "x"}]), 1),
    "a user's turn without text": ([], post(messages=[{"role": "user", "content": " "}]), 1),
    "no-cache": ([chat()], new(headers=b"Cache-Control: no-cache\r\n"), 0),
    "no-store": ([chat()], new(headers=b"Cache-Control: no-store\r\n"), 0),
    "max-age": ([chat()], new(headers=b"Cache-Control: max-age=5\r\n"), 3),
    "max-age, older": ([chat()], new(headers=b"Cache-Control: max-age=1\r\n"), 2),
    "only-if-cached": ([chat()], new(headers=b"Cache-Control: only-if-cached\r\n"), 0),
    "a directive that says nothing": ([chat()], new(headers=b"Cache-Control: private\r\n"), 3),
    "a budget": ([chat()], new(headers=b"x-latency-budget-ms: 5000\r\n"), 0),
    "audited": ([chat(model="audited")], new(model="audited"), 0),
    "ids of its own": ([chat(model="fresh")], new(model="fresh", stream=False), 0),
    "counted": ([chat(model="counted")], new(model="counted"), 0),
    "recorded": ([chat(model="recorded")], new(model="recorded"), 0),
    "passes through": ([chat(model="through")], new(model="through"), 0),
    "passes through, a stream": ([], new(model="through", stream=True), 0),
    "another dialect": ([], post(path=b"/v1/messages", max_tokens=3), 0),
    "no JSON": ([], post(raw=b"{"), 0),
    "a key twice": ([], post(raw=b'{"model":"m","model":"n","messages":[{"role":"user","content":"x"}]}'), 0),
    "no messages": ([], post(messages=[]), 0),
    "a long body": ([chat()], new(filler="x" * 70_000), 0),
    "the last one": ([chat()], new(headers=b"Connection: close\r\n"), 0),
}


def lookups(it: One) -> Any:
    return it.served.gateway.data_port._lookups


def gathering(it: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on calls are looked up at the end of the turn of the event loop that they came with."""
    turns = it.served.gateway.data_port._connections.turns  # type: ignore[union-attr]
    turns._patience = 1
    monkeypatch.setattr("gateway.data_port.turns.ENOUGH", 0)


def of_case(number: int, request: bytes) -> bytes:
    """Each case has a tenant of its own: what one stores no other finds."""
    return request.replace(b"Host: g\r\n", b"Host: g\r\nAuthorization: Bearer %d\r\n" % number)


async def of_one(it: One, upstream: Scripted, number: int, before: Sequence[bytes], request: bytes) -> dict[str, Any]:
    """What comes of a request that is asked twice on one connection and once on another, after those before it."""
    for each in before:
        await said(it.served, of_case(number, each))
    upstream.seen.clear()
    it.logged()
    figures, taken = it.figures(), lookups(it).answered
    it.clock.advance(3)
    asked = of_case(number, request)
    answered = [OWN.sub(b"-", await said(it.served, *[asked] * count)) for count in (2, 1)]
    await until(lambda: it.served.gateway.data_port.inflight == 0)
    after, log = it.figures(), it.logged()
    return {
        "said": answered,
        "seen": list(upstream.seen),
        "log": log,
        "taken": lookups(it).answered - taken,
        **{name: (figures.get(name), value) for name, value in after.items() if figures.get(name) != value},
    }


upstream = upstream_that_says(answer(ANSWER, b"Cache-Tag: a"))


@pytest.fixture(params=[False, True], ids=["at once", "gathered"])
def gathered(request: pytest.FixtureRequest) -> bool:
    """How calls are looked up."""
    return bool(request.param)


@pytest.fixture
async def it(tmp_path: Path, upstream: Scripted, monkeypatch: pytest.MonkeyPatch, gathered: bool) -> AsyncIterator[One]:
    async with one(tmp_path, upstream, POLICY) as it:
        if gathered:
            gathering(it, monkeypatch)
        yield it


@pytest.fixture
async def pair(
    tmp_path: Path, upstream: Scripted, monkeypatch: pytest.MonkeyPatch, gathered: bool
) -> AsyncIterator[tuple[One, One]]:
    """The same gateway twice: with lookups by connections, and without."""
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(one(tmp_path / name, upstream, POLICY)) for name in ("on", "off")]
        lookups(both[1])._on = False
        if gathered:
            gathering(both[0], monkeypatch)
        yield both[0], both[1]


async def test_both_answer_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    different, taken = {}, {}
    for number, (name, (before, request, _)) in enumerate(CASES.items()):
        on, off = [await of_one(it, upstream, number, before, request) for it in pair]
        taken[name] = on.pop("taken")
        assert not off.pop("taken")
        assert all(on["said"])
        # What is recorded is counted once it is written, in a thread.
        keys = [key for key in {**on, **off} if on.get(key) != off.get(key) and key != "traffic"]
        if keys:
            different[name] = {key: (str(on.get(key)), str(off.get(key))) for key in keys}
    assert not different, json.dumps(different, indent=1)
    assert taken == {name: count for name, (_, _, count) in CASES.items()}


async def test_what_was_asked_at_once_is_answered_in_order(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more of it than Python has frames for, and with what the stages answer among it."""
    monkeypatch.setattr(plain_connection, "WAIT_S", TIMEOUT_S)  # how long the rest of a request takes is not looked at
    await said(it.served, chat())
    several = [chat(model="through"), *[chat(ALIKE)] * 30, chat(UNLIKE), *[chat(ALIKE)] * 1200, new()]
    answered = await said(it.served, *several)
    told = re.findall(rb"Cache-Status: nearhit; ([^\r]*)", answered)
    hits = [b"hit; detail=semantic"]
    assert told == [b"fwd=bypass; detail=policy", *hits * 30, b"fwd=miss; stored", *hits * 1200, told[-1]]
    assert told[-1].startswith(b"hit; detail=exact")
    assert lookups(it).answered > 1000


async def test_who_asks_what_is_in_flight_joins_it(it: One, upstream: Scripted) -> None:
    upstream.hold.clear()
    upstream.seen.clear()
    first = asyncio.create_task(said(it.served, chat()))
    await until(lambda: upstream.seen)
    second = asyncio.create_task(said(it.served, new()))
    await until(lambda: aboard(it.served) == 2)
    upstream.hold.set()
    assert b"fwd=miss; stored" in await first
    assert b"fwd=miss; collapsed" in await second
    assert len(upstream.seen) == 1


async def test_what_lies_in_the_store_alone_goes_before_what_is_alike(tmp_path: Path, upstream: Scripted) -> None:
    async with one(tmp_path, upstream, POLICY) as it:
        await said(it.served, chat())
        await said(it.served, chat(UNLIKE))
        front = it.served.gateway.parts.store._kept
        front.drop(next(iter(front.entries)))
        assert b"detail=exact" in await said(it.served, new())
        assert lookups(it).answered == 0


async def test_what_is_past_its_time_is_served_by_the_stages(it: One, upstream: Scripted) -> None:
    await said(it.served, chat(model="stale"))
    it.clock.advance(3)
    assert b"detail=stale" in await said(it.served, new(model="stale"))
    assert lookups(it).answered == 0


async def test_a_removal_is_heeded(it: One, upstream: Scripted) -> None:
    await said(it.served, chat())
    assert b"detail=semantic" in await said(it.served, chat(ALIKE))
    await it.served.gateway.removal.purge(Wanted(tags=("a",)), dry_run=False)
    assert b"fwd=miss" in await said(it.served, chat(ALIKE + " now"))


async def test_what_a_client_called_wrong_is_not_served_again(it: One, upstream: Scripted) -> None:
    await said(it.served, chat())
    answered = await said(it.served, chat(ALIKE, headers=b"X-Request-Id: this\r\n"))
    assert b"detail=semantic" in answered
    await said(it.served, post(path=b"/v1/feedback", raw=b'{"request_id":"this","verdict":"wrong"}'))
    assert b"fwd=miss" in await said(it.served, chat(ALIKE))


async def test_a_reload_is_heeded(it: One, upstream: Scripted) -> None:
    await said(it.served, chat())
    assert b"detail=semantic" in await said(it.served, chat(ALIKE))
    gateway = it.served.gateway
    gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "both"), "policy.yaml", gateway.config))
    assert b"fwd=miss" in await said(it.served, chat(ALIKE))


async def test_keys_that_are_at_hand(tmp_path: Path, upstream: Scripted) -> None:
    auth = {"mode": "keys", "keys": {"acme": [digest_of("secret")], "other": [digest_of("another")]}}
    async with one(tmp_path, upstream, POLICY, auth=auth, main={"api_key_env": "KEY"}) as it:
        secret, other = b"Authorization: Bearer secret\r\n", b"Authorization: Bearer another\r\n"
        await said(it.served, chat(headers=secret))
        assert b"detail=semantic" in await said(it.served, chat(ALIKE, headers=secret))
        assert lookups(it).answered == 1
        assert it.logged()[-1]["tenant"] == "acme"
        assert b"fwd=miss" in await said(it.served, chat(ALIKE, headers=other))
        assert b" 401 " in (await said(it.served, chat(ALIKE))).partition(b"\r\n")[0]
        it.served.gateway.access.keyring._configured.clear()
        assert b" 401 " in (await said(it.served, chat(ALIKE, headers=secret))).partition(b"\r\n")[0]
        assert lookups(it).answered == 1


async def test_who_watches_is_told(it: One, upstream: Scripted) -> None:
    await said(it.served, chat())
    with it.served.gateway.dashboard.decisions.watch() as watch:
        await said(it.served, chat(ALIKE))
        told = await watch.take(TIMEOUT_S)
    assert lookups(it).answered == 1
    assert [(each["verdict"], each["backend"], each["judged"]["threshold"]) for each in told] == [
        ("semantic", "main", 0.5)
    ]


async def test_beyond_what_may_be_in_flight_the_stages_shed(tmp_path: Path, upstream: Scripted) -> None:
    async with one(tmp_path, upstream, POLICY, server={"max_inflight": 1}) as it:
        await said(it.served, chat())
        upstream.hold.clear()
        upstream.seen.clear()
        first = asyncio.create_task(said(it.served, chat(model="through")))
        await until(lambda: upstream.seen)
        assert b" 503 " in (await said(it.served, chat(ALIKE))).partition(b"\r\n")[0]
        upstream.hold.set()
        await first
        assert b"detail=semantic" in await said(it.served, chat(ALIKE))
        answered = lookups(it).answered
        it.served.gateway.data_port._service.beside = lambda: 1  # at another port
        await said(it.served, chat(ALIKE))
        assert lookups(it).answered == answered == 1


@pytest.mark.parametrize(
    "more",
    [{"server": {"compress": True}}, {"server": {"cors": {"origins": ["*"]}}}],
    ids=["compression", "cors"],
)
async def test_what_needs_more_than_lookups_know(tmp_path: Path, upstream: Scripted, more: dict[str, Any]) -> None:
    async with one(tmp_path, upstream, POLICY, **more) as it:
        await said(it.served, chat())
        assert b"detail=semantic" in await said(it.served, chat(ALIKE))
        assert lookups(it).answered == 0


async def test_a_client_that_does_not_read_is_waited_for(it: One, upstream: Scripted) -> None:
    """Its requests stay where they are, until it has taken what it asked for."""
    upstream.usual = answer(ANSWER.replace(b'"hi"', b'"%b"' % (b"x" * 60_000)))
    await said(it.served, chat())
    async with connected(it.served.url) as wire:
        await wire.send(chat(ALIKE) * 400)
        await until(lambda: lookups(it).answered)
        answered = lookups(it).answered
        assert answered < 400
        for _ in range(400):
            assert "nearhit; hit; detail=semantic" in (await wire.message()).all("Cache-Status")
