"""Paths that no dialect knows go through untouched: what the upstream gets is what the client sent, and the reverse."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os

import pytest

from gateway.http_server.request_body import BUFFER_BYTES
from tests.fixtures.gateways import Served
from tests.fixtures.waiting import until
from tests.fixtures.wire import Incomplete, Message, Wire, WireUpstream, connected

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BINARY = bytes(range(256)) * 4
LARGE = bytes(BUFFER_BYTES + 1)


async def exchange(served: Served, request: bytes, *, headless: bool = False) -> Message:
    async with connected(served.url) as wire:
        await wire.send(request)
        return await wire.message(headless=headless)


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: gateway", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
async def test_methods_go_through(before_raw: Served, raw: WireUpstream, method: str) -> None:
    raw.answer(OK)
    answer = await exchange(before_raw, request(method, "/v1/files"))
    assert (answer.status, answer.body) == (200, b"ok")
    assert raw.requests[0].start == f"{method} /v1/files HTTP/1.1"


async def test_an_answer_to_head_keeps_the_length_of_the_body_that_is_not_sent(
    before_raw: Served, raw: WireUpstream
) -> None:
    raw.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 123456\r\nETag: x\r\n\r\n")
    async with connected(before_raw.url) as wire:
        for _ in range(2):  # on one connection: nothing of a body comes between
            await wire.send(request("HEAD", "/v1/files/f"))
            answer = await wire.message(headless=True)
            assert (answer.all("Content-Length"), answer.all("ETag")) == (["123456"], ["x"])
    assert [seen.start for seen in raw.requests] == ["HEAD /v1/files/f HTTP/1.1"] * 2


@pytest.mark.parametrize(
    "target",
    [
        "/v1/files/a%2Fb%20c%C3%A9%25",
        "/v1/x/y/w",
        "/v1/x?a=1&a=2&b=&c&=d",
        "/v1/x?q=a+b%20c%2B&bad=%zz&semi=a;b",
        "/v1/x?json={%22a%22:[1,2]}&u=http://h/p?x=y",
        "/v1/~user/a:b@c!$&'()*,;=",
        "/outside/of/v1",
        "/",
        "/v1",
        "/v1beta/models",
    ],
)
async def test_the_target_goes_through_byte_by_byte(before_raw: Served, raw: WireUpstream, target: str) -> None:
    raw.answer(OK)
    answer = await exchange(before_raw, request("GET", target))
    assert answer.status == 200
    assert raw.requests[0].start == f"GET {target} HTTP/1.1"


async def test_a_path_goes_through_in_its_normal_form(before_raw: Served, raw: WireUpstream) -> None:
    """What is forwarded is what policies have matched (RFC 3986, section 6.2.2)."""
    raw.answer(OK)
    await exchange(before_raw, request("GET", "/v1/x//%79/./z/../w?q=%79/./"))
    assert raw.requests[0].start == "GET /v1/x/y/w?q=%79/./ HTTP/1.1"


async def test_end_to_end_headers_go_through_repeated_ones_too(before_raw: Served, raw: WireUpstream) -> None:
    raw.answer(OK)
    headers = [
        "X-Twice: 1",
        "X-Twice: 2",
        "Cookie: a=b; c=d",
        "Accept: */*",
        "Authorization: Bearer s",
        "User-Agent: u",
    ]
    await exchange(before_raw, request("GET", "/v1/x", *headers))
    seen = raw.requests[0]
    for header in ("X-Twice", "Cookie", "Accept", "Authorization", "User-Agent"):
        assert [f"{header}: {value}" for value in seen.all(header)] == [h for h in headers if h.startswith(header)]
    assert seen.all("Host") == [raw.url.removeprefix("http://").removesuffix("/v1")]
    assert seen.all("Accept-Encoding") == []  # nothing is added that the client did not say
    assert seen.all("Content-Type") == []


async def test_hop_by_hop_headers_stay_on_their_hop(before_raw: Served, raw: WireUpstream) -> None:
    """RFC 9110 section 7.6.1, both ways; what `Connection` names belongs to them, in several lines and any case."""
    raw.answer(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nConnection: X-SECOND\r\n"
        b"x-hop: 1\r\nX-Second: 2\r\nKeep-Alive: timeout=5\r\nX-End: 3\r\n\r\nok"
    )
    named = ["Connection: keep-alive, X-Mine", "Connection: x-other", "X-Mine: 1", "X-OTHER: 2"]
    fixed = ["TE: trailers", "Keep-Alive: 1", "Proxy-Authorization: Basic eA==", "Proxy-Connection: close"]
    answer = await exchange(before_raw, request("GET", "/v1/x", *named, *fixed, "X-End: 3"))
    seen = raw.requests[0]
    for gone in ("X-Mine", "X-Other", "TE", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection"):
        assert seen.all(gone) == [], gone
    for gone in ("X-Hop", "X-Second", "Keep-Alive"):
        assert answer.all(gone) == [], gone
    assert (seen.all("X-End"), answer.all("X-End")) == (["3"], ["3"])


@pytest.mark.parametrize("body", [b"", BINARY, b'{"not": json'])
async def test_a_body_goes_through_as_it_is(before_raw: Served, raw: WireUpstream, body: bytes) -> None:
    raw.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BINARY), BINARY))
    answer = await exchange(before_raw, request("POST", "/v1/audio/speech", "Content-Type: x/y", body=body))
    assert raw.requests[0].body == body
    assert raw.requests[0].all("Content-Length") == [str(len(body))] or not body
    assert answer.body == BINARY
    assert answer.all("Content-Length") == [str(len(BINARY))]


@pytest.mark.parametrize("coding", ["gzip", "zstd", "compress"])
async def test_compressed_bodies_stay_compressed_both_ways(before_raw: Served, raw: WireUpstream, coding: str) -> None:
    """In any coding: the gateway does not read them."""
    packed, head = gzip.compress(BINARY, mtime=0), f"Content-Encoding: {coding}"
    raw.answer(f"HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: {len(packed)}\r\n\r\n".encode() + packed)
    answer = await exchange(before_raw, request("PUT", "/v1/files/f", head, body=packed))
    assert raw.requests[0].body == packed
    assert raw.requests[0].all("Content-Encoding") == [coding]
    assert answer.body == packed
    assert answer.all("Content-Encoding") == [coding]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified", b"418 I'm a teapot", b"599 Whatever"])
async def test_statuses_go_through_and_the_connection_lives_on(
    before_raw: Served, raw: WireUpstream, status: bytes
) -> None:
    length = b"" if status[:3] in (b"204", b"304") else b"Content-Length: 0\r\n"
    raw.answer(b"HTTP/1.1 %s\r\n%sETag: e\r\n\r\n" % (status, length))
    async with connected(before_raw.url) as wire:
        for _ in range(2):
            await wire.send(request("GET", "/v1/x"))
            answer = await wire.message()
            assert answer.status == int(status[:3])
            assert answer.all("ETag") == ["e"]
            assert answer.body == b""


async def test_answer_headers_go_through_repeated_ones_too(before_raw: Served, raw: WireUpstream) -> None:
    raw.answer(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\n"
        b"X-RateLimit-Remaining: 3\r\nVary: a\r\nVary: b\r\nopenai-organization: o\r\n\r\nok"
    )
    answer = await exchange(before_raw, request("GET", "/v1/x"))
    assert answer.all("Set-Cookie") == ["a=1; Path=/", "b=2"]
    assert answer.all("Vary") == ["a", "b"]
    assert answer.all("X-RateLimit-Remaining") == ["3"]
    assert answer.all("openai-organization") == ["o"]
    assert answer.all("Cache-Status") == ["nearhit; fwd=bypass; detail=pass-through"]


async def test_an_upstream_cannot_pose_as_the_gateway(before_raw: Served, raw: WireUpstream) -> None:
    raw.answer(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Status: nearhit; hit\r\nAge: 9\r\nx-nearhit-similarity: 1\r\n"
        b"x-request-id: theirs\r\n\r\nok"
    )
    answer = await exchange(before_raw, request("GET", "/v1/x", "x-request-id: mine"))
    assert answer.all("Cache-Status") == ["nearhit; fwd=bypass; detail=pass-through"]
    assert answer.all("Age") == answer.all("x-nearhit-similarity") == []
    assert answer.all("x-request-id") == ["mine"]


async def test_redirects_are_the_clients_to_follow(before_raw: Served, raw: WireUpstream) -> None:
    raw.answer(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/else\r\nContent-Length: 0\r\n\r\n")
    answer = await exchange(before_raw, request("GET", "/v1/x"))
    assert (answer.status, answer.all("Location")) == (307, ["http://127.0.0.1:1/else"])
    assert len(raw.requests) == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_upload_is_streamed_and_never_held(before_raw: Served, raw: WireUpstream, chunked: bool) -> None:
    """20 MB, far above max_body, against an upstream that does not read yet: had the gateway room for all of it, the
    client could finish."""
    body = os.urandom(20 * 2**20)
    reads, digest, lengths = asyncio.Event(), hashlib.sha256(), []

    async def script(wire: Wire, head: Message) -> None:
        await reads.wait()
        async for piece in wire.chunks(head):
            digest.update(piece)
            lengths.append(len(piece))
        await wire.send(OK)

    raw.script, raw.streaming = script, True
    headers = ["Transfer-Encoding: chunked"] if chunked else [f"Content-Length: {len(body)}"]
    async with connected(before_raw.url) as wire:
        wire.writer.write(request("POST", "/v1/files", *headers))
        wire.writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await wire.writer.drain()
        reads.set()
        assert (await wire.message()).body == b"ok"
    assert sum(lengths) == len(body)
    assert digest.digest() == hashlib.sha256(body).digest()
    assert raw.requests[0].all("Content-Length") == ([] if chunked else [str(len(body))])


async def test_an_upload_reaches_the_upstream_while_it_still_comes(before_raw: Served, raw: WireUpstream) -> None:
    """As soon as it is larger than what the gateway buffers."""
    first = asyncio.Event()

    async def script(wire: Wire, head: Message) -> None:
        async for _ in wire.chunks(head):
            first.set()
        await wire.send(OK)

    raw.script, raw.streaming = script, True
    async with connected(before_raw.url) as wire:
        await wire.send(
            request("POST", "/v1/files", "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n" % (len(LARGE), LARGE)
        )
        async with asyncio.timeout(120):
            await first.wait()
        await wire.send(b"0\r\n\r\n")
        assert (await wire.message()).status == 200


@pytest.mark.parametrize("framing", [f"Content-Length: {len(LARGE) + 4}", "Transfer-Encoding: chunked"])
async def test_an_upload_that_has_streamed_is_not_sent_again_without_its_body(
    before_raw: Served, raw: WireUpstream, framing: str
) -> None:
    """PUT may be repeated, but what has gone by is gone."""

    bodies = []

    async def script(upstream: Wire, head: Message) -> None:
        bodies.append(b"".join([piece async for piece in upstream.chunks(head)]))
        await upstream.send(b"nonsense\r\n\r\n")

    raw.script, raw.streaming = script, True
    async with connected(before_raw.url) as wire:
        chunked = "chunked" in framing
        await wire.send(f"PUT /v1/files/f HTTP/1.1\r\nHost: g\r\nX: y\r\nX: z\r\n{framing}\r\n\r\n".encode())
        await wire.send(b"%x\r\n%s\r\n" % (len(LARGE), LARGE) if chunked else LARGE)
        await until(lambda: raw.requests)  # so that the gateway no longer has all of the body
        await wire.send(b"4\r\nbody\r\n0\r\n\r\n" if chunked else b"body")
        assert (await wire.message()).status == 502
    assert bodies == [LARGE + b"body"]


async def test_an_answer_arrives_while_the_upstream_still_sends(before_raw: Served, raw: WireUpstream) -> None:
    go_on = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none")
        await go_on.wait()
        await wire.send(b"two")

    raw.script = script
    async with connected(before_raw.url) as wire:
        await wire.send(request("GET", "/v1/files/f/content"))
        head = await wire.head()
        assert head.all("Content-Length") == ["6"]
        pieces = wire.chunks(head)
        assert await anext(pieces) == b"one"
        go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"two"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
    ],
)
async def test_a_body_that_breaks_off_never_ends_cleanly(before_raw: Served, raw: WireUpstream, answer: bytes) -> None:
    """A truncated file must not look like a whole one."""
    seen = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(answer[: answer.index(b"half") + 4])
        await seen.wait()
        await wire.send(answer[answer.index(b"half") + 4 :])
        wire.writer.close()

    raw.script = script
    async with connected(before_raw.url) as wire:
        await wire.send(request("GET", "/v1/x"))
        pieces = wire.chunks(await wire.head())
        assert await anext(pieces) == b"half"
        seen.set()
        with pytest.raises(Incomplete):
            async for _ in pieces:
                pass


async def test_a_client_that_leaves_an_upload_frees_the_backends_place(before_raw: Served, raw: WireUpstream) -> None:
    gone, arrived = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire, head: Message) -> None:
        arrived.set()
        try:
            async for _ in wire.chunks(head):
                pass
        except Incomplete:
            gone.set()

    raw.script, raw.streaming = script, True
    async with connected(before_raw.url) as wire:
        await wire.send(request("POST", "/v1/files", f"Content-Length: {2 * len(LARGE)}") + LARGE)
        await arrived.wait()
    async with asyncio.timeout(120):
        await gone.wait()
    assert before_raw.gateway.parts.pools["main"].inflight == 0


async def test_gateway_headers_of_a_request_stay_here(before_raw: Served, raw: WireUpstream) -> None:
    raw.answer(OK)
    ours = ["x-latency-budget-ms: 500", "x-slo-ttft-ms: 5", "x-slo-tpot-ms: 5", "Cache-Tag: a"]
    await exchange(before_raw, request("GET", "/v1/x", *ours, "Cache-Control: no-cache"))
    assert all(raw.requests[0].all(header.split(":")[0]) == [] for header in ours)
    assert raw.requests[0].all("Cache-Control") == ["no-cache"]  # a chain of caches wants it
