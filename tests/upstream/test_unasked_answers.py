"""An answer that nobody asked for reaches nobody, over the gateway's own HTTP client and over aiohttp's.

The servers run in threads, so that they can send while the event loop stands still.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import trustme

from gateway.upstream.http1.errors import ExchangeFailed
from gateway.upstream.http_client import HttpClient, UpstreamRequest
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.http_clients import CLIENTS, asked, client_at, deadline, get, rest_of
from tests.fixtures.wire import connected

TIMEOUT_S = 60.0  # only ends a failed test
PLANTED = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nplanted"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has come over connection number `connection`, as its first, second, ..."""

    connection: int
    turn: int
    target: str
    body: bytes


Script = Callable[[socket.socket, Arrival], None]


@dataclass
class ThreadServer:
    """A server whose connections are threads. `script` answers each request with bytes."""

    url: str = ""
    arrivals: list[Arrival] = field(default_factory=list)
    script: Script | None = None
    banner: bytes = b""  # sent as soon as a connection is there
    tls: ssl.SSLContext | None = None
    _sockets: list[socket.socket] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                accepted.settimeout(TIMEOUT_S)
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        number = next(self._numbers)
        with suppress(OSError):
            peer = accepted if self.tls is None else self.tls.wrap_socket(accepted, server_side=True)
            self._sockets.append(peer)
            peer.sendall(self.banner)
            received, turn = b"", 0
            while True:
                while b"\r\n\r\n" not in received:
                    if not (more := peer.recv(65536)):
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                while length is not None and len(received) < int(length[1]):
                    received += peer.recv(65536)
                size = 0 if length is None else int(length[1])
                body, received = received[:size], received[size:]
                arrival = Arrival(number, turn, head.split(b" ")[1].decode(), body)
                turn += 1
                self.arrivals.append(arrival)
                assert self.script is not None
                self.script(peer, arrival)

    def close(self) -> None:
        for peer in self._sockets:
            peer.close()


