"""What an HTTP backend's client keeps to, the gateway's own and aiohttp's, before servers that answer in bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trustme

from gateway.upstream.http1.errors import ConnectFailed, ConnectTimedOut, Disconnected, ExchangeFailed, TimedOut
from gateway.upstream.http_client import HttpClient, UpstreamRequest
from tests.fixtures.http_clients import CLIENTS, asked, client_at, deadline, get, rest_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, WireUpstream, wire_upstream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=CLIENTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def server() -> AsyncIterator[WireUpstream]:
    async with wire_upstream() as server:
        yield server


@pytest.fixture
async def client(kind: str, server: WireUpstream) -> AsyncIterator[HttpClient]:
    async with client_at(kind, server.url) as client:
        yield client


def connections(server: WireUpstream) -> int:
    """That are open, as the server sees it."""
    return len(server._open)


BODIES: dict[str, tuple[bytes, bytes]] = {
    "a length": (b"Content-Length: 5\r\n\r\nhello", b"hello"),
    "no body": (b"Content-Length: 0\r\n\r\n", b""),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
    "no chunks": (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b""),
    "capitals": (b"TRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "chunk extensions": (b'Transfer-Encoding: chunked\r\n\r\n5;a=b;c="d"\r\nhello\r\n0;last\r\n\r\n', b"hello"),
    "trailers": (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n", b"hello"),
    "spaces behind a size": (b"Transfer-Encoding: chunked\r\n\r\n5  \r\nhello\r\n0\r\n\r\n", b"hello"),
    "bare LFs in the head": (b"X: 1\nContent-Length: 5\r\n\r\nhello", b"hello"),
}


@pytest.mark.parametrize(("answer", "body"), BODIES.values(), ids=BODIES)
async def test_every_framing_is_read_and_the_connection_kept(
    client: HttpClient, server: WireUpstream, answer: bytes, body: bytes
) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n" + answer)
    for _ in range(2):
        got, said = await asked(client, get())
        assert (got.status, said) == (200, body)
        assert connections(server) == 1


@pytest.mark.parametrize("end", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
async def test_a_body_without_a_length_ends_with_its_connection(
    client: HttpClient, server: WireUpstream, end: bytes
) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(end + b"hello")
        wire.writer.close()

    server.script = script
    for _ in range(2):
        assert (await asked(client, get()))[1] == b"hello"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_without_a_body_have_none_whatever_they_say(
    client: HttpClient, server: WireUpstream, status: bytes
) -> None:
    length = b"Content-Length: 9\r\n" if status.startswith(b"304") else b""
    server.answer(b"HTTP/1.1 " + status + b"\r\n" + length + b"ETag: e\r\n\r\n")
    for _ in range(2):
        got, said = await asked(client, get())
        assert (got.status, said) == (int(status[:3]), b"")
    assert connections(server) == 1


@pytest.mark.parametrize("framing", [b"Content-Length: 123456", b"Transfer-Encoding: chunked", b"X: 1"])
async def test_an_answer_to_head_has_no_body(client: HttpClient, server: WireUpstream, framing: bytes) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
    for _ in range(3):
        got, said = await asked(client, UpstreamRequest("HEAD", "/", ()))
        assert (got.status, said) == (200, b"")
    server.answer(OK)
    assert (await asked(client, get()))[1] == b"ok"


@pytest.mark.parametrize("before", [b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: </x>"])
async def test_informational_answers_are_not_the_answer(
    client: HttpClient, server: WireUpstream, before: bytes
) -> None:
    server.answer((b"HTTP/1.1 " + before + b"\r\n\r\n") * 3 + OK)
    for _ in range(2):
        got, said = await asked(client, get())
        assert (got.status, said, [name for name, _ in got.headers]) == (200, b"ok", ["Content-Length"])


async def test_headers_are_handed_on_as_they_came(client: HttpClient, server: WireUpstream) -> None:
    server.answer(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nEmpty:\r\nSpaced:   x y \t\r\nUtf: \xc3\xa9\r\n"
        b"Latin: \xe9\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nContent-Length: 0\r\n\r\n"
    )
    got, _ = await asked(client, get())
    assert [(n, v.encode("utf-8", "surrogateescape")) for n, v in got.headers] == [
        ("Set-Cookie", b"a=1"), ("Set-Cookie", b"b=2"), ("Empty", b""), ("Spaced", b"x y"), ("Utf", b"\xc3\xa9"),
        ("Latin", b"\xe9"), ("Content-Type", b"Text/Event-Stream; charset=utf-8"), ("Content-Length", b"0"),
    ]  # fmt: skip
    assert dict(got.header_map) == {"content-type": "Text/Event-Stream; charset=utf-8", "content-length": "0"}


async def test_a_request_is_sent_as_it_is(client: HttpClient, server: WireUpstream) -> None:
    server.answer(OK)
    target = "/v1/x//y/%2F%zz?a=1&a=2&q={b}&c;d"
    headers = (("X-Twice", "1"), ("X-Twice", "2"), ("Cookie", "a=b; c=d"))
    await asked(client, UpstreamRequest("POST", target, headers, b"body"))
    await asked(client, UpstreamRequest("GET", "/", ()))
    await asked(client, UpstreamRequest("POST", "/", ()))
    one, two, three = server.requests
    assert (one.start, one.body) == (f"POST {target} HTTP/1.1", b"body")
    assert [header for header in one.headers if header[0].lower() in ("x-twice", "cookie")] == list(headers)
    assert (one.all("host"), one.all("content-length")) == ([server.url[7:-3]], ["4"])
    assert (two.all("content-length"), two.all("transfer-encoding")) == ([], [])
    assert three.all("content-length") == ["0"]
    assert {name.lower() for name, _ in two.headers} == {"host"}  # nothing is said in the client's name


@pytest.mark.parametrize("close", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_a_connection_that_the_server_will_close_is_not_used_again(
    client: HttpClient, server: WireUpstream, close: bytes
) -> None:
    seen: list[Wire] = []

    async def script(wire: Wire, _: Message) -> None:
        seen.append(wire)
        await wire.send(close + b"Content-Length: 2\r\n\r\nok")

    server.script = script
    for _ in range(3):
        assert (await asked(client, get()))[1] == b"ok"
    assert len({id(wire) for wire in seen}) == 3


def reset(wire: Wire) -> None:
    """Ends the connection as a server does that is killed, or has forgotten it."""
    wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.writer.transport.abort()


@pytest.mark.parametrize("end", [lambda wire: wire.writer.close(), reset], ids=["closed", "reset"])
async def test_a_kept_connection_that_ends_without_a_word_costs_no_request(
    client: HttpClient, server: WireUpstream, end: Callable[[Wire], None]
) -> None:
    async def script(wire: Wire, _: Message) -> None:
        if len(server.requests) == 2:
            end(wire)
        else:
            await wire.send(OK)

    server.script = script
    await asked(client, get())
    assert (await asked(client, UpstreamRequest("POST", "/", (), b"again")))[1] == b"ok"
    assert [request.body for request in server.requests] == [b"", b"again", b"again"]


async def test_what_may_not_be_repeated_is_not(client: HttpClient, server: WireUpstream) -> None:
    async def script(wire: Wire, _: Message) -> None:
        if len(server.requests) == 2:
            wire.writer.close()
        else:
            await wire.send(OK)

    server.script = script
    await asked(client, get())
    with pytest.raises(ExchangeFailed) as raised:
        await asked(client, UpstreamRequest("POST", "/", (), b"once", repeatable=False))
    assert raised.value.sent
    assert len(server.requests) == 2


async def test_a_fresh_connection_that_ends_without_a_word_is_a_failure(
    client: HttpClient, server: WireUpstream
) -> None:
    async def script(wire: Wire, _: Message) -> None:
        wire.writer.close()

    server.script = script
    with pytest.raises(ExchangeFailed):
        await asked(client, UpstreamRequest("POST", "/", (), b"once"))
    assert len(server.requests) == 1


CUT = {
    "a length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
async def test_an_answer_that_is_cut_anywhere_never_ends_cleanly(
    client: HttpClient, server: WireUpstream, answer: bytes
) -> None:
    cut = 0

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(answer[:cut])
        wire.writer.close()

    server.script = script
    for cut in range(len(answer)):  # noqa: B007 - the script reads it
        with pytest.raises(ExchangeFailed):
            await asked(client, get(repeatable=False))


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
async def test_an_answer_may_come_in_any_two_pieces(client: HttpClient, server: WireUpstream, answer: bytes) -> None:
    cut = 0

    async def script(wire: Wire, _: Message) -> None:
        wire.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await wire.send(answer[:cut])
        await asyncio.sleep(0)
        await wire.send(answer[cut:])

    server.script = script
    for cut in range(1, len(answer)):  # noqa: B007
        assert (await asked(client, get()))[1] == b"hello"
    assert connections(server) == 1


SMUGGLED = {
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "the same length twice": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    "a list of lengths": b"Content-Length: 2, 2\r\n\r\nok",
    "length and chunks": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "a negative length": b"Content-Length: -2\r\n\r\nok",
    "a length beyond any": b"Content-Length: 99999999999999999999\r\n\r\nok",
    "a length in hexadecimal": b"Content-Length: 0x2\r\n\r\nok",
    "a bad chunk size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
    "a chunk longer than it says": b"Transfer-Encoding: chunked\r\n\r\n1\r\nok\r\n0\r\n\r\n",
    "an endless chunk": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nok\r\n0\r\n\r\n",
    "a NUL": b"X: a\x00b\r\nContent-Length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("head", SMUGGLED.values(), ids=SMUGGLED)
async def test_what_could_be_read_in_two_ways_is_refused_and_ends_the_connection(
    client: HttpClient, server: WireUpstream, head: bytes
) -> None:
    server.answer(b"HTTP/1.1 200 OK\r\n" + head)
    with pytest.raises(ExchangeFailed):
        await asked(client, get(repeatable=False))
    await until(lambda: connections(server) == 0)
    server.answer(OK)
    assert (await asked(client, get()))[1] == b"ok"


@pytest.mark.parametrize("junk", [b"hello", b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"\x16\x03\x01"])
async def test_what_is_no_http_is_a_failure(client: HttpClient, server: WireUpstream, junk: bytes) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(junk)
        wire.writer.close()

    server.script = script
    with pytest.raises(ExchangeFailed):
        await asked(client, get())


async def test_a_head_without_end_is_a_failure_and_not_kept_in_memory(client: HttpClient, server: WireUpstream) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            await wire.send(b"a" * 65536)

    server.script = script
    with pytest.raises(ExchangeFailed):
        await asked(client, get())
    await until(lambda: connections(server) == 0)


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["none", "half", "1xx"]
)
async def test_a_head_that_does_not_come_in_time_ends_the_connection(
    client: HttpClient, server: WireUpstream, sent: bytes
) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(sent)
        await wire.rest()

    server.answer(OK)
    await asked(client, get())  # however long it takes to connect
    server.script = script
    with pytest.raises(TimedOut) as raised:
        await client.send(get(), deadline(0.1))
    assert raised.value.sent
    await until(lambda: connections(server) == 0)


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 9\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"X: 1\r\n\r\nhello"],
)
async def test_a_body_that_falls_silent_is_not_waited_for(
    client: HttpClient, server: WireUpstream, framing: bytes
) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\n" + framing)
        await wire.rest()

    server.script = script
    answer = await client.send(get(), deadline())
    assert await answer.read(deadline()) == b"hello"
    with pytest.raises(TimedOut):
        await answer.read(deadline(0.05))
    answer.close()
    answer.close()
    await until(lambda: connections(server) == 0)


async def test_nobody_there_is_a_failure_of_which_nothing_was_sent(kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with client_at(kind, f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
            with pytest.raises(ConnectFailed) as raised:
                await client.send(get(), deadline())
    assert not raised.value.sent


async def test_an_unknown_name_is_a_failure_of_which_nothing_was_sent(kind: str) -> None:
    async with client_at(kind, "http://nobody.invalid") as client:
        with pytest.raises(ConnectFailed) as raised:
            await client.send(get(), deadline())
    assert not raised.value.sent


async def test_a_handshake_that_does_not_end_is_a_connection_that_does_not_come_in_time(
    kind: str, server: WireUpstream
) -> None:
    """The server takes TLS's first words for the head of a request that goes on."""
    async with client_at(kind, server.url.replace("http:", "https:"), connect_s=0.1) as client:
        with pytest.raises(ConnectTimedOut) as raised:
            await client.send(get(), deadline())
        assert not raised.value.sent
        await until(lambda: connections(server) == 0)


