"""Calls that are made in one step, and nobody can tell: upstream and clients are sent the same bytes as by the pool,
and the books, metrics and the access log have the same of it. What is otherwise goes on in the pool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.direct_call import DirectCall
from gateway.composition import dispatching
from tests.data_port.test_straight import (
    ANSWERS,
    HI,
    HOLD,
    REQUESTS,
    One,
    Scripted,
    answer,
    differences,
    idle,
    one,
    post,
    said,
    short,
    upstream_that_says,
)
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

upstream = upstream_that_says(answer())


@pytest.fixture
async def it(tmp_path: Path, upstream: Scripted) -> AsyncIterator[One]:
    async with one(tmp_path, upstream) as it:
        it.straight._on = False
        yield it


@pytest.fixture
async def pair(tmp_path: Path, upstream: Scripted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[One, One]]:
    """The same gateway twice: with calls in one step, and without. Neither has the straight path."""
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(one(tmp_path / "on", upstream))
        monkeypatch.setattr(dispatching, "direct_to", lambda *_, **__: None)
        off = await stack.enter_async_context(one(tmp_path / "off", upstream))
        on.straight._on = off.straight._on = False
        yield on, off


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was sent in one step."""
    sent, asked = list[bytes](), DirectCall._asked

    async def noted(self: DirectCall, *given: Any) -> Any:
        sent.append(given[3])
        return await asked(self, *given)

    monkeypatch.setattr(DirectCall, "_asked", noted)
    return sent


async def test_requests_are_sent_and_answered_alike(
    pair: tuple[One, One], upstream: Scripted, made: list[bytes]
) -> None:
    cases = {name: (request, None) for name, (request, _) in REQUESTS.items()}
    different, _ = await differences(pair, upstream, cases)
    assert not different, json.dumps(different, indent=1)
    assert len(made) > len(REQUESTS)  # at least what leaves a connection idle before each


async def test_answers_are_given_alike(pair: tuple[One, One], upstream: Scripted, made: list[bytes]) -> None:
    different, _ = await differences(pair, upstream, {name: (HI, script) for name, (script, _) in ANSWERS.items()})
    assert not different, json.dumps(different, indent=1)
    assert made


async def test_a_client_that_leaves_cancels_upstream(it: One, upstream: Scripted, made: list[bytes]) -> None:
    for more in ([], [answer()[:-9]]):  # before the answer, and within
        await idle(it)
        upstream.seen.clear()
        upstream.left, count = 0, len(made)
        upstream.script.append([*more, HOLD])
        async with connected(it.served.url) as wire:
            await wire.send(HI)
            await until(lambda: upstream.seen)
            assert it.lane.load == 1
        await until(lambda: it.served.gateway.data_port.inflight == 0)
        await until(lambda: upstream.left)
        assert len(made) == count + 1
        assert it.books()["load"] == (0, 0, 0, 0)
        assert it.logged()[-1]["status"] == 499


async def test_an_answer_that_takes_too_long(tmp_path: Path, upstream: Scripted, made: list[bytes]) -> None:
    async with one(tmp_path, upstream, main=short("first_byte")) as it:
        it.straight._on = False
        while not it.connections._idle:  # who has no answer in so short a time leaves none
            await idle(it)
        upstream.hold.clear()
        count = len(made)
        assert b" 504 " in (await said(it.served, HI)).partition(b"\r\n")[0]
        upstream.hold.set()
        assert len(made) == count + 1
        assert it.books()["load"] == (0, 0, 0, 0)


async def test_what_there_is_to_wait_for_is_the_pools(tmp_path: Path, upstream: Scripted, made: list[bytes]) -> None:
    async with one(tmp_path, upstream, main={"max_concurrency": 1}) as it:
        it.straight._on = False
        await said(it.served, HI)
        assert not made  # no connection lay idle
        upstream.hold.clear()
        async with connected(it.served.url) as first, connected(it.served.url) as second:
            await first.send(HI)
            await until(lambda: len(made) == 1)
            await second.send(post(model="n"))
            await until(lambda: it.lane.load == 2)
            upstream.hold.set()
            assert (await first.message()).status == (await second.message()).status == 200
        assert len(made) == 1  # there was no place at the gate
