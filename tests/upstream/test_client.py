"""What the client keeps to beyond the contract of both: its bounds, its pool, its one timer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.http1.client import Client
from gateway.upstream.http1.connection import ClientConnection, DeadlineTimer
from gateway.upstream.http1.errors import (
    ConnectTimedOut,
    Disconnected,
    ExchangeFailed,
    MalformedAnswer,
    PoolExhausted,
    TimedOut,
    UploadFailed,
)
from gateway.upstream.http1.headers import Origin, request_head
from gateway.upstream.http1.parser import MAX_HEADERS, MAX_INFORMATIONAL, MAX_NON_BODY_BYTES
from gateway.upstream.http1.pool import MAX_WAITING
from tests.fixtures.http_clients import PATIENT_S, deadline, rest_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, WireUpstream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CROWD = 200
GET = request_head("GET", "/", "h", [], b"")


async def body_of(
    client: Client, head: bytes = GET, *, is_head_request: bool = False, repeatable: bool = True
) -> bytes:
    return await rest_of(
        await client.send(head, is_head_request=is_head_request, repeatable=repeatable, deadline=deadline())
    )


BEYOND = {
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    "too long a head": b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_NON_BODY_BYTES + b"\r\nContent-Length: 0\r\n\r\n",
    "too long a chunk extension": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"
    + b"a" * MAX_NON_BODY_BYTES,
    "too long trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * MAX_NON_BODY_BYTES,
    "too many informational answers": b"HTTP/1.1 103 X\r\n\r\n" * (MAX_INFORMATIONAL + 1) + OK,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "compressed chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a control character": b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("answer", BEYOND.values(), ids=BEYOND)
async def test_what_exceeds_a_bound_is_malformed(client: Client, server: WireUpstream, answer: bytes) -> None:
    server.answer(answer)
    with pytest.raises(MalformedAnswer):
        await body_of(client)
    await until(lambda: client.pool.open == 0)


async def test_as_many_headers_as_allowed_are_read(client: Client, server: WireUpstream) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * (MAX_HEADERS - 1) + b"Content-Length: 2\r\n\r\nok")
    assert await body_of(client) == b"ok"


@pytest.mark.parametrize("surplus", [b"x", OK, b"HTTP/1.1 200 OK\r\nContent-Le", b"\x00"])
async def test_what_comes_behind_an_answer_is_not_the_next_ones(
    client: Client, server: WireUpstream, surplus: bytes
) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst" + surplus)
    assert await body_of(client) == b"first"
    await until(lambda: client.pool.open == 0)
    server.answer(OK)
    assert await body_of(client) == b"ok"


async def test_what_comes_while_nobody_has_asked_ends_the_connection(client: Client, server: WireUpstream) -> None:
    """As of servers that say 408 before they close."""
    wires: list[Wire] = []

    async def script(wire: Wire, _: Message) -> None:
        wires.append(wire)
        await wire.send(OK)

    server.script = script
    await body_of(client)
    await wires[0].send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    await until(lambda: client.pool.open == 0)
    assert await body_of(client) == b"ok"


async def test_a_connection_that_lies_idle_is_closed(server: WireUpstream) -> None:
    server.answer(OK)
    client = Client(Origin.of(server.url), connect_s=PATIENT_S, max_connections=2, idle_s=0.02)
    await body_of(client)
    await until(lambda: client.pool.open == 0)
    await client.close()


async def test_all_connections_of_a_crowd_are_kept_for_the_next_one(server: WireUpstream) -> None:
    seen, go_on = set(), asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        seen.add(wire)
        await go_on.wait()
        await wire.send(OK)

    server.script = script
    client = Client(Origin.of(server.url), connect_s=PATIENT_S, max_connections=CROWD, idle_s=PATIENT_S)
    for _ in range(2):
        server.requests.clear()
        asked: list[asyncio.Task[bytes]] = []
        while len(asked) < CROWD:  # a listener's backlog is 100
            asked += [asyncio.create_task(body_of(client)) for _ in range(CROWD // 4)]
            await until(lambda asked=asked: len(server.requests) == len(asked))
        go_on.set()
        await asyncio.gather(*asked)
        go_on.clear()
        assert client.pool.open == len(seen) == CROWD
    await client.close()


async def test_connections_that_wait_for_the_end_of_a_body_hold_up_no_call(server: WireUpstream) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await asyncio.Event().wait()

    server.script = script
    client = Client(Origin.of(server.url), connect_s=PATIENT_S, max_connections=1, idle_s=PATIENT_S)
    for _ in range(4):
        answer = await client.send(GET, repeatable=True, deadline=deadline())
        assert await answer.read(deadline()) == b"a"
        answer.finish(deadline())
        assert client.pool.open <= 2, "and there are no more of them than there may be calls"
    await client.close()


async def test_a_server_says_for_how_long_it_keeps_a_connection(client: Client, server: WireUpstream) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok")
    assert await body_of(client) == b"ok"
    await until(lambda: client.pool.open == 0)


async def silent(wire: Wire, _: Message) -> None:
    await wire.rest()


async def test_who_finds_no_connection_waits_no_longer_than_its_own_time(client: Client, server: WireUpstream) -> None:
    server.script = silent
    held = [asyncio.create_task(body_of(client)) for _ in range(2)]
    await until(lambda: len(server.requests) == 2)
    with pytest.raises(ConnectTimedOut) as raised:
        await client.send(GET, repeatable=True, deadline=deadline(0.02))
    assert not raised.value.sent
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    server.answer(OK)
    assert await body_of(client) == b"ok"


async def test_no_more_may_wait_for_a_connection_than_allowed(client: Client, server: WireUpstream) -> None:
    server.script = silent
    held = [asyncio.create_task(body_of(client)) for _ in range(2 + MAX_WAITING)]
    await until(lambda: len(server.requests) == 2)
    with pytest.raises(PoolExhausted):
        await body_of(client)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    await until(lambda: client.pool.open == 0)


async def test_who_leaves_while_a_connection_is_opened_leaves_none_behind(
    client: Client, server: WireUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop does not tell a protocol that was told of its connection that it has closed it."""
    server.answer(OK)
    opened = client.pool.add
    with monkeypatch.context() as patch:
        for _ in range(3):
            asked = asyncio.create_task(body_of(client))

            def cancelling(connection: ClientConnection, asked: asyncio.Task[bytes] = asked) -> None:
                opened(connection)
                asked.cancel()

            patch.setattr(client.pool, "add", cancelling)
            with pytest.raises(asyncio.CancelledError):
                await asked
            await until(lambda: client.pool.open == 0)
    assert await body_of(client) == b"ok"