async def test_who_is_cancelled_closes_the_connection(client: HttpClient, server: WireUpstream) -> None:
    """Before the head, and within the body; 200 of them leave nothing behind."""
    arrived = asyncio.Semaphore(0)

    async def script(wire: Wire, request: Message) -> None:
        if request.start.startswith("GET /body"):
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhe")
        arrived.release()
        await wire.rest()

    server.script = script

    async def one(i: int) -> None:
        await asked(client, get("/body" if i % 2 else "/head"))

    for start in range(0, 200, 8):
        tasks = [asyncio.create_task(one(i)) for i in range(start, start + 8)]
        for _ in tasks:
            await arrived.acquire()
        for task in tasks:
            task.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))
    await until(lambda: connections(server) == 0)


async def test_no_more_connections_than_allowed_are_opened(kind: str, server: WireUpstream) -> None:
    most = 0

    async def script(wire: Wire, _: Message) -> None:
        nonlocal most
        most = max(most, connections(server))
        await wire.send(OK)

    server.script = script
    async with client_at(kind, server.url, max_connections=2) as client:
        answers = await asyncio.gather(*(asked(client, get()) for _ in range(40)))
        assert [body for _, body in answers] == [b"ok"] * 40
    assert most <= 2


def halting(server: WireUpstream) -> asyncio.Event:
    """The server sends a body of `ab`, but its rest only when the event is set."""
    go_on = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await go_on.wait()
        await wire.send(b"1\r\nb\r\n0\r\n\r\n")

    server.script = script
    return go_on


