"""Answers of model servers in bytes, and a gateway before a server that sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.gateways import BOTH_CACHES, Answer, Served, config_of, gateway_of
from tests.fixtures.wire import Message, Wire, WireUpstream, wire_upstream

CHAT = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunked(*pieces: bytes) -> bytes:
    """Return a complete chunked body, one chunk a piece."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def sse(*frames: bytes) -> bytes:
    """Return a response that is a complete stream of events."""
    return SSE_HEAD + chunked(*frames)


def whole(body: bytes, *, status: bytes = b"200 OK", headers: bytes = b"Content-Type: application/json\r\n") -> bytes:
    """Return a response with this body, which may be no JSON."""
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def data(value: Any) -> bytes:
    """Return an event with this value, or with these bytes."""
    return b"data: %b\n\n" % (value if isinstance(value, bytes) else json.dumps(value).encode())


def chunk(delta: Any, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk of a chat completion with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], **fields}


def completion(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a chat completion with one choice."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "c1", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice], **fields}


def values_of(body: bytes) -> list[Any]:
    """Return the values of a stream's events, without `[DONE]`."""
    frames = [frame for frame in body.split(b"\n\n") if frame.startswith(b"data: ") and frame != DONE.strip()]
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def deltas_of(body: bytes) -> str:
    """Return the text of a stream."""
    choices = [choice for value in values_of(body) for choice in value.get("choices") or ()]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


HELLO = (
    data(chunk({"role": "assistant", "content": ""})),
    data(chunk({"content": "Hel"})),
    data(chunk({"content": "lo"})),
)
STOP = data(chunk({}, "stop"))
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
Pair = tuple[Served, WireUpstream]


@asynccontextmanager
async def before_raw(
    tmp_path: Path,
    policy: str = BOTH_CACHES,
    *,
    adapter: str = "openai",
    server: dict[str, Any] | None = None,
    **backend: Any,
) -> AsyncIterator[Pair]:
    """A gateway, and the server behind it. `backend` has more settings of the backend."""
    async with wire_upstream() as raw:
        url = raw.url if adapter in ("openai", "anthropic") else raw.url.removesuffix("/v1")
        config = config_of(tmp_path, {"main": {"adapter": adapter, "url": url, **backend}}, server=server or {})
        async with gateway_of(config, policy) as served:
            yield served, raw


def scripted(raw: WireUpstream, answers: Iterable[bytes]) -> None:
    """Answer the requests with these responses in order, the last one again and again."""
    rest = list(answers)

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(rest.pop(0) if len(rest) > 1 else rest[0])

    raw.script = script


def cut(raw: WireUpstream, answer: bytes) -> None:
    """Answer each request with these bytes, and close the connection."""

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(answer)
        await wire.close()

    raw.script = script


async def message(served: Served, text: str = "hi", **fields: Any) -> Answer:
    """Ask as a client of Anthropic's protocol does."""
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": text}], **fields}
    return await served.post("/v1/messages", body, {"anthropic-version": "2023-06-01"})


def is_hit(answer: Answer) -> bool:
    return "; hit" in answer.cache_status
