"""Commands and replies on one connection, without a network: what came is cut anywhere, who waits may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis._parsers import _AsyncRESP2Parser
from redis._parsers.encoders import Encoder
from redis.exceptions import (
    BusyLoadingError,
    InvalidResponse,
    MovedError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.adapters.redis import connection
from gateway.adapters.redis.connection import PipelinedConnection
from gateway.errors import StoreUnavailable

LONG_S = 60.0


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return True  # nothing to be closed at a test's end


class Opened:
    def __init__(self, read_timeout_s: float = LONG_S) -> None:
        self.gone: list[PipelinedConnection] = []
        self.loop = asyncio.get_running_loop()
        self.exchange = PipelinedConnection(self.loop, read_timeout_s, _read_only, self.gone.append)
        self.wire = Wire()

    def begin(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        self.exchange.attach(asyncio.StreamWriter(self.wire, protocol, reader, self.loop))

    def send(self, *words: str | bytes | int | float, within_s: float = LONG_S) -> asyncio.Future[Any]:
        return self.exchange.send(words, within_s)

    def come(self, data: bytes) -> None:
        self.exchange.data_received(data)


def _read_only(error: Exception) -> bool:
    return isinstance(error, ReadOnlyError)


async def opened(read_timeout_s: float = LONG_S) -> Opened:
    it = Opened(read_timeout_s)
    it.begin()
    return it


def commands_in(data: bytes) -> list[list[bytes]]:
    reader = hiredis.Reader()
    reader.feed(data)
    found = []
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


Reply = Any
line = st.text(st.characters(codec="ascii", exclude_characters="\r\n"), max_size=20)
simple = st.one_of(
    st.binary(max_size=60).map(lambda data: b"$%d\r\n%s\r\n" % (len(data), data)),
    st.just(b"$-1\r\n"),
    st.just(b"*-1\r\n"),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: b":%d\r\n" % number),
    line.map(lambda said: f"+{said}\r\n".encode()),
)
error = st.one_of(
    st.tuples(st.sampled_from(["ERR", "WRONGTYPE", "OOM", "NOSCRIPT", "NOPERM"]), line).map(
        lambda said: f"-{said[0]} {said[1]}\r\n".encode()
    ),
    st.just(b"-MOVED 1234 10.0.0.1:6379\r\n"),
)
nested = st.recursive(
    simple, lambda inner: st.lists(inner, max_size=4).map(lambda items: b"*%d\r\n%s" % (len(items), b"".join(items)))
)
replies = st.lists(st.one_of(nested, error), min_size=1, max_size=12)


async def as_redis_py_reads(data: bytes, count: int) -> list[Reply]:
    """What redis-py's own parser in Python makes of it."""

    told = SimpleNamespace(encoder=Encoder("utf-8", "strict", decode_responses=False), _reader=asyncio.StreamReader())
    told._reader.feed_data(data)
    parser = _AsyncRESP2Parser(socket_read_size=65_536)
    parser.on_connect(told)
    found: list[Reply] = []
    for _ in range(count):
        try:
            found.append(await parser.read_response())
        except RedisError as refused:
            found.append(refused)
    return found


def same(mine: Reply, theirs: Reply) -> bool:
    if isinstance(theirs, Exception):
        return type(mine) is type(theirs) and str(mine) == str(theirs)
    return bool(mine == theirs)


@given(replies, st.data())
def test_replies_cut_anywhere_are_what_redis_py_reads(given_replies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(given_replies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))

    async def check() -> None:
        it = await opened()
        asked = [it.send("GET", number) for number in range(len(given_replies))]
        for start, end in pairwise([0, *cuts, len(stream)]):
            if start < end:
                it.come(stream[start:end])
        mine = await asyncio.gather(*asked, return_exceptions=True)
        theirs = await as_redis_py_reads(stream, len(given_replies))
        assert all(map(same, mine, theirs)), (mine, theirs)
        assert it.exchange.pending_count == 0

    asyncio.run(check())


@given(st.lists(st.sampled_from(["leaves before", "leaves between", "waits"]), min_size=1, max_size=20), st.integers(0))
def test_who_leaves_shifts_nobody_elses_reply(plans: list[str], cut: int) -> None:
    async def check() -> None:
        it = await opened()
        asked = [it.send("GET", number) for number in range(len(plans))]
        stream = b"".join(b":%d\r\n" % number for number in range(len(plans)))
        for future, plan in zip(asked, plans, strict=True):
            if plan == "leaves before":
                future.cancel()
        it.come(stream[: cut % len(stream)])
        for future, plan in zip(asked, plans, strict=True):
            if plan == "leaves between":
                future.cancel()
        it.come(stream[cut % len(stream) :])
        waited = [number for number, plan in enumerate(plans) if plan == "waits"]
        assert await asyncio.gather(*(asked[number] for number in waited)) == waited

    asyncio.run(check())


async def test_commands_of_one_turn_are_one_write() -> None:
    it = await opened()
    for number in range(50):
        it.send("GET", f"k{number}")
    await asyncio.sleep(0)
    (written,) = it.wire.written
    assert commands_in(written) == [[b"GET", b"k%d" % number] for number in range(50)]
    it.send("GET", "later")
    await asyncio.sleep(0)
    assert len(it.wire.written) == 2
    it.come(b":1\r\n" * 51)


