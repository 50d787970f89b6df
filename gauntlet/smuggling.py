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
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from gateway.features.kserve.dialect import KServe
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import PAUSE_S, in_parallel, target
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.processes import Process
from tests.fixtures.wire import Message, Wire, connected, wire_upstream
from tests.http_server.test_raw_sockets import HEAD, HEALTH, HI, OTHER_VERSIONS, framings, smuggling

SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: g\r\n\r\n"
AT_ONCE, QUIET_BEATS = 32, 10  # a client that hears nothing more for that many beats leaves
MARK = re.compile(rb'"mark": ?(\d+), ?"start": ?("[^"]*")')  # a dialect may write the JSON again
STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
START = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+ /[!-~]* HTTP/1\.1$")
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b"\x0b", b":", b",", b";", b"0", b"\xff", b"\r\n\r\n",
    b"GET ", b"HTTP/1.0", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:\tchunked\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Connection: close\r\n", b"Connection: content-length\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", SMUGGLED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Face:
    """A dialect under attack: a head and a body that it understands, and what its answer needs beside the mark.

    `payloads` are more requests of this dialect that can be read in two ways, after the head.
    """

    adapter: str
    head: bytes
    body: bytes
    answer: Mapping[str, Any]
    payloads: Mapping[str, bytes] = field(default_factory=dict)


JSON_LENGTH = b"Inference-Header-Content-Length"
INFER = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["hi"]}]}'
TENSORS = INFER.replace(b'"data":["hi"]', b'"parameters":{"binary_data_size":6}') + b"\2\0\0\0hi"


def with_json_length(*values: bytes) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % (JSON_LENGTH, value) for value in values)
    return lines + b"Content-Length: %d\r\n\r\n" % len(TENSORS) + TENSORS