@contextmanager
def thread_server(*, tls: ssl.SSLContext | None = None, banner: bytes = b"") -> Iterator[ThreadServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        scheme = "http" if tls is None else "https"
        server = ThreadServer(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/v1", tls=tls, banner=banner)
        threading.Thread(target=server.accept, args=(listening,), daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.close()


@pytest.fixture(params=CLIENTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(target: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(target)}\r\n\r\n{target}".encode()


async def own_answers(client: HttpClient, server: ThreadServer, rounds: int = 3) -> None:
    """Ask for different targets, and require each answer to be the target's own."""
    server.script = lambda peer, arrival: peer.sendall(said(arrival.target))
    for turn in range(rounds):
        _, body = await asked(client, get(f"/after/{turn}"))
        assert body == f"/after/{turn}".encode()


BODY = b"first answer"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWERS: dict[str, tuple[str, bytes, bytes]] = {  # the method, the first part, and the part that ends it
    "whole": ("GET", b"", LENGTH + BODY),
    "in two parts": ("GET", LENGTH + BODY[:5], BODY[5:]),
    "head alone at first": ("GET", LENGTH, BODY),
    "chunks": ("GET", CHUNKED + b"c\r\n" + BODY + b"\r\n", b"0\r\n\r\n"),
    "whole chunks": ("GET", b"", CHUNKED + b"c\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "trailers": ("GET", CHUNKED + b"c\r\n" + BODY + b"\r\n0\r\nX-T: 1\r\n", b"\r\n"),
    "no body": ("GET", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "204": ("GET", b"", b"HTTP/1.1 204 No Content\r\n\r\n"),
    "304": ("GET", b"", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"),
    "HEAD": ("HEAD", b"", LENGTH),
    "HEAD without a length": ("HEAD", b"", b"HTTP/1.1 200 OK\r\n\r\n"),
    "after 103": ("GET", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", LENGTH + BODY),
    "an error": ("GET", b"", b"HTTP/1.1 503 Busy\r\nContent-Length: 12\r\n\r\n" + BODY),
}
EXCESS = {
    "an answer": PLANTED,
    "two answers": PLANTED * 2,
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nplanted\r\n0\r\n\r\n",
    "an early hint": b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "a part of a head": PLANTED[:25],
    "one byte": b"H",
    "a part of a body": PLANTED[:-3],
    "the end of chunks": b"0\r\n\r\n",
    "noise": b"\x00\xff" * 30,
}


@pytest.mark.parametrize("excess", EXCESS.values(), ids=EXCESS)
@pytest.mark.parametrize(("method", "first", "last"), ANSWERS.values(), ids=ANSWERS)
async def test_bytes_behind_an_answer_end_its_connection(
    kind: str, method: str, first: bytes, last: bytes, excess: bytes
) -> None:
    """The answer itself is passed on. aiohttp's parser drops one that came in one piece with what is no HTTP."""
    begun = threading.Event()

    def script(peer: socket.socket, _: Arrival) -> None:
        if first:
            peer.sendall(first)
            begun.wait(TIMEOUT_S)
        peer.sendall(last + excess)

    with thread_server() as server:
        server.script = script
        async with client_at(kind, server.url, max_connections=1) as client:
            sending = asyncio.ensure_future(client.send(UpstreamRequest(method, "/", ()), deadline()))
            if b"103" not in first and b"\r\n\r\n" in first:
                await asyncio.wait([sending])
            begun.set()
            try:
                answer = await sending
                body = await rest_of(answer)
                answer.close()
                assert body == (BODY if BODY in first + last or first.startswith(LENGTH) else b"")
            except ExchangeFailed:
                assert kind == "aiohttp" and LENGTH + BODY[:5] != first
            await own_answers(client, server)
        assert [arrival.connection for arrival in server.arrivals] == [0, 1, 1, 1]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("excess", EXCESS.values(), ids=EXCESS)
async def test_bytes_to_an_idle_connection_end_it(kind: str, excess: bytes, secure: bool) -> None:
    """Also those that the event loop has not read yet when the next request comes."""
    authority = trustme.CA()
    served_by, trusted_by = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(served_by)
    authority.configure_trust(trusted_by)
    options = {"tls": trusted_by} if secure else {}
    with thread_server(tls=served_by if secure else None) as server:
        plant, planted = threading.Event(), threading.Event()

        def script(peer: socket.socket, arrival: Arrival) -> None:
            peer.sendall(said(arrival.target))
            plant.wait(TIMEOUT_S)
            peer.sendall(excess)
            planted.set()

        server.script = script
        async with client_at(kind, server.url, max_connections=1, **options) as client:
            assert (await asked(client, get("/first")))[1] == b"/first"
            plant.set()
            assert planted.wait(TIMEOUT_S)  # the loop stands still
            await own_answers(client, server)
        assert [arrival.connection for arrival in server.arrivals] == [0, 1, 1, 1]


async def test_a_request_with_a_body_is_not_answered_by_what_came_before_it(kind: str) -> None:
    with thread_server() as server:
        server.script = lambda peer, arrival: peer.sendall(said(arrival.target))
        async with client_at(kind, server.url, max_connections=1) as client:
            await asked(client, get("/first"))
            for turn in range(20):
                server._sockets[-1].sendall(PLANTED)
                request = UpstreamRequest("POST", f"/{turn}", (), b"body")
                assert (await asked(client, request))[1] == f"/{turn}".encode()


async def test_an_end_of_line_behind_a_body_is_no_answer(kind: str) -> None:
    with thread_server() as server:
        server.script = lambda peer, arrival: peer.sendall(said(arrival.target) + b"\r\n")
        async with client_at(kind, server.url, max_connections=1) as client:
            for turn in range(3):
                assert (await asked(client, get(f"/{turn}")))[1] == f"/{turn}".encode()
        assert {arrival.connection for arrival in server.arrivals} == {0}


async def test_a_server_that_speaks_first_is_no_crash(kind: str) -> None:
    with thread_server(banner=b"220 mail.example ESMTP\r\n") as server:
        server.script = lambda peer, arrival: peer.sendall(said(arrival.target))
        async with client_at(kind, server.url) as client:
            for _ in range(5):
                with pytest.raises(ExchangeFailed):
                    await asked(client, get())


def completion(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def stream(text: str) -> bytes:
    def event(delta: dict[str, str], reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}).encode()

    events = event({"role": "assistant", "content": text}, None) + b"\n\n" + event({}, "stop") + b"\n\ndata: [DONE]\n\n"
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n" % len(events) + events + b"\r\n0\r\n\r\n"
    )  # fmt: skip


@pytest.mark.parametrize("secret", [completion("SECRET"), stream("SECRET")], ids=["whole", "stream"])
async def test_no_tenant_gets_an_answer_that_was_planted(tmp_path: Path, kind: str, secret: bytes) -> None:
    """Neither from the backend nor, later, from its own cache."""

    def script(peer: socket.socket, arrival: Arrival) -> None:
        body = json.loads(arrival.body)
        text = body["messages"][-1]["content"]
        answer = (stream if body.get("stream") else completion)(f"answer to {text}")
        half = len(answer) // 2
        how = arrival.turn % 4
        if how == 0:
            peer.sendall(answer + secret)
        elif how == 1:
            peer.sendall(answer[:half])
            peer.sendall(answer[half:] + secret)
        else:
            peer.sendall(answer)
            peer.sendall(secret[: len(secret) // how])

    with thread_server() as server:
        server.script = script
        backend = {"adapter": "openai", "url": server.url, "retries": {"attempts": 4, "budget": "100%"}}
        config = config_of(tmp_path, {"main": backend | ({"client": kind} if kind == "aiohttp" else {})})
        async with gateway_of(config, BOTH_CACHES) as served:

            async def ask(tenant: int) -> None:
                body = {"model": "m", "messages": [{"role": "user", "content": f"question {tenant}"}]}
                body |= {"stream": True} if tenant % 3 == 0 else {}
                answer = await served.post("/v1/chat/completions", body, {"authorization": f"Bearer key-{tenant}"})
                assert answer.status == 200
                assert f"answer to question {tenant}".encode() in answer.body
                assert b"SECRET" not in answer.body

            for _ in range(2):
                await asyncio.gather(*map(ask, range(60)))


async def test_a_refused_web_socket_leaves_no_answer_for_the_next(tmp_path: Path, kind: str) -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"

    def script(peer: socket.socket, _: Arrival) -> None:
        peer.sendall(refusal + b"HTTP/1.1 418 Teapot\r\nContent-Length: 7\r\n\r\nplanted")

    with thread_server() as server:
        server.script = script
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": server.url, "client": kind}})
        async with gateway_of(config) as served:
            for _ in range(4):
                assert await refused(served) == (401, b"no")


async def refused(served: Served) -> tuple[int, bytes]:
    async with connected(served.url) as wire:
        await wire.send(
            b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        message = await wire.message()
        return message.status, message.body