async def test_what_is_asked_before_there_is_a_connection_goes_out_with_it() -> None:
    it = Opened()
    first = it.send("GET", "a")
    await asyncio.sleep(0)
    assert it.wire.written == []
    it.begin()
    it.come(b"$1\r\nx\r\n")
    assert await first == b"x"
    assert commands_in(it.wire.written[0]) == [[b"GET", b"a"]]


async def test_a_late_reply_is_dropped_and_the_next_one_is_the_next_ones() -> None:
    it = await opened()
    slow = it.send("GET", "slow", within_s=0.01)
    it.come(b"$4\r\npa")  # the server lives
    patient = it.send("GET", "patient")
    with pytest.raises(RedisTimeoutError, match="no reply in time"):
        await slow
    it.come(b"rt\r\n$3\r\nown\r\n")
    assert await patient == b"own"
    assert not it.gone


async def test_a_connection_on_which_nothing_comes_is_given_up() -> None:
    it = await opened(read_timeout_s=0.01)
    slow, patient = it.send("GET", "slow", within_s=0.01), it.send("GET", "patient")
    with pytest.raises(RedisTimeoutError):
        await slow
    with pytest.raises(RedisConnectionError):
        await patient
    assert it.gone == [it.exchange]
    assert it.wire.aborted


async def test_who_asks_all_the_time_with_a_short_limit_ends_nothing_for_who_waits_longer() -> None:
    it = await opened()
    patient = it.send("GET", "patient")
    for _ in range(3):
        with pytest.raises(RedisTimeoutError):
            await it.send("GET", "version", within_s=0.001)
    it.come(b":1\r\n" * 4)
    assert await patient == 1
    assert not it.gone


async def test_short_limits_give_a_connection_up_once_it_was_silent_for_long() -> None:
    it = await opened(read_timeout_s=0.02)
    for _ in range(1_000):
        if it.gone:
            break
        with pytest.raises(RedisTimeoutError):
            await it.send("GET", "version", within_s=0.001)
    assert it.gone == [it.exchange]


async def test_each_waits_for_its_own_time_in_whatever_order_they_asked() -> None:
    it = await opened()
    long, short = it.send("GET", "long", within_s=LONG_S), it.send("GET", "short", within_s=0.01)
    it.come(b"$5\r\nh")
    done, _ = await asyncio.wait([long, short], return_when=asyncio.FIRST_COMPLETED)
    assert done == {short}
    it.come(b"ello\r\n:2\r\n")
    assert await long == b"hello"
    with pytest.raises(RedisTimeoutError):
        await short


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"-NOAUTH Authentication required.\r\n", RedisConnectionError),
        (b"-LOADING Redis is loading the dataset in memory\r\n", BusyLoadingError),
        (b"-READONLY You can't write against a read only replica.\r\n", ReadOnlyError),
    ],
)
async def test_a_server_that_cannot_be_asked_is_left(reply: bytes, kind: type[Exception]) -> None:
    it = await opened()
    first, second = it.send("SET", "a", "b"), it.send("GET", "a")
    it.come(reply + b":1\r\n")
    with pytest.raises(kind):
        await first
    with pytest.raises(RedisConnectionError):
        await second
    assert it.gone


async def test_a_command_that_is_refused_concerns_itself_alone() -> None:
    it = await opened()
    moved, fine = it.send("GET", "elsewhere"), it.send("GET", "here")
    it.come(b"-MOVED 7 10.0.0.1:6379\r\n$2\r\nok\r\n")
    with pytest.raises(MovedError):
        await moved
    assert await fine == b"ok"
    assert not it.gone


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n", b"*x\r\n"])
async def test_what_is_no_reply_ends_the_connection(said: bytes) -> None:
    it = await opened()
    asked = it.send("GET", "a")
    it.come(said)
    with pytest.raises(InvalidResponse):
        await asked
    assert it.wire.aborted


async def test_a_reply_to_nothing_ends_the_connection() -> None:
    """Whose would the next one be?"""
    it = await opened()
    asked = it.send("GET", "a")
    it.come(b":1\r\n:2\r\n")
    assert await asked == 1
    assert it.gone


async def test_a_reply_without_end_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REPLY_BYTES", 1_000)
    it = await opened()
    asked = it.send("GET", "a")
    it.come(b"$2000\r\n" + b"x" * 1_500)
    with pytest.raises(InvalidResponse, match="more than 1000 bytes"):
        await asked


@pytest.mark.parametrize("bound", ["MAX_PENDING_COMMANDS", "MAX_PENDING_BYTES"])
async def test_what_waits_has_a_bound(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(connection, bound, 3 if bound == "MAX_PENDING_COMMANDS" else 100)
    it = await opened()
    kept: Sequence[asyncio.Future[Any]] = [it.send("GET", "x" * 10) for _ in range(3)]
    with pytest.raises(StoreUnavailable, match=r"3 commands .* already wait"):
        it.send("GET", "x" * 10)
    it.come(b":1\r\n" * 3)
    assert await asyncio.gather(*kept) == [1, 1, 1]
    await_next = it.send("GET", "x" * 10)
    it.come(b":2\r\n")
    assert await await_next == 2


async def test_when_the_connection_is_lost_everybody_is_told_once() -> None:
    it = await opened()
    asked = [it.send("GET", number) for number in range(3)]
    it.come(b":0\r\n$5\r\nhal")
    it.exchange.connection_lost(None)
    it.exchange.connection_lost(ConnectionResetError())
    assert await asked[0] == 0
    for future in asked[1:]:
        with pytest.raises(RedisConnectionError, match="closed the connection"):
            await future
    assert it.gone == [it.exchange]
    assert it.exchange.closed.done()
