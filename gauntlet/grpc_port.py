"""Frames and messages of any content on the gRPC port must harm nobody, and answers must not cross tenants."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.smuggling import mutate
from gauntlet.target import PATIENCE_S, Bystander, in_parallel, stalls_of, target
from tests.cache.test_isolation import policy
from tests.fixtures.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    OPENED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    call,
    frame,
    header,
    headers,
)
from tests.fixtures.triton import free_ports
from tests.fixtures.wire import Message, Wire, connected, wire_upstream

AT_ONCE, QUIET_S, SPARE_MB = 16, 0.5, 96
TENANTS = tuple(f"tenant-{letter}" for letter in "vwxyz")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
# The gateway's own faults. UNAVAILABLE and DEADLINE_EXCEEDED may come from the backend, so they count here, too.
FAULTS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS}


def infer_request(question: str) -> bytes:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(question.encode())
    return bytes(message.SerializeToString())


def floods(most: int) -> dict[str, bytes]:
    """Return known attacks on HTTP/2, each with `most` frames."""
    streams, head = range(1, 2 * most, 2), headers(INFER.encode())
    return {
        "resets (CVE-2023-44487)": OPENED
        + b"".join(
            frame(HEADERS, head, END_HEADERS, stream) + frame(RST_STREAM, b"\0\0\0\x08", 0, stream)
            for stream in streams
        ),
        "pings": OPENED + frame(PING, bytes(8)) * most,
        "settings": OPENED + frame(SETTINGS) * most,
        "continuations (CVE-2024-27316)": OPENED
        + frame(HEADERS, head, 0, 1)
        + frame(CONTINUATION, header(b"x", b"y" * 120) * 100, 0, 1) * (most // 10),
        "empty data": OPENED + frame(HEADERS, head, END_HEADERS, 1) + frame(DATA, b"", 0, 1) * most,
        "priorities": OPENED + b"".join(frame(PRIORITY, bytes(5), 0, stream) for stream in streams),
        "a window of nothing": PREFACE
        + frame(SETTINGS, b"\0\x04\0\0\0\0")
        + call(INFER.encode(), infer_request("window")),
        "a header that is never whole": OPENED + frame(HEADERS, head, 0, 1),
        "HTTP/1.1": b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 9999\r\n\r\n",
        "a message longer than it says": OPENED
        + frame(HEADERS, head, END_HEADERS, 1)
        + frame(DATA, b"\0\xff\xff\xff\xff", END_STREAM, 1),
    }


TEXTS = re.compile(rb"tenant-[a-z]|question [0-9]+")


async def answer_with_tenant(wire: Wire, request: Message) -> None:
    """Answer in the dialect of the path, with the tenant that asks and with the question."""
    asked = b" ".join(TEXTS.findall("".join(request.all("authorization")).encode() + request.body)).decode()
    output = {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [asked]}
    choice = {"index": 0, "message": {"role": "assistant", "content": asked}, "finish_reason": "stop"}
    answer = {"model_name": "m", "outputs": [output]} if "/infer" in request.start else {"choices": [choice]}
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    await wire.send(head % len(body) + body)


async def send_raw(url: str, data: bytes) -> None:
    """Send bytes over a connection of their own, and read until it ends or is quiet."""
    async with connected(url) as wire:
        with suppress(ConnectionError, TimeoutError):
            wire.writer.write(data)
            while await asyncio.wait_for(wire.reader.read(65536), QUIET_S):
                pass
        wire.writer.transport.abort()


class Calls:
    """Calls over one channel: messages of any bytes, and clients that leave."""

    def __init__(self, channel: Any) -> None:
        self._infer = channel.unary_unary(INFER)
        self._stream = channel.stream_stream(STREAM)
        self.statuses: Counter[str] = Counter()
        self.bad: list[str] = []
        self.crossed: list[str] = []

    async def _record(self, call: Callable[[], Awaitable[Any]], about: str) -> Any:
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await call()
            self.statuses["OK"] += 1
            return answer
        except grpc.aio.AioRpcError as error:
            self.statuses[error.code().name] += 1
            if error.code() in FAULTS:
                self.bad.append(f"{error.code().name} {error.details()!r} for {about}")
        except TimeoutError:
            self.bad.append(f"no answer within {PATIENCE_S:g} s for {about}")

    async def send_odd(self, message: bytes, streamed: bool) -> None:
        async def streams() -> Any:
            return [answer async for answer in self._stream(iter([message]))]

        await self._record(streams if streamed else lambda: self._infer(message), repr(message[:200]))

    async def ask_as_tenant(self, name: str, question: str, leaves_after_s: float | None) -> None:
        metadata = (("authorization", f"Bearer {name}"),)
        asked = self._infer(infer_request(question), metadata=metadata)
        if leaves_after_s is not None:
            await asyncio.sleep(leaves_after_s)
            asked.cancel()
        try:
            answer = await self._record(lambda: asked, question)
        except asyncio.CancelledError:
            self.statuses["CANCELLED"] += 1
            return
        if answer is not None and {each for each in TENANTS if each.encode() in answer} != {name}:
            self.crossed.append(f"{name} got {answer[:200]!r}")


async def run(quick: bool) -> Finding:
    """Send frames and messages of any content, and let clients of five tenants leave, while another tenant asks."""
    most, mutations, messages, clients = (200, 60, 300, 200) if quick else (20_000, 3_000, 20_000, 5_000)
    draw, address = random.Random(7), f"127.0.0.1:{free_ports(1)[0]}"
    valid = infer_request("what is it")
    async with wire_upstream() as upstream:
        upstream.script = answer_with_tenant
        url, section = upstream.url.removesuffix("/v1"), {"grpc": address}
        kserve = {"adapter": "kserve", "url": url}
        tensors = policy().replace("  - name: default", TENSORS + "  - name: default")
        async with (
            target(upstream.url, tensors, server=section, others={"tensors": kserve}) as it,
            grpc.aio.insecure_channel(address) as channel,
        ):
            calls, other = Calls(channel), Bystander(it)
            await other.ask()
            before = rss_mb(it.process.pid)
            async with stalls_of(it) as stalls, asyncio.TaskGroup() as group:
                asking = group.create_task(other.ask_for(3600.0))
                await in_parallel(4, (send_raw(f"http://{address}", data) for data in floods(most).values()))
                bases = [
                    OPENED + call(INFER.encode(), valid),
                    OPENED + call(INFER.encode(), valid) + call(INFER.encode(), valid, 3),
                ]
                odd = (send_raw(f"http://{address}", mutate(draw.choice(bases), draw)) for _ in range(mutations))
                await in_parallel(AT_ONCE, odd)
                texts = (mutate(valid, draw) if draw.random() < 0.9 else draw.randbytes(50) for _ in range(messages))
                await in_parallel(AT_ONCE, (calls.send_odd(text, draw.random() < 0.2) for text in texts))
                grown = rss_mb(it.process.pid) - before
                asked = (
                    calls.ask_as_tenant(
                        draw.choice(TENANTS),
                        f"question {number % 40}",
                        draw.random() * 0.02 if draw.random() < 0.7 else None,
                    )
                    for number in range(clients)
                )
                await in_parallel(AT_ONCE, asked)
                asking.cancel()
    statuses = ", ".join(f"{number} {status}" for status, number in calls.statuses.most_common())
    figure = (
        f"{len(floods(1))} floods of {most}, {mutations} mutated connections, {messages} messages, {clients} clients: "
        f"{statuses}; {len(calls.crossed)} crossed; +{grown:.0f} MB; {stalls.figure}; {other.figure}"
    )
    return verdict_of(
        figure,
        {
            **other.levels,
            **stalls.levels,
            f"{len(calls.bad)} faults, the first: {''.join(calls.bad[:1])}": not calls.bad,
            f"{len(calls.crossed)} answers crossed, the first: {''.join(calls.crossed[:1])}": not calls.crossed,
            f"memory grew by {grown:.0f} MB, expected at most {SPARE_MB}": grown <= SPARE_MB,
        },
    )


TENSORS = """  - name: tensors
    match: {path: "/v2/*"}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.5}, share: tenant}
    route: {backend: tensors}
"""
PART = Part("gRPC port", "0 internal errors, 0 crossed; no stall above 100 ms; others within 10 s; 96 MB at most", run)