OPENAI = Face("openai", HEAD, HI, {})
MESSAGES = Face(
    "anthropic",
    b"POST /v1/messages HTTP/1.1\r\nHost: g\r\nanthropic-version: 2023-06-01\r\nx-api-key: k\r\n",
    HI[:-1] + b', "max_tokens": 9}',
    {},
)
TENSOR_JSON = len(TENSORS) - 6
INFERENCE = Face(
    "kserve",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: g\r\n",
    INFER,
    {"model_name": "m", "outputs": [{"name": "y", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]},
    {
        "JSON longer than the body": with_json_length(b"%d" % (len(TENSORS) + 1)),
        "JSON cut short": with_json_length(b"%d" % (TENSOR_JSON - 1)),
        "a tail that is too short": with_json_length(b"%d" % (TENSOR_JSON + 1)),
        "a list of JSON lengths": with_json_length(b"%d, %d" % (TENSOR_JSON, TENSOR_JSON)),
        "a signed JSON length": with_json_length(b"+%d" % TENSOR_JSON),
        "a hexadecimal JSON length": with_json_length(b"0x%x" % TENSOR_JSON),
        "a negative JSON length": with_json_length(b"-1"),
        "a JSON length beyond any": with_json_length(b"99999999999999999999"),
        "two JSON lengths": with_json_length(b"%d" % TENSOR_JSON, b"%d" % (TENSOR_JSON - 1)),
    },
)


@dataclass
class Endpoint:
    """Reads requests strictly and numbers its answers. `misread` has each request that no gateway should send."""

    face: Face
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
        if is_inference(request) and not has_one_json_length(request):
            lengths = request.all(JSON_LENGTH.decode())
            self.misread.append(f"{request.start} with JSON length {lengths} of {request.body[:200]!r}")
        self.marks += 1
        mark = {"mark": self.marks, "start": request.start.replace('"', "%22")}
        body = json.dumps({**mark, **self.face.answer}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        await wire.send((head % len(body) + body) if not request.start.startswith("HEAD ") else head % len(body))


def is_inference(request: Message) -> bool:
    """Return whether the gateway reads the request. All other paths pass through byte for byte."""
    path = request.start.split(" ")[1].partition("?")[0]
    return request.start.startswith("POST ") and path.endswith("/infer") and KServe.path.fullmatch(path) is not None


def has_one_json_length(request: Message) -> bool:
    """Return whether the JSON of an inference request is as long as its header says. No header: all of the body."""
    found = request.all(JSON_LENGTH.decode())
    if len(found) > 1 or not all(value.isdecimal() for value in found):
        return False
    length = int(found[0]) if found else len(request.body)
    if length == 0:  # a body without JSON
        return True
    try:
        return isinstance(json.loads(request.body[:length]), dict)
    except ValueError:
        return False


def mutate(base: bytes, draw: random.Random) -> bytes:
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


class HealthProbe:
    """Asks a gateway for its health all the time. `beats` counts the answers; a busy machine holds this clock back."""

    def __init__(self, it: Process) -> None:
        self.it = it
        self.beats = 0

    async def run(self) -> None:
        while True:
            with suppress(aiohttp.ClientError):  # a gateway that is gone keeps no client
                await self.it.get("/healthz")
            self.beats += 1
            await asyncio.sleep(PAUSE_S)

    async def reply_to(self, sent: bytes) -> bytes:
        """Send the bytes over a new connection, and return all that comes until it ends or is quiet."""
        got = b""
        async with connected(self.it.url) as wire:
            with suppress(ConnectionError):
                wire.writer.write(sent)
                while piece := await self._read(wire.reader):
                    got += piece
            wire.writer.transport.abort()
        return got

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Return what comes next; empty at the end, or after `QUIET_BEATS` without anything."""
        reading, last = asyncio.ensure_future(reader.read(65536)), self.beats + QUIET_BEATS
        while not reading.done() and self.beats < last:
            await asyncio.wait([reading], timeout=PAUSE_S)
        return reading.result() if reading.done() or not reading.cancel() else b""


@asynccontextmanager
async def run_probe(it: Process) -> AsyncIterator[HealthProbe]:
    """Yield a pulse that beats while the block runs."""
    pulse = HealthProbe(it)
    beating = asyncio.create_task(pulse.run())
    try:
        yield pulse
    finally:
        beating.cancel()
        await asyncio.wait([beating])


def marks_of(got: bytes) -> list[tuple[int, str]]:
    """Return the number and the start line of each answer of the endpoint."""
    return [(int(mark), json.loads(start)) for mark, start in MARK.findall(got)]


def reply_faults(sent: bytes, got: bytes) -> list[str]:
    """Return what is wrong with a reply by itself: a server error, or the answer to a request of another client."""
    statuses = [status.decode() for status in STATUS.findall(got) if status.startswith(b"5") and status != b"505"]
    faults = [f"{status} for {sent[:200]!r}" for status in statuses]
    for _, start in marks_of(got):
        path = start.split(" ")[1].encode("latin-1")
        if path not in sent.replace(b'"', b"%22") and not path.startswith(b"/?") and path != b"/":
            faults.append(f"{start!r} for {sent[:200]!r}")
    return faults


async def attack(face: Face, mutations: int) -> Finding:
    """Send the corpus, which must be refused, and then mutations, which must be read the same on both sides."""
    draw, endpoint, payloads = random.Random(5), Endpoint(face), {**smuggling(face.body), **face.payloads}
    faults, through, returned = list[str](), list[str](), Counter[int]()
    correct = framings(face.body)
    valid = [face.head + rest for rest in correct.values()]
    valid += [face.head + correct["no space"] + HEALTH, b"GET /v1/echo HTTP/1.1\r\nHost: g\r\n\r\n"]
    if face.payloads:
        valid += [face.head + with_json_length(b"%d" % TENSOR_JSON), face.head + with_json_length(b"0")]
    odd = [face.head + rest for rest in payloads.values()] + [line for line, _ in OTHER_VERSIONS]
    async with wire_upstream() as upstream:
        upstream.script = endpoint.answer
        url = upstream.url if face.adapter == "openai" else upstream.url.removesuffix("/v1")
        async with target(url, NO_CACHE, backend={"adapter": face.adapter}) as it, run_probe(it) as pulse:

            async def send_payload(rest: bytes, more: bytes = SMUGGLED) -> None:
                got = await pulse.reply_to(face.head + rest + more)
                if STATUS.findall(got) != [b"400"]:
                    through.append(f"{rest[:100]!r} got {got[:100]!r}")

            async def send_mutation(sent: bytes) -> None:
                got = await pulse.reply_to(sent)
                faults.extend(reply_faults(sent, got))
                returned.update(mark for mark, _ in marks_of(got))

            await in_parallel(AT_ONCE, map(send_payload, smuggling(face.body).values()))
            await in_parallel(AT_ONCE, (send_payload(rest, b"") for rest in face.payloads.values()))
            reached = endpoint.marks
            drawn = (draw.choice(odd if draw.random() < 0.2 else valid) for _ in range(mutations))
            await in_parallel(AT_ONCE, (send_mutation(mutate(base, draw) + SMUGGLED) for base in drawn))
            healthy = (await it.get("/healthz")).status == 200
    twice = sum(times > 1 for times in returned.values())
    figure = (
        f"{len(payloads)} payloads, {mutations} mutations; {endpoint.marks} reached the backend, "
        f"{len(endpoint.misread)} misread, {len(faults)} faults"
    )
    return verdict_of(
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


async def run(face: Face, most: int, quick: bool) -> Finding:
    return await attack(face, most // 60 if quick else most)


LEVEL = "payloads refused; mutations: none misread by the backend, no 5xx"
PART = Part("smuggling", LEVEL, partial(run, OPENAI, 18_000))
ANTHROPIC = Part("smuggling, Anthropic", LEVEL, partial(run, MESSAGES, 6_000))
KSERVE = Part("smuggling, KServe", LEVEL, partial(run, INFERENCE, 6_000))