async def test_who_gives_up_waiting_takes_nobodys_turn(client: Client, server: WireUpstream) -> None:
    """Whoever is cancelled in the moment in which a connection was given to him passes it on."""
    go_on = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await go_on.wait()
        await wire.send(OK)

    server.script = script
    asked = [asyncio.create_task(body_of(client)) for _ in range(12)]
    await until(lambda: len(server.requests) == 2)
    for task in asked[2:7]:
        task.cancel()
    go_on.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [2 <= i < 7 for i in range(12)]
    assert client.pool.open == 2


async def test_a_request_goes_over_a_new_connection_the_second_time(client: Client, server: WireUpstream) -> None:
    """All that were kept may be stale: a server that has started anew knows none of them."""
    server.answer(OK)
    await asyncio.gather(body_of(client), body_of(client))
    assert client.pool.open == 2
    seen: list[Wire] = []

    async def script(wire: Wire, _: Message) -> None:
        seen.append(wire)
        if len(seen) == 1:
            wire.writer.close()
        else:
            await wire.send(OK)

    server.script = script
    assert await body_of(client) == b"ok"
    assert len(seen) == 2


async def test_nothing_is_sent_a_third_time(client: Client, server: WireUpstream) -> None:
    server.answer(OK)
    await body_of(client)

    async def script(wire: Wire, _: Message) -> None:
        wire.writer.close()

    server.script = script
    with pytest.raises(Disconnected):
        await body_of(client)
    assert len(server.requests) == 3


