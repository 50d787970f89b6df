"""The gateway, the server that plays the forms, and the client that asks for them: each form through every way.

One gateway has a backend for each dialect and HTTP client, and for each of these a route with a cache and one without.
A header chooses the route. Each visit has a key of its own, so that no visit meets the entries of another.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fixtures.gateways import Served, aboard, config_of, gateway_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import Incomplete, Message, Wire, WireUpstream, connected, wire_upstream
from tests.wires.answers import plain_answer
from tests.wires.forms import ENCODE, FOR_SERVERS, PATHS, TRANSLATED, Expectation, Form, Reply, compact
from tests.wires.official import official_clients
from tests.wires.outcomes import NotRight, Received, differences, outcome_of, parse_stream

ROUTE_HEADER = "x-wire"
MAX_PIECES = 2_000  # a longer body is cut into as many pieces, each of several bytes
HANDOVERS = 2  # rounds of the event loop after which the gateway has read a piece
WAIT_S = 20.0  # only ends a failed visit
CLIENTS = ("own", "aiohttp")
ADAPTERS = {"messages": "anthropic", "converse": "bedrock"}  # the others are OpenAI's


def policy() -> str:
    """Return the routes: for each backend one with the exact cache, and one without a cache."""
    routes = []
    for adapter in ("openai", "anthropic", "bedrock"):
        for client in CLIENTS:
            backend = f"{adapter}-{client}"
            for cached in ("cached", "uncached"):
                cache = " cache: {exact: {ttl: 1h}, admit: {tools: on}}," if cached == "cached" else ""
                match = f"{{headers: {{{ROUTE_HEADER}: {backend}-{cached}}}}}"
                routes.append(f"  - {{name: {backend}-{cached}, match: {match},{cache} route: {{backend: {backend}}}}}")
    return "\n".join(["version: 1", "routes:", *routes, "  - {name: default, match: {}, route: {backend: openai-own}}"])


@dataclass
class Server:
    """The scripted server. It answers with `reply`, or with a plain answer; `whole_at_once` False: byte by byte."""

    upstream: WireUpstream
    reply: Reply | None = None
    whole_at_once: bool = True
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def requests(self) -> list[Message]:
        return self.upstream.requests

    def set(self, reply: Reply | None, *, whole_at_once: bool, gated: bool) -> None:
        self.upstream.requests.clear()
        self.reply, self.whole_at_once = reply, whole_at_once
        self.gate.clear() if gated else self.gate.set()

    async def answer(self, wire: Wire, request: Message) -> None:
        reply = self.reply or plain_answer(request)
        pieces = list(reply.pieces if self.whole_at_once else _small(b"".join(reply.pieces)))
        length = sum(map(len, pieces))
        framing = {
            "chunked": "Transfer-Encoding: chunked\r\n", "length": f"Content-Length: {length}\r\n",
            "close": "Connection: close\r\n",
        }[reply.framing]  # fmt: skip
        headers = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
        head = f"HTTP/1.1 {reply.status} X\r\n{headers}{framing}\r\n".encode()
        before, after = pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]
        chunked = reply.framing == "chunked"
        if before:
            wire.writer.write(head)
            await self._write(wire, before, chunked)
            head = b""
        await self.gate.wait()
        if head:
            wire.writer.write(head)
        await self._write(wire, after, chunked)
        if reply.cut:
            wire.writer.transport.abort()
        elif chunked:
            wire.writer.write(b"0\r\n\r\n")
        elif reply.framing == "close":
            wire.writer.close()

    async def _write(self, wire: Wire, pieces: list[bytes], chunked: bool) -> None:
        for piece in pieces:
            if wire.writer.is_closing():
                raise ConnectionError  # the gateway has left
            wire.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            for _ in range(HANDOVERS):
                await asyncio.sleep(0)
        await wire.writer.drain()


def _small(body: bytes) -> Iterator[bytes]:
    step = -(-len(body) // MAX_PIECES) or 1
    return (body[at : at + step] for at in range(0, len(body), step))


@dataclass(frozen=True, slots=True)
class Mode:
    """The backend's HTTP client, and whether the client speaks the other dialect."""

    client: str
    translated: bool

    @property
    def words(self) -> frozenset[str]:
        return frozenset({self.client, "translated" if self.translated else "untranslated"})

    def __str__(self) -> str:
        return f"{self.client}{', translated' if self.translated else ''}"


