"""Requests that could be read in two ways must not reach the backend as something else.

The corpus is that of the tests. Random mutations with a fixed seed go further. The endpoint numbers its answers.
Each number must come back to exactly one client. That client must have sent the path that the endpoint read.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from gauntlet.part import Finding, Part, judged
from gauntlet.target import in_parallel, target
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.wire import Message, Wire, connected, wire_upstream
from tests.http_server.test_raw_sockets import FRAMINGS, HEAD, HEALTH, OTHER_VERSIONS, SMUGGLING, ask

SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: g\r\n\r\n"
AT_ONCE, QUIET_S = 32, 0.5  # a client that hears nothing more for this time leaves
MARK = re.compile(rb'\{"mark": \d+, "start": "[^"]*"\}')
STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
START = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+ /[!-~]* HTTP/1\.1$")
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b"\x0b", b":", b",", b";", b"0", b"\xff", b"\r\n\r\n",
    b"GET ", b"HTTP/1.0", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:\tchunked\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Connection: close\r\n", b"Connection: content-length\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", SMUGGLED,
)  # fmt: skip


@dataclass
class Endpoint:
    """Reads requests strictly and numbers its answers. `misread` has each request that no gateway should send."""

    marks: int = 0
    misread: list[str] = field(default_factory=list)

    async def answer(self, wire: Wire, request: Message) -> None:
        lengths, codings = request.all("content-length"), request.all("transfer-encoding")
        if not START.match(request.start):
            self.misread.append(f"start line {request.start!r}")
        if len(lengths) + len(codings) > 1 or any(coding != "chunked" for coding in codings):
            self.misread.append(f"framing {lengths} {codings}")
        if lengths and not lengths[0].isdecimal():
            self.misread.append(f"length {lengths}")
        self.marks += 1
        body = json.dumps({"mark": self.marks, "start": request.start.replace('"', "%22")}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        await wire.send((head % len(body) + body) if not request.start.startswith("HEAD ") else head % len(body))


def mutated(base: bytes, draw: random.Random) -> bytes:
    """Return the request after one to four changes: a token put in, a byte changed, a piece removed or repeated."""
    data = bytearray(base)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.randint(1, 20))
        change = draw.randrange(4)
        if change == 0:
            data[at:at] = draw.choice(TOKENS)
        elif change == 1:
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif change == 2:
            del data[at:end]
        else:
            data[at:at] = data[at:end]
    return bytes(data)


async def reply_to(url: str, sent: bytes) -> bytes:
    """Send the bytes over a new connection, and return all that comes until it ends or is quiet."""
    got = b""
    async with connected(url) as wire:
        with suppress(ConnectionError, TimeoutError):
            wire.writer.write(sent)
            while piece := await asyncio.wait_for(wire.reader.read(65536), QUIET_S):
                got += piece
        wire.writer.transport.abort()
    return got


def marks_of(got: bytes) -> list[tuple[int, str]]:
    """Return the number and the start line of each answer of the endpoint."""
    return [(found["mark"], found["start"]) for found in map(json.loads, MARK.findall(got))]


def faults_of(sent: bytes, got: bytes) -> list[str]:
    """Return what is wrong with a reply by itself: a server error, or the answer to a request of another client."""
    statuses = [status.decode() for status in STATUS.findall(got) if status.startswith(b"5") and status != b"505"]
    faults = [f"{status} for {sent[:200]!r}" for status in statuses]
    for _, start in marks_of(got):
        path = start.split(" ")[1].encode("latin-1")
        if path not in sent.replace(b'"', b"%22") and not path.startswith(b"/?") and path != b"/":
            faults.append(f"{start!r} for {sent[:200]!r}")
    return faults


async def run(quick: bool) -> Finding:
    """Send the corpus, which must be refused, and then mutations, which must be read the same on both sides."""
    mutations, draw, endpoint = 300 if quick else 20_000, random.Random(5), Endpoint()
    faults, through, returned = list[str](), list[str](), Counter[int]()
    valid = [HEAD + rest for rest in FRAMINGS.values()]
    valid += [ask("hi") + HEALTH, b"GET /v1/echo HTTP/1.1\r\nHost: g\r\n\r\n"]
    odd = [HEAD + rest for rest in SMUGGLING.values()] + [line for line, _ in OTHER_VERSIONS]
    async with wire_upstream() as upstream:
        upstream.script = endpoint.answer
        async with target(upstream.url, NO_CACHE) as it:

            async def refused(rest: bytes) -> None:
                got = await reply_to(it.url, HEAD + rest + SMUGGLED)
                if STATUS.findall(got) != [b"400"]:
                    through.append(f"{rest[:100]!r} got {got[:100]!r}")

            async def same(sent: bytes) -> None:
                got = await reply_to(it.url, sent)
                faults.extend(faults_of(sent, got))
                returned.update(mark for mark, _ in marks_of(got))

            await in_parallel(AT_ONCE, map(refused, SMUGGLING.values()))
            reached = endpoint.marks
            drawn = (draw.choice(odd if draw.random() < 0.2 else valid) for _ in range(mutations))
            await in_parallel(AT_ONCE, (same(mutated(base, draw) + SMUGGLED) for base in drawn))
            healthy = (await it.get("/healthz")).status == 200
    twice = sum(times > 1 for times in returned.values())
    figure = (
        f"{len(SMUGGLING)} payloads, {mutations} mutations; {endpoint.marks} reached the backend, "
        f"{len(endpoint.misread)} misread, {len(faults)} faults"
    )
    return judged(
        figure,
        {
            f"not refused: {''.join(through[:1])}": not through,
            f"{reached} payloads reached the backend": not reached,
            f"misread: {''.join(endpoint.misread[:1])}": not endpoint.misread,
            f"faults: {''.join(faults[:1])}": not faults,
            f"{twice} answers went to two clients": not twice,
            f"{endpoint.marks - len(returned)} requests that no client got an answer of": len(returned)
            >= 0.99 * endpoint.marks,
            "the gateway does not answer /healthz": healthy,
            "no mutation reached the backend": endpoint.marks > 0,
        },
    )


PART = Part("smuggling", "payloads refused; mutations: none misread by the backend, no 5xx", run)
