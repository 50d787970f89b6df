"""The servers of the comparison, and the endpoint behind them.

`python -m bench.servers KIND PORT [UPSTREAM]`

fixed: aiohttp with a constant body, the lower bound of the cost. For "stream": true it sends a constant burst of
`EVENTS` events.
proxy: the plainest reverse proxy with aiohttp.
upstream: an endpoint with a constant chat completion, as cheap as a socket allows. The model "long" gets a completion
of `EVENTS` events. For "stream": true it sends these events, one every `EVENT_S` seconds.
protocols: the same for each path, in its protocol.
settings: for `bench.settings`. It gives every model the long answer, and below /sure one with log probabilities.
default: for `bench.default`. The number in the field `metadata` of a request chooses its answer.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

import aiohttp
import uvloop
from aiohttp import web

from bench.prompts import prose
from bench.protocols import BODY, EVENTS, LONG, PROTOCOLS, completion
from gateway.dialects.openai.answers import is_usage_chunk, split

BACKLOG = 4096  # connections that a crowd opens at once
MOST = 16 * 2**20  # bytes of a body
EVENT_S = 0.003  # so far apart that each event is a read of its own for who relays it
STREAM = re.compile(rb'"stream": ?true')
NUMBER = re.compile(rb'"n": ?(\d+)')


def frames() -> list[bytes]:
    """Return the frames that the gateway sends of the long answer to a client that did not ask for usage."""
    some = [event.frame() for event in split("chat.completions", LONG) if not is_usage_chunk(event.data)]
    assert len(some) == EVENTS, f"expected {EVENTS} events, got {len(some)}"
    return some


def run(app: web.Application, port: int) -> None:
    loop = uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, loop=loop, backlog=BACKLOG)


def fixed(port: int) -> None:
    burst = b"".join(frames())

    async def answer(request: web.Request) -> web.StreamResponse:
        if not STREAM.search(await request.read()):
            return web.Response(body=BODY, content_type="application/json")
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        await out.write(burst)
        await out.write_eof()
        return out

    app = web.Application(client_max_size=MOST)
    app.router.add_post("/v1/chat/completions", answer)
    run(app, port)


def proxy(port: int, upstream: str) -> None:
    """Run a reverse proxy in the fewest lines that make one: end-to-end headers both ways, the body as it comes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        async with request.app[SESSION].request(
            request.method,
            upstream + request.raw_path,
            headers=headers,
            data=await request.read(),
            allow_redirects=False,
        ) as response:
            kept = [(name, value) for name, value in response.headers.items() if name.lower() not in HOP_BY_HOP]
            out = web.StreamResponse(status=response.status, headers=kept)
            out.content_length = response.content_length
            await out.prepare(request)
            async for chunk in response.content.iter_any():
                await out.write(chunk)
            await out.write_eof()
            return out

    async def session(app: web.Application):
        app[SESSION] = aiohttp.ClientSession(auto_decompress=False)
        yield
        await app[SESSION].close()

    app = web.Application(client_max_size=MOST)
    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", answer)
    run(app, port)


SESSION = web.AppKey("session", aiohttp.ClientSession)
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "host", "content-length", "server", "date")
)  # fmt: skip


class CannedServer(asyncio.Protocol):
    """Answers every complete request with the same bytes, or with those that `by_path` has for it; knows
    Content-Length bodies, and no more. `live`: the writes that a stream is answered in."""

    def __init__(self, by_path: Mapping[bytes, bytes] | None = None, live: Iterable[bytes] = ()) -> None:
        self.by_path = by_path or {}
        self.live = live

    def answer(self, path: bytes, body: bytes) -> bytes:
        return self.by_path.get(path, LONG_WHOLE if b'"long"' in body else WHOLE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            path = self.buffer.split(b" ", 2)[1]
            head = self.buffer[:end].lower()
            at = head.find(b"\ncontent-length:")
            length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            if self.live and STREAM.search(body):
                self.write(iter(self.live), asyncio.get_running_loop().time())
            else:
                self.transport.write(self.answer(path, body))

    def write(self, rest: Iterator[bytes], at: float) -> None:
        part = next(rest, None)
        if part is not None and not self.transport.is_closing():
            self.transport.write(part)
            asyncio.get_running_loop().call_at(at + EVENT_S, self.write, rest, at + EVENT_S)


def answer_of(body: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    return f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


WHOLE, LONG_WHOLE = answer_of(BODY), answer_of(LONG)


def live_answer() -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames()]
    return [head + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]


def protocols(port: int) -> None:
    """Answer by path, with the answers of `bench.protocols`."""
    upstream(port, {each.path.encode(): answer_of(each.answer, each.answer_headers) for each in PROTOCOLS})


def settings(port: int) -> None:
    """Answer for `bench.settings`: at once, in 1.8 kB, which is enough to be compressed."""
    sure = b'"logprobs":{"content":[{"token":"Open","logprob":-0.01,"bytes":null,"top_logprobs":[]}]}'
    with_logprobs = LONG.replace(b'"logprobs":null', sure)
    upstream(
        port,
        {b"/v1/chat/completions": LONG_WHOLE, b"/sure/v1/chat/completions": answer_of(with_logprobs)},
    )


class NumberedServer(CannedServer):
    """Answers a request with the text that belongs to its number, so that a gateway can compare answers."""

    def answer(self, path: bytes, body: bytes) -> bytes:
        number = NUMBER.search(body)
        return numbered_answer(int(number[1]) if number else 0)


@functools.cache
def numbered_answer(number: int) -> bytes:
    """Return the response of a number: about 40 tokens, equal for equal numbers alone."""
    return answer_of(completion(prose(random.Random(number), 3)))


def default(port: int) -> None:
    """Answer for `bench.default`, at once."""
    upstream(port, of=NumberedServer)


def upstream(port: int, by_path: Mapping[bytes, bytes] | None = None, of: type[CannedServer] = CannedServer) -> None:
    async def serve() -> None:
        live = live_answer()
        server = await asyncio.get_running_loop().create_server(
            lambda: of(by_path, live), "127.0.0.1", port, backlog=BACKLOG
        )
        await server.serve_forever()

    uvloop.run(serve())


if __name__ == "__main__":
    kind, port, *rest = sys.argv[1:]
    kinds: list[Callable[..., None]] = [fixed, proxy, upstream, protocols, settings, default]
    {each.__name__: each for each in kinds}[kind](int(port), *rest)