MODES = tuple(Mode(client, translated) for translated in (False, True) for client in CLIENTS)
WAYS = ("direct", "bytes", "first", "joined", "joined other", "again", "again other")


@dataclass(frozen=True, slots=True)
class Visit:
    """The result of one form in one way: no faults, or why the way does not exist."""

    mode: Mode
    way: str
    faults: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Museum:
    served: Served
    server: Server

    async def visits(self, form: Form) -> list[Visit]:
        """Take a form through every way."""
        found: list[Visit] = []
        for mode in MODES:
            if mode.translated and form.dialect not in TRANSLATED:
                found += [Visit(mode, way, skipped="the dialect is not translated") for way in WAYS]
                continue
            found += [await self._direct(form, mode, way) for way in ("direct", "bytes")]
            found += await self._cached(form, mode)
        return found

    async def _direct(self, form: Form, mode: Mode, way: str) -> Visit:
        """Ask without a cache. `bytes`: each byte of the answer comes alone."""
        tour = Tour(form, mode, way)
        if tour.expected(way).skipped:
            return Visit(mode, way, skipped=tour.expected(way).skipped)
        self.server.set(form.reply, whole_at_once=way == "direct", gated=False)
        received = await self._ask(tour, form.streamed, "uncached")
        return Visit(mode, way, (*tour.faults(way, received), *self._request_faults(tour, way, calls=1)))

    async def _cached(self, form: Form, mode: Mode) -> list[Visit]:
        """Ask, join the call in both forms before it ends, and ask again in both forms."""
        tour = Tour(form, mode, "cached")
        ways = [way for way in WAYS[2:] if not tour.expected(way).skipped]
        visits = [Visit(mode, way, skipped=tour.expected(way).skipped) for way in WAYS[2:] if way not in ways]
        self.server.set(form.reply, whole_at_once=True, gated=True)
        requests, tasks = self.server.requests, dict[str, asyncio.Task[Received]]()
        for way in (way for way in ways if not way.startswith("again")):
            task = asyncio.create_task(self._ask(tour, form.streamed != way.endswith("other"), "cached"))
            tasks[way] = task
            settled = _settled(self.served, requests, task, len(tasks))
            try:
                await until(settled, WAIT_S)
            except TimeoutError:
                visits.append(Visit(mode, way, ("neither joins the call nor makes one",)))
        self.server.gate.set()
        received = {way: await task for way, task in tasks.items()}
        joined = tour.expected("joined")
        if joined.stored and joined.shared and len(requests) != 1 and len(tasks) > 1:
            visits.append(Visit(mode, "joined", (f"{len(requests)} calls, expected one",)))
        visits += [Visit(mode, way, tuple(tour.faults(way, each))) for way, each in received.items()]
        if "first" in received:
            visits.append(Visit(mode, "first", tuple(self._request_faults(tour, "first", calls=None))))
        for way in (way for way in ways if way.startswith("again")):
            visits.append(await self._again(tour, way))
        return visits

    async def _again(self, tour: Tour, way: str) -> Visit:
        expected, form = tour.expected(way), tour.form
        if not expected.stored and way.endswith("other"):
            return Visit(tour.mode, way, skipped="it is not stored")
        self.server.requests.clear()
        received = await self._ask(tour, form.streamed != way.endswith("other"), "cached")
        faults = list(tour.faults(way, received))
        if expected.stored and self.server.requests:
            status = received.headers.get("cache-status", "no Cache-Status")
            faults.append(f"is not stored ({status})")
        elif not expected.stored and not self.server.requests:
            faults.append("is stored")
        return Visit(tour.mode, way, tuple(faults))

    def _request_faults(self, tour: Tour, way: str, *, calls: int | None) -> Iterator[str]:
        """Yield what is wrong with the request that the server received."""
        requests, sent = self.server.requests, tour.expected(way).sent
        if calls is not None and len(requests) != calls:
            yield f"{len(requests)} calls, expected {calls}"
        if not requests or not sent:
            return
        request = requests[0]
        yield from request_faults(tour, sent, request)

    async def _ask(self, tour: Tour, stream: bool, cached: str) -> Received:
        path, headers, body = tour.asked(stream)
        adapter = ADAPTERS.get(tour.server_dialect, "openai")
        lines = {"Host": "wires", **headers, ROUTE_HEADER: f"{adapter}-{tour.mode.client}-{cached}"}
        if tour.form.request.get("framing") == "chunked":
            lines["Transfer-Encoding"] = "chunked"
            half = len(body) // 2
            body = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (half, body[:half], len(body) - half, body[half:])
        else:
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        async with connected(self.served.url) as wire:
            await wire.send(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            while (answer := await wire.head()).status == 100:
                pass  # the gateway lets the body come
            given = {name.lower(): value for name, value in answer.headers}
            try:
                return Received(answer.status, given, b"".join([piece async for piece in wire.chunks(answer)]))
            except Incomplete as error:
                return Received(answer.status, given, error.received, cut=True)


def _settled(
    served: Served, requests: list[Message], task: asyncio.Task[Received], clients: int
) -> Callable[[], object]:
    """Return whether as many clients wait for calls or have calls of their own, or the last one is answered."""
    return lambda: task.done() or (requests and aboard(served) >= clients) or len(requests) >= clients


@dataclass(frozen=True, slots=True)
class Tour:
    """One form in one mode. `visit` keeps its key apart from others."""

    form: Form
    mode: Mode
    visit: str

    @property
    def client_dialect(self) -> str:
        """The dialect of the client: a server's form is translated for it, a client's form is its own."""
        own = FOR_SERVERS.get(self.form.dialect, self.form.dialect)
        return TRANSLATED[self.form.dialect] if self.mode.translated and self.form.reply else own

    @property
    def server_dialect(self) -> str:
        return TRANSLATED[self.form.dialect] if self.mode.translated and not self.form.reply else self.form.dialect

    @property
    def key(self) -> str:
        return f"sk-{self.form.id}-{self.mode.client}-{'t' if self.mode.translated else 'u'}-{self.visit}"

    def expected(self, way: str) -> Expectation:
        other = way.endswith("other")
        shape = "stream" if self.form.streamed != other else "whole"
        return self.form.expectation(self.mode.words | {*way.split(), shape, "other" if other else "same"})

    def asked(self, stream: bool) -> tuple[str, dict[str, str], bytes]:
        """Return path, headers and body of the request."""
        form, dialect = self.form, self.client_dialect
        keys = {"x-api-key": self.key, "anthropic-version": "2023-06-01"} if dialect == "messages" else {}
        headers = {"Content-Type": "application/json", **(keys or {"Authorization": f"Bearer {self.key}"})}
        given = form.request.get("headers", {}) if dialect == form.dialect else {}
        named = {name.lower() for name in given}
        headers = {name: value for name, value in headers.items() if name.lower() not in named}
        headers |= {name: str(value).replace("KEY", self.key) for name, value in given.items()}
        path = form.request.get("path", PATHS[dialect]) if dialect == form.dialect else PATHS[dialect]
        return path, headers, self.body(stream)

    def body(self, stream: bool) -> bytes:
        """Return the body of the request, as in the file unless the other form of the answer is due."""
        form, dialect = self.form, self.client_dialect
        if "body" in form.request and dialect == form.dialect:
            body = form.request["body"]
            if stream == form.streamed:
                text = body if isinstance(body, str) else compact(body)
            else:
                text = compact({**form.asked, **_stream_fields(dialect, stream)})
        else:
            text = compact(default_request(dialect, stream, form.request.get("fields", {}), dialect == form.dialect))
        encoding = form.request.get("encoding")
        return ENCODE[encoding](text.encode()) if encoding else text.encode()

    def faults(self, way: str, received: Received) -> Iterator[str]:
        """Yield what is wrong with what the client got."""
        expected, dialect = self.expected(way), self.client_dialect
        made = self.mode.translated or way.endswith("other") or dialect != self.form.dialect
        try:
            found = outcome_of(dialect, received)
            yield from differences(expected.right, found)
            yield from self._framing_faults(way, received)
            if expected.official:
                official = official_clients().outcome_of(dialect, received, made=made)
                if "error" in found and "error" in official:  # the client raises, and drops what came before
                    found, official = {"error": found["error"]}, {"error": official["error"]}
                for fault in differences(found, official):
                    yield f"official client: {fault}"
        except NotRight as error:
            yield str(error)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            yield f"unreadable: {type(error).__name__} {error}"

    def _framing_faults(self, way: str, received: Received) -> Iterator[str]:
        """Yield what is wrong with the form of the answer itself."""
        if received.status != 200:
            return
        other = way.endswith("other")
        if received.streamed != (self.form.streamed != other) and self.form.dialect != "embeddings":
            yield f"the answer is {'a stream' if received.streamed else 'whole'}"
        reply = self.form.reply
        relayed = self.expected(way).relayed and not self.expected(way).right.get("error")
        if reply is not None and relayed and self.client_dialect == self.form.dialect and not other:
            yield from _relay_faults(reply, received)
        comments = self.expected(way).right.get("comments")
        if received.streamed and comments is not None:
            found = parse_stream(received.body).comments
            if any(comment not in found for comment in comments):
                yield f"comments {found}, expected {comments}"


def _relay_faults(reply: Reply, received: Received) -> Iterator[str]:
    """Yield what the gateway changed in an answer that the client asked for in its own dialect and form."""
    if not reply.streamed:
        if received.body != reply.content:
            yield f"the body is {received.body[:60]!r}"
        return
    sent = [data for _, data in parse_stream(reply.content).events]
    have = [data for _, data in parse_stream(received.body).events]
    for at, data in enumerate(sent):
        if have[at : at + 1] != [data]:
            yield f"event {at} is {have[at : at + 1]}, expected {data[:60]!r}"
            return
    if len(have) > len(sent):
        yield f"an event more than the server sent: {have[len(sent)][:60]!r}"


def default_request(dialect: str, stream: bool, fields: Mapping[str, Any], own: bool) -> dict[str, Any]:
    """Return the request for a server's form; `fields` are those of the form, for clients of its own dialect."""
    turns = [{"role": "user", "content": "How are you?"}]
    body: dict[str, Any] = {
        "chat": {"model": "m", "messages": turns},
        "messages": {"model": "m", "max_tokens": 64, "messages": turns},
        "completions": {"model": "m", "prompt": "How are you?"},
        "responses": {"model": "m", "input": "How are you?"},
        "embeddings": {"model": "m", "input": "How are you?"},
    }[dialect]
    if stream:
        body |= _stream_fields(dialect, stream)
    return {**body, **fields} if own else body


def _stream_fields(dialect: str, stream: bool) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if stream and dialect in ("chat", "completions") else {}
    return {"stream": stream, **usage}


def request_faults(tour: Tour, sent: Mapping[str, Any], request: Message) -> Iterator[str]:
    """Yield how the request differs from what the server must receive."""
    if "path" in sent and request.start.split(" ")[1] != sent["path"]:
        yield f"path {request.start.split(' ')[1]}, expected {sent['path']}"
    if "body" in sent:
        want = tour.form.asked if sent["body"] == "same" else sent["body"]
        yield from _json_faults("", want, json.loads(request.body))
    for name, value in sent.get("headers", {}).items():
        if request.all(name) != [str(value).replace("KEY", tour.key)]:
            yield f"header {name}: {request.all(name)}, expected {value}"
    for name in sent.get("no_headers", ()):
        if request.all(name):
            yield f"header {name} is sent"


def _json_faults(where: str, want: Any, have: Any) -> Iterator[str]:
    if isinstance(want, dict) and isinstance(have, dict):
        for key in sorted({*want, *have}):
            if key not in have:
                yield f"{where}{key} is not sent"
            elif key not in want:
                yield f"{where}{key} is sent: {str(have[key])[:60]}"
            else:
                yield from _json_faults(f"{where}{key}.", want[key], have[key])
    elif isinstance(want, list) and isinstance(have, list) and len(want) == len(have):
        for at, (wanted, had) in enumerate(zip(want, have, strict=True)):
            yield from _json_faults(f"{where}{at}.", wanted, had)
    elif want != have:
        yield f"{where.rstrip('.')} is {str(have)[:60]!r}, expected {str(want)[:60]!r}"


@asynccontextmanager
async def open_museum(directory: Path) -> AsyncIterator[Museum]:
    """Run the server and the gateway."""
    async with wire_upstream() as upstream:
        server = Server(upstream)
        upstream.script = server.answer
        backends = {
            f"{adapter}-{client}": {
                "adapter": adapter, "client": client, "url": upstream.url, "retries": {"attempts": 1},
                "max_concurrency": 256, "adaptive": "off",
            }
            for adapter in ("openai", "anthropic", "bedrock") for client in CLIENTS
        }  # fmt: skip
        async with gateway_of(config_of(directory, backends), policy()) as served:
            yield Museum(served, server)


def merged(visits: list[Visit]) -> list[Visit]:
    """Return one visit for each mode and way, with all faults of it."""
    found: dict[tuple[Mode, str], Visit] = {}
    for visit in visits:
        before = found.get((visit.mode, visit.way))
        found[visit.mode, visit.way] = visit if before is None else replace(before, faults=before.faults + visit.faults)
    return list(found.values())