async def test_a_connection_is_kept_if_the_end_of_its_body_comes_in_time(
    client: HttpClient, server: WireUpstream
) -> None:
    go_on = halting(server)
    answer = await client.send(get(), deadline())
    assert await answer.read(deadline()) == b"a"
    answer.finish(deadline())
    go_on.set()
    await until(lambda: answer.whole)
    assert (await asked(client, get()))[1] == b"ab"
    assert connections(server) == 1


async def test_a_connection_is_closed_if_the_end_of_its_body_does_not_come(
    client: HttpClient, server: WireUpstream
) -> None:
    halting(server)
    answer = await client.send(get(), deadline())
    assert await answer.read(deadline()) == b"a"
    server.answer(OK)
    answer.finish(deadline(0.01))
    assert (await asked(client, get()))[1] == b"ok"
    await until(lambda: not answer.whole and connections(server) == 1)


async def chunks(*given: bytes) -> AsyncIterator[bytes]:
    for chunk in given:
        yield chunk
        await asyncio.sleep(0)


@pytest.mark.parametrize("length", [None, 11])
async def test_a_body_is_sent_as_it_comes(client: HttpClient, server: WireUpstream, length: int | None) -> None:
    server.answer(OK)
    for _ in range(2):
        body = chunks(b"hello", b"", b" ", b"world")
        assert (await asked(client, UpstreamRequest("PUT", "/", (), body, length, repeatable=False)))[1] == b"ok"
    assert [request.body for request in server.requests] == [b"hello world"] * 2
    assert server.requests[0].all("content-length") == ([] if length is None else ["11"])
    assert connections(server) == 1