async def test_an_answer_that_had_begun_is_not_asked_for_again(client: Client, server: WireUpstream) -> None:
    server.answer(OK)
    await body_of(client)

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"H")
        wire.writer.close()

    server.script = script
    with pytest.raises(ExchangeFailed):
        await body_of(client)
    assert len(server.requests) == 2


async def chunks(*given: bytes) -> AsyncIterator[bytes]:
    for chunk in given:
        yield chunk


@pytest.mark.parametrize("given", [(b"12",), (b"12", b"3456")], ids=["shorter", "longer"])
async def test_a_body_is_as_long_as_its_head_says_or_the_request_fails(
    client: Client, server: WireUpstream, given: tuple[bytes, ...]
) -> None:
    """What is too much would be read as the next request."""
    server.script = silent
    head = request_head("PUT", "/", "h", [], b"Content-Length: 4\r\n")
    with pytest.raises(UploadFailed):
        await client.send(head, chunks(*given), length=4, repeatable=False, deadline=deadline())
    await until(lambda: client.pool.open == 0)
    assert all(request.body == b"" or len(request.body) <= 4 for request in server.requests)


async def test_an_answer_is_given_up_once(client: Client, server: WireUpstream) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await wire.rest()

    server.script = script
    answer = await client.send(GET, repeatable=True, deadline=deadline())
    answer.close()
    answer.close()
    assert await answer.read(deadline()) == b"half"  # what had come is there
    with pytest.raises(ExchangeFailed):
        await answer.read(deadline())
    await until(lambda: client.pool.open == 0)


async def test_a_closed_client_breaks_off_what_is_under_way(client: Client, server: WireUpstream) -> None:
    server.script = silent
    task = asyncio.create_task(body_of(client))
    await until(lambda: len(server.requests) == 1)
    await client.close()
    with pytest.raises(ExchangeFailed):
        await task


async def test_pieces_are_given_as_they_came(client: Client, server: WireUpstream) -> None:
    heard = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(5):
            await wire.send(b"3\r\n%d--\r\n" % i)
            await heard.wait()
            heard.clear()
        await wire.send(b"0\r\n\r\n")

    server.script = script
    answer = await client.send(GET, repeatable=True, deadline=deadline())
    got = []
    while chunk := await answer.read(deadline()):
        got.append(chunk)
        heard.set()
    assert got == [b"%d--" % i for i in range(5)]


async def test_an_alarm_rings_at_its_last_time_and_once() -> None:
    loop, rung = asyncio.get_running_loop(), 0

    def ring() -> None:
        nonlocal rung
        rung += 1

    alarm, now = DeadlineTimer(loop, ring), loop.time()
    alarm.set(now + 60)
    alarm.set(now + 0.01)
    alarm.set(now + 0.03)
    await until(lambda: rung)
    assert loop.time() >= now + 0.03
    alarm.set(now)
    alarm.cancel()
    await asyncio.sleep(0)
    assert rung == 1


async def test_a_kept_connection_sets_no_timer_a_request(
    client: Client, server: WireUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(OK)
    await body_of(client)
    timers = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda *a, **k: timers.append(a) or call_at(*a, **k))
    for _ in range(20):
        answer = await client.send(
            GET, repeatable=True, deadline=deadline(20 * PATIENT_S)
        )  # beyond when it has lain idle
        await answer.read(deadline(20 * PATIENT_S))
    ours = [timer for timer in timers if getattr(timer[1], "__func__", None) is DeadlineTimer._on_timer]
    assert ours == []


async def test_a_wait_that_ends_is_the_connections_last(client: Client, server: WireUpstream) -> None:
    server.answer(OK)
    await body_of(client)  # however long it takes to connect
    server.script = silent
    with pytest.raises(TimedOut):
        await client.send(GET, repeatable=True, deadline=deadline(0.02))
    await until(lambda: client.pool.open == 0)
