"""A token that requests share: when its source is read, and what the requests get meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.upstream import shared_token
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.shared_token import SharedToken, Token
from tests.fixtures.clock import FakeClock
from tests.fixtures.waiting import until

FAR = float("inf")


class Numbered:
    """A source whose tokens are numbered. It waits for `gate`, and raises `fault` if there is one."""

    def __init__(self) -> None:
        self.reads = 0
        self.life_s: float | None = 3600.0
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> Token:
        self.reads += 1
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return Token(f"t{self.reads}", self.life_s)

    async def close(self) -> None: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def source() -> Numbered:
    return Numbered()


@pytest.fixture
async def token(source: Numbered, clock: FakeClock) -> AsyncIterator[SharedToken]:
    shared = SharedToken(source, clock, "backends.main.api_key_command")
    yield shared
    await shared.close()


async def test_requests_that_wait_share_one_read(token: SharedToken, source: Numbered) -> None:
    source.gate.clear()
    waiting = [asyncio.create_task(token.current(FAR)) for _ in range(20)]
    await until(lambda: source.reads)
    waiting[0].cancel()  # its client leaves, and the others are served
    source.gate.set()
    assert await asyncio.gather(*waiting[1:]) == ["t1"] * 19
    assert source.reads == 1


async def test_a_token_is_read_again_while_it_still_serves(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    assert await token.current(FAR) == "t1"
    clock.advance(3600 - shared_token.MAX_EARLY_S + 1)
    source.gate.clear()
    assert await token.current(FAR) == "t1"
    assert await token.current(FAR) == "t1"
    source.gate.set()
    await until(lambda: source.reads == 2)
    await until(lambda: token._value == "t2")
    assert await token.current(FAR) == "t2"


async def test_a_token_that_has_ended_is_never_sent(token: SharedToken, source: Numbered, clock: FakeClock) -> None:
    assert await token.current(FAR) == "t1"
    clock.advance(3600 - shared_token.LAST_S)
    assert await token.current(FAR) == "t2"


async def test_a_token_without_an_end_is_read_again_after_five_minutes(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    source.life_s = None
    assert await token.current(FAR) == "t1"
    clock.advance(shared_token.REREAD_S - 1)
    assert await token.current(FAR) == "t1"
    assert source.reads == 1
    clock.advance(2)
    await token.current(FAR)
    await until(lambda: token._value == "t2")


async def test_a_source_that_fails_does_not_end_a_token_that_serves(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    assert await token.current(FAR) == "t1"
    source.fault = NoCredentials("away")
    clock.advance(3600 - shared_token.MAX_EARLY_S + 1)
    for _ in range(5):
        assert await token.current(FAR) == "t1"
    await until(lambda: token._fault is not None)
    assert await token.current(FAR) == "t1"
    assert source.reads == 2  # it is left alone for a moment
    source.fault = None
    clock.advance(shared_token.FAULT_S)
    await token.current(FAR)
    await until(lambda: token._value == "t3")


async def test_a_broken_source_is_not_asked_by_each_request(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    source.fault = NoCredentials("away")
    for _ in range(10):
        with pytest.raises(NoCredentials, match="away"):
            await token.current(FAR)
    assert source.reads == 1
    source.fault = None
    clock.advance(shared_token.FAULT_S)
    assert await token.current(FAR) == "t2"


async def test_an_error_of_a_library_is_told_without_its_words(token: SharedToken, source: Numbered) -> None:
    source.fault = ValueError("sk-secret")
    with pytest.raises(NoCredentials, match="ValueError") as raised:
        await token.current(FAR)
    assert "sk-secret" not in str(raised.value)


async def test_a_request_waits_no_longer_than_its_deadline(token: SharedToken, source: Numbered) -> None:
    source.gate.clear()
    with pytest.raises(NoCredentials, match="deadline"):
        await token.current(asyncio.get_running_loop().time())
    source.gate.set()
    assert await token.current(FAR) == "t1"


async def test_a_token_that_has_ended_by_our_clock_serves_for_a_moment(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    source.life_s = -30.0  # the clocks disagree: the endpoint decides
    for _ in range(5):
        assert await token.current(FAR) == "t1"
    clock.advance(shared_token.MIN_LIFE_S)
    assert await token.current(FAR) == "t2"


async def test_a_refused_token_is_replaced_once_for_all_that_were_refused(token: SharedToken, source: Numbered) -> None:
    refused = await token.current(FAR)
    assert await asyncio.gather(*(token.renewed(refused, FAR) for _ in range(8))) == [True] * 8
    assert source.reads == 2


async def test_an_endpoint_that_refuses_every_token_does_not_have_the_source_read_each_time(
    source: Numbered, clock: FakeClock
) -> None:
    class Constant(Numbered):
        async def read(self) -> Token:
            self.reads += 1
            return Token("always")

    constant = Constant()
    token = SharedToken(constant, clock, "")
    refused = await token.current(FAR)
    for _ in range(10):
        assert not await token.renewed(refused, FAR)
    assert constant.reads == 2
    clock.advance(shared_token.FRUITLESS_S)
    assert not await token.renewed(refused, FAR)
    assert constant.reads == 3


async def test_an_endpoint_that_refuses_each_new_token_does_not_have_the_source_read_each_time(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    for _ in range(50):
        await token.renewed(await token.current(FAR), FAR)
    assert source.reads == 1 + shared_token.FREE_ROUNDS
    clock.advance(shared_token.FRUITLESS_S)
    assert await token.renewed(await token.current(FAR), FAR)
    assert source.reads == 2 + shared_token.FREE_ROUNDS
    clock.advance(3 * shared_token.FRUITLESS_S)  # it served: the next refusal is a new matter
    for _ in range(50):
        await token.renewed(await token.current(FAR), FAR)
    assert source.reads == 2 + 2 * shared_token.FREE_ROUNDS


async def test_a_source_that_fails_once_at_a_refusal_is_read_again_after_a_moment(
    token: SharedToken, source: Numbered, clock: FakeClock
) -> None:
    refused = await token.current(FAR)
    source.fault = NoCredentials("away")
    assert not await token.renewed(refused, FAR)
    source.fault = None
    assert not await token.renewed(refused, FAR)
    clock.advance(shared_token.FAULT_S)
    assert await token.renewed(refused, FAR)
    assert source.reads == 3


async def test_those_who_come_while_the_source_is_read_because_of_a_refusal_wait_for_it(
    token: SharedToken, source: Numbered
) -> None:
    refused = await token.current(FAR)
    source.gate.clear()
    waiting = [asyncio.create_task(token.renewed(refused, FAR)) for _ in range(50)]
    await until(lambda: source.reads == 2)
    waiting[0].cancel()
    late = asyncio.create_task(token.renewed(refused, FAR))
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(*waiting[1:], late) == [True] * 50
    assert source.reads == 2
