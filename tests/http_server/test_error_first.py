"""A stream whose first event is an error is a failed attempt: no byte goes to the client, and the next tier answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai.dialect import OpenAI
from gateway.messages import Event
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import Message, Wire, WireUpstream, connected, wire_upstream
from tests.http_server.test_end_markers import RESPONSES, stored, typed
from tests.http_server.test_large_events import BOTH, CLIENTS, events_of, gateway_before, request_of, streaming
from tests.http_server.test_live_streams import END, STREAM, TOKENS, asked, chunked

FALLBACK = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {light: failing, large: good, escalate_above: 1}
"""


@pytest.fixture
async def endpoint() -> AsyncIterator[WireUpstream]:
    async with wire_upstream() as endpoint:
        yield endpoint


def said(value: Any, name: str | None = None) -> list[Event]:
    return [Event(value if isinstance(value, bytes) else json.dumps(value).encode(), name)]


async def answer_to(url: str, request: bytes) -> Message:
    async with connected(url) as wire:
        await wire.send(request)
        return await wire.message()


OPENAI = {"error": {"message": "too many", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
CHATS: list[tuple[list[Event], int, str]] = [
    (said(OPENAI), 429, "too many"),
    (said({"error": {"message": "no", "code": 503}}), 503, "no"),
    (said({"error": {"message": "no", "code": "402"}}), 402, "no"),
    (said({"error": "out of memory"}), 502, "out of memory"),
    (said({"error": {"message": "busy", "status": "UNAVAILABLE"}}), 503, "busy"),
    (said([{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}]), 400, "bad"),
    (said({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}), 400, "too long"),
    (said({"message": "gone", "status": 404}, "error"), 404, "gone"),
    (said(b"it broke", "error"), 502, "it broke"),
    (said({"error": {"message": "odd", "code": 200}}), 502, "odd"),
    (said({"id": "x", "choices": [], "error": {"message": "mid", "code": 500}}), 500, "mid"),
]


@CLIENTS
@pytest.mark.parametrize(("events", "status", "message"), CHATS)
async def test_the_client_gets_the_status_of_the_error(
    endpoint: WireUpstream, tmp_path: Path, client: str, events: Sequence[Event], status: int, message: str
) -> None:
    streaming(endpoint, events)
    async with gateway_before(endpoint, tmp_path, EXACT_CACHE, client=client) as served:
        answer = await answer_to(served.url, asked())
        assert answer.status == status
        assert answer.all("content-type") == ["application/json"]
        assert json.loads(answer.body)["error"]["message"] == message
        assert stored(served) == 0


ANTHROPIC = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
FAILED = {
    "id": "r",
    "object": "response",
    "status": "failed",
    "error": {"code": "rate_limit_exceeded", "message": "no"},
}
DIALECTS: list[tuple[str, str, list[Event], int]] = [
    ("anthropic", "anthropic", said(ANTHROPIC, "error"), 529),
    ("openai", "anthropic", said(ANTHROPIC, "error"), 529),
    ("anthropic", "openai", said(OPENAI), 429),
    ("responses", "openai", [typed("response.failed", sequence_number=0, response=FAILED)], 429),
    ("responses", "openai", [RESPONSES[0], typed("response.failed", sequence_number=1, response=FAILED)], 429),
    ("responses", "openai", [typed("error", code="server_error", message="no", param=None, sequence_number=0)], 500),
]


@BOTH
@pytest.mark.parametrize(("speaks", "adapter", "events", "status"), DIALECTS)
async def test_the_error_is_in_the_dialect_of_the_client(
    endpoint: WireUpstream, tmp_path: Path, policy: str, speaks: str, adapter: str, events: Sequence[Event], status: int
) -> None:
    streaming(endpoint, events, whole=True)
    async with gateway_before(endpoint, tmp_path, policy, adapter) as served:
        answer = await answer_to(served.url, request_of(speaks))
        body = json.loads(answer.body)
        assert answer.status == status
        assert body["error"]["message"] in ("Overloaded", "too many", "no")
        assert ("type" in body) is (speaks == "anthropic")


@CLIENTS
@pytest.mark.parametrize("event", [said({"error": {"message": "no", "code": 503}}), said(b"it broke", "error")])
async def test_the_next_backend_answers(
    endpoint: WireUpstream, upstream: Upstream, tmp_path: Path, client: str, event: list[Event]
) -> None:
    streaming(endpoint, event)
    failing = {"adapter": "openai", "url": endpoint.url, "client": client}
    config = config_of(tmp_path, {"failing": failing, "good": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, FALLBACK) as served:
        answer = await answer_to(served.url, asked())
        assert answer.status == 200
        assert b"[DONE]" in answer.body
        assert b"error" not in answer.body
        (endpoint_,) = served.gateway.parts.pools["failing"].endpoints
        assert endpoint_.breaker.failures > 0
        assert stored(served) == 1


@BOTH
async def test_an_error_after_the_first_event_ends_the_stream_as_before(
    endpoint: WireUpstream, tmp_path: Path, policy: str
) -> None:
    events = [TOKENS[0], *said(OPENAI)]
    streaming(endpoint, events)
    async with gateway_before(endpoint, tmp_path, policy) as served, connected(served.url) as wire:
        await wire.send(asked())
        assert await events_of(wire) == events


@pytest.mark.parametrize("error", [None, {}, "", {"code": 0, "message": ""}])
def test_an_empty_error_is_none(error: Any) -> None:
    chunk = {**json.loads(TOKENS[0].data), "error": error}
    assert OpenAI().error_answer(Event(json.dumps(chunk).encode())) is None


@BOTH
@CLIENTS
@pytest.mark.parametrize(
    "keeps", [b": processing\n\n", b": processing\n", b"data: \n\n", b': {"error":{"message":"the queue is long"}}\n\n']
)
async def test_a_comment_before_the_first_event_does_not_hold_back_the_head(
    endpoint: WireUpstream, tmp_path: Path, policy: str, client: str, keeps: bytes
) -> None:
    gate = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM + chunked(keeps))
        await gate.wait()
        await wire.send(chunked(TOKENS[0].frame() + b"data: [DONE]\n\n") + END)

    endpoint.script = script
    async with gateway_before(endpoint, tmp_path, policy, client=client) as served, connected(served.url) as wire:
        await wire.send(asked())
        head = await wire.head()
        assert head.status == 200
        gate.set()
        assert TOKENS[0].data in b"".join([chunk async for chunk in wire.chunks(head)])


@BOTH
async def test_a_stream_that_ends_before_its_first_event_is_a_failed_attempt(
    endpoint: WireUpstream, tmp_path: Path, policy: str
) -> None:
    streaming(endpoint, [])
    async with gateway_before(endpoint, tmp_path, policy) as served:
        assert (await answer_to(served.url, asked())).status == 502
    assert len(endpoint.requests) == 2, "it was tried again"


async def test_the_connection_of_an_error_is_used_again(endpoint: WireUpstream, tmp_path: Path) -> None:
    wires = set()

    async def script(wire: Wire, _: Message) -> None:
        wires.add(wire)
        await wire.send(STREAM + chunked(said(OPENAI)[0].frame()))
        await asyncio.sleep(0)
        await wire.send(END)

    endpoint.script = script
    async with gateway_before(endpoint, tmp_path, NO_CACHE) as served:
        assert (await answer_to(served.url, asked())).status == 429
        await served.get("/healthz")
        pool = served.gateway.parts.pools["main"].endpoints[0].backend._client.client.pool
        assert pool.open == 1