async def test_a_body_that_breaks_off_breaks_off_the_request(client: HttpClient, server: WireUpstream) -> None:
    """The error is that of the body, and the server does not take half of it for all."""

    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError("the sender is gone")

    server.answer(OK)
    with pytest.raises((ValueError, ExchangeFailed), match=r"the sender is gone|ClientConnectionError"):
        await asked(client, UpstreamRequest("PUT", "/", (), body(), repeatable=False))
    await until(lambda: connections(server) == 0)
    assert server.requests == []


async def test_an_answer_before_the_end_of_the_request_is_delivered_and_the_connection_not_used_again(
    client: HttpClient, server: WireUpstream
) -> None:
    never = asyncio.Event()
    ended = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            yield b"half"
            await never.wait()
        finally:
            ended.set()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await wire.rest()

    server.script, server.streaming = script, True
    got, said = await asked(client, UpstreamRequest("PUT", "/", (), body(), repeatable=False))
    assert (got.status, said) == (413, b"no")
    await until(lambda: connections(server) == 0)
    await until(ended.is_set)


async def test_an_answer_may_come_while_its_request_goes_on(client: HttpClient, server: WireUpstream) -> None:
    """As of a server that puts a stream of one form into another."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def body() -> AsyncIterator[bytes]:
        yield b"one"
        yield await heard.get()

    async def script(wire: Wire, head: Message) -> None:
        chunks = wire.chunks(head)
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n%b\r\n" % await anext(chunks))
        await wire.send(b"3\r\n%b\r\n0\r\n\r\n" % b"".join([chunk async for chunk in chunks]))

    server.script, server.streaming = script, True
    answer = await client.send(UpstreamRequest("PUT", "/", (), body(), repeatable=False), deadline())
    assert await answer.read(deadline()) == b"one"
    heard.put_nowait(b"two")
    assert await rest_of(answer) == b"two"
    answer.close()


async def test_a_server_that_never_reads_is_given_up_in_time(client: HttpClient, server: WireUpstream) -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    async def script(wire: Wire, _: Message) -> None:
        await asyncio.Event().wait()

    server.answer(OK)
    server.streaming = True  # from the first request on: this connection's next one is not read beyond its head
    await asked(client, get())
    server.script = script
    with pytest.raises(TimedOut):
        await client.send(UpstreamRequest("PUT", "/", (), body(), repeatable=False), deadline(0.2))


async def test_a_server_that_does_not_read_holds_back_who_sends(client: HttpClient, server: WireUpstream) -> None:
    sent, reads, chunk = 0, asyncio.Event(), b"x" * 65536

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(512):
            yield chunk
            sent += len(chunk)

    async def script(wire: Wire, head: Message) -> None:
        await reads.wait()
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            tail = tail[-8:] + await wire.reader.read(2**20)
        await wire.send(OK)

    server.script, server.streaming = script, True
    task = asyncio.create_task(asked(client, UpstreamRequest("PUT", "/", (), body(), repeatable=False)))
    before = -1
    while sent != before:  # until nothing more goes
        before = sent
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reads.wait()
    assert sent < 512 * len(chunk)
    reads.set()
    assert (await task)[1] == b"ok"


async def test_who_does_not_read_holds_back_the_server(client: HttpClient, server: WireUpstream) -> None:
    sent, size = 0, 32 * 2**20

    async def script(wire: Wire, _: Message) -> None:
        nonlocal sent
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            wire.writer.write(b"y" * 65536)
            await wire.writer.drain()
            sent += 65536

    server.script = script
    answer = await client.send(get(), deadline())
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < size
    assert len(await rest_of(answer)) == size
    answer.close()
    assert (await asked_again(client, server)) == b"ok"


async def asked_again(client: HttpClient, server: WireUpstream) -> bytes:
    server.answer(OK)
    return (await asked(client, get()))[1]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def over_tls(authority: trustme.CA) -> AsyncIterator[tuple[int, list[str | None]]]:
    """-> (its port, the names that were asked for)"""
    names: list[str | None] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert("localhost").configure_cert(context)
    context.sni_callback = lambda _, name, __: names.append(name)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
                writer.write(b"HTTP/1.1 200 OK\r\nX-Alpn: %b\r\nContent-Length: 2\r\n\r\nok" % protocol.encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], names


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    authority.configure_trust(context)
    return context


async def test_requests_go_over_tls_with_the_servers_name(
    kind: str, over_tls: tuple[int, list[str | None]], authority: trustme.CA
) -> None:
    port, names = over_tls
    async with client_at(kind, f"https://localhost:{port}", tls=trusting(authority)) as client:
        for _ in range(3):
            got, said = await asked(client, get())
            assert (said, dict(got.headers)["X-Alpn"]) == (b"ok", "http/1.1")
    assert names == ["localhost"]  # one handshake


@pytest.mark.parametrize(("host", "strange"), [("localhost", True), ("127.0.0.1", False)], ids=["authority", "name"])
async def test_a_certificate_that_is_not_trusted_is_no_connection(
    kind: str, over_tls: tuple[int, list[str | None]], authority: trustme.CA, host: str, strange: bool
) -> None:
    context = trusting(trustme.CA() if strange else authority)
    async with client_at(kind, f"https://{host}:{over_tls[0]}", tls=context) as client:
        with pytest.raises(ConnectFailed) as raised:
            await client.send(get(), deadline())
    assert not raised.value.sent


async def test_every_address_of_a_host_is_tried(
    kind: str, server: WireUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two, nobody listens at the first."""
    server.answer(OK)
    port = int(server.url[:-3].rpartition(":")[2])
    lookup = asyncio.get_running_loop().getaddrinfo

    async def two(host: str, *given: Any, **named: Any) -> list[Any]:
        if host != "several.test":  # an address, which the loop looks at once more
            return await lookup(host, *given, **named)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
    async with client_at(kind, f"http://several.test:{port}") as client:
        assert (await asked(client, get()))[1] == b"ok"
    assert server.requests[0].all("host") == [f"several.test:{port}"]


async def test_ipv6_addresses_are_asked(kind: str) -> None:
    seen: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        writer.close()

    try:
        server = await asyncio.start_server(connected, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with client_at(kind, f"http://[::1]:{port}") as client:
            assert (await asked(client, get()))[1] == b"ok"
    assert f"Host: [::1]:{port}".encode() in seen[0]


async def test_a_closed_client_leaves_no_connection(kind: str, server: WireUpstream) -> None:
    server.answer(OK)
    async with client_at(kind, server.url) as client:
        await asked(client, get())
        assert connections(server) == 1
    await until(lambda: connections(server) == 0)


async def test_the_own_client_tells_a_silent_end_from_a_broken_answer(server: WireUpstream) -> None:
    """What may be repeated elsewhere is decided by it."""

    async def script(wire: Wire, _: Message) -> None:
        wire.writer.close()

    server.script = script
    async with client_at("own", server.url) as client:
        with pytest.raises(Disconnected):
            await client.send(get(), deadline())


async def test_a_server_without_tls_is_told_in_words() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with client_at("own", f"https://127.0.0.1:{port}") as client:
            with pytest.raises(ConnectFailed, match="it does not speak TLS: is its url http:// rather than https://"):
                await client.send(get(), deadline())
