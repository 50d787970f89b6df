"""An answer is complete at its end marker. The official clients leave there, and the end of the body comes later."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.cache import flight
from gateway.dialects.sse import SSEParser
from gateway.messages import Event
from gateway.upstream import response_reader
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, aboard, config_of, gateway_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, connected, wire_upstream
from tests.http_server.conftest import openai_client
from tests.http_server.test_anthropic_client import client_of as anthropic_client
from tests.http_server.test_live_streams import DONE, END, STREAM, TOKENS, USAGE, asked, chunked, token

LATE_S = [0.002, 0.02, 0.5]
NEVER = math.inf
FINISH = token("", "stop")
CHAT = [*TOKENS[:3], FINISH, USAGE, DONE]
TEXT = "word 0 word 1 word 2 "
MODEL = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None}


def typed(kind: str, **fields: Any) -> Event:
    return Event(json.dumps({"type": kind, **fields}).encode(), kind)


MESSAGE = [
    typed("message_start", message={**MODEL, "stop_sequence": None, "usage": {"input_tokens": 4, "output_tokens": 1}}),
    typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    typed("content_block_delta", index=0, delta={"type": "text_delta", "text": TEXT}),
    typed("content_block_stop", index=0),
    typed("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 5}),
    typed("message_stop"),
]
ITEM = {
    "type": "message", "id": "i", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
}  # fmt: skip
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [ITEM],
    "usage": {"input_tokens": 4, "output_tokens": 5, "total_tokens": 9}, "parallel_tool_calls": True, "tools": [],
    "tool_choice": "auto",
}  # fmt: skip
RESPONSES = [
    typed("response.created", sequence_number=0, response={**RESPONSE, "status": "in_progress", "output": []}),
    typed("response.output_text.delta", sequence_number=1, item_id="i", output_index=0, content_index=0, delta=TEXT),
    typed("response.completed", sequence_number=2, response=RESPONSE),
]
BY_DIALECT = {"openai": CHAT, "anthropic": MESSAGE, "responses": RESPONSES}


@dataclass
class Endpoint:
    """Sends the events, and the end of the body `late_s` seconds after them. `wires`: its connections."""

    events: Sequence[Event] = ()
    late_s: float = 0.0
    url: str = ""
    calls: int = 0
    ended: int = 0
    wires: set[int] = field(default_factory=set)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # the gateway has closed a connection

    async def script(self, wire: Wire, _: Message) -> None:
        self.calls += 1
        self.wires.add(id(wire))
        await wire.send(STREAM + b"".join(chunked(event.frame()) for event in self.events))
        if self.late_s == NEVER:
            await wire.rest()
            self.left.set()
        else:
            await asyncio.sleep(self.late_s)
            await wire.send(END)
            self.ended += 1


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with wire_upstream() as wires:
        endpoint = Endpoint(url=wires.url)
        wires.script = endpoint.script
        yield endpoint


Ask = Callable[[Served], Any]


async def by_openai(served: Served) -> str:
    async with openai_client(served) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Tell me a story"}], stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


async def by_anthropic(served: Served) -> str:
    async with anthropic_client(served) as client:
        stream = await client.messages.create(
            model="c", max_tokens=64, messages=[{"role": "user", "content": "Tell me a story"}], stream=True
        )
        said = ""
        async for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                said += event.delta.text
            if event.type == "message_stop":
                await stream.close()
                break
        return said


async def by_responses(served: Served) -> str:
    async with openai_client(served) as client:
        stream = await client.responses.create(model="m", input="Tell me a story", stream=True)
        said = ""
        async for event in stream:
            if event.type == "response.output_text.delta":
                said += event.delta
            if event.type == "response.completed":
                await stream.close()
                break
        return said


ASKS: dict[str, Ask] = {"openai": by_openai, "anthropic": by_anthropic, "responses": by_responses}
CELLS = [  # the dialect of the client, and of the backend
    ("openai", "openai"),
    ("anthropic", "anthropic"),
    ("responses", "responses"),
    ("openai", "anthropic"),
    ("anthropic", "openai"),
]


EVERY_STEP = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}}
    route: {light: light, large: large, escalate_above: 0.5, latency_budget: 100s}
    limits: [{tokens: 10000/min, per: tenant}]
    record: on
"""


def gateway_before(
    endpoint: Endpoint, tmp_path: Path, speaks: str, policy: str = EXACT_CACHE, client: str = "own", **backend: Any
) -> Any:
    adapter = "anthropic" if speaks == "anthropic" else "openai"
    backend |= {"adapter": adapter, "url": endpoint.url, "timeouts": {"idle": "120s"}}
    if client == "aiohttp":
        backend["client"] = "aiohttp"
    endpoint.events = BY_DIALECT[speaks]
    return gateway_of(config_of(tmp_path, {"main": backend}), policy)


def stored(served: Served) -> float:
    return served.gateway.parts.telemetry.admissions.values.get(("default", "stored"), 0)


FIVE = [
    *(("own", "openai", "openai", late_s) for late_s in [*LATE_S, NEVER]),
    *(("own", *cell, NEVER) for cell in CELLS[1:]),
    *(("own", *cell, 0.02) for cell in CELLS[1:]),
    *(("aiohttp", *cell, NEVER) for cell in CELLS),
    ("aiohttp", "openai", "openai", 0.02),
]


@pytest.mark.parametrize(("client", "asks", "speaks", "late_s"), FIVE)
async def test_five_equal_questions_of_an_official_client_are_one_call(
    endpoint: Endpoint, tmp_path: Path, client: str, asks: str, speaks: str, late_s: float
) -> None:
    endpoint.late_s = late_s
    async with gateway_before(endpoint, tmp_path, speaks, client=client) as served:
        said = [await ASKS[asks](served) for _ in range(5)]
    assert said == [TEXT] * 5
    assert endpoint.calls == 1


@pytest.mark.parametrize("asks", ["openai", "anthropic"])
@pytest.mark.parametrize("server", ["plain", "aiohttp"])
async def test_a_route_with_every_step_completes_an_answer_at_its_marker(
    endpoint: Endpoint, tmp_path: Path, asks: str, server: str
) -> None:
    """Tiers, a budget, limits, the similarity cache and a traffic log watch the same stream."""
    endpoint.late_s, endpoint.events = NEVER, CHAT
    backend = {"adapter": "openai", "url": endpoint.url, "timeouts": {"idle": "120s"}, "retries": {"attempts": 3}}
    async with gateway_of(config_of(tmp_path, {"light": backend, "large": backend}), EVERY_STEP) as served:
        served.gateway.data_port._connections.accepts_plain = server == "plain"
        said = [await ASKS[asks](served) for _ in range(5)]
        await until(lambda: served.gateway.parts.telemetry.requests.total() == 5)
        assert stored(served) == 1
        assert not served.gateway.parts.flights
    assert said == [TEXT] * 5
    assert endpoint.calls == 1


@pytest.mark.parametrize("late_s", LATE_S)
@pytest.mark.parametrize("client", ["own", "aiohttp"])
@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE], ids=["uncached", "cached"])
async def test_the_connection_to_the_backend_is_used_again(
    endpoint: Endpoint, tmp_path: Path, policy: str, late_s: float, client: str
) -> None:
    endpoint.late_s = late_s
    async with gateway_before(endpoint, tmp_path, "openai", policy, client) as served:
        for number, question in enumerate("abc", 1):
            async with connected(served.url) as wire:
                await wire.send(asked(question))
                await until_done(wire)
            await until(lambda number=number: endpoint.ended == number)
            await served.get("/healthz")  # the gateway has read what came before
    assert (endpoint.calls, len(endpoint.wires)) == (3, 1)


async def until_done(wire: Wire, marker: bytes = b"[DONE]") -> None:
    """Read up to the end marker."""
    async for chunk in wire.chunks(await wire.head()):
        if marker in chunk:
            return
    raise AssertionError("no end marker")


@pytest.mark.parametrize("client", ["own", "aiohttp"])
@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE], ids=["uncached", "cached"])
async def test_a_body_without_end_costs_its_connection_and_no_answer(
    endpoint: Endpoint, tmp_path: Path, policy: str, client: str
) -> None:
    """Whoever waits for the end of the body gets it, clean and in time, although `timeouts.idle` is long."""
    endpoint.late_s = NEVER
    async with gateway_before(endpoint, tmp_path, "openai", policy, client) as served, connected(served.url) as wire:
        await wire.send(asked())
        got = (await wire.message()).body
        assert SSEParser().feed(got)[-1] == DONE
        await asyncio.wait_for(endpoint.left.wait(), 120)
        assert stored(served) == (1 if policy is EXACT_CACHE else 0)


LIMITED = EXACT_CACHE + "    limits: [{tokens: 1000/min, per: tenant}]\n    record: on\n"


async def test_an_answer_whose_client_left_at_the_marker_counts_like_any_other(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """In the metrics of the backend, in the limits, which take the usage that it reports, and in the traffic log."""
    endpoint.late_s = NEVER
    async with gateway_before(endpoint, tmp_path, "openai", LIMITED) as served:
        parts = served.gateway.parts
        assert await by_openai(served) == TEXT
        await until(lambda: parts.telemetry.requests.total() == 1)
        assert stored(served) == 1
        assert parts.telemetry.limits_tokens.total() == 3
        assert sum(parts.telemetry.backend_seconds.counts["main",]) == 1


async def test_all_who_wait_for_one_call_may_leave_at_the_marker(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.late_s = NEVER
    async with gateway_before(endpoint, tmp_path, "openai") as served:
        said = await asyncio.gather(*[by_openai(served) for _ in range(4)])
        assert said == [TEXT] * 4
        assert await by_openai(served) == TEXT
    assert endpoint.calls == 1


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_a_whole_answer_is_complete_at_the_marker_of_its_stream(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, joins: bool
) -> None:
    monkeypatch.setattr(response_reader, "END_OF_BODY_S", 120.0)
    endpoint.late_s = NEVER
    async with gateway_before(endpoint, tmp_path, "openai", client=client) as served, connected(served.url) as wire:
        if joins:
            await wire.send(asked())
            await wire.head()
        answer = await served.chat("Tell me a story")
        assert answer.text == TEXT
        assert stored(served) == (0 if joins else 1)
    assert endpoint.calls == 1


@dataclass
class Halting(Endpoint):
    """Sends the end marker only after `goes_on` is set; `halts_before` is the number of events that it holds back."""

    halts_before: int = 1
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def script(self, wire: Wire, _: Message) -> None:
        self.calls += 1
        held = [chunked(event.frame()) for event in self.events[-self.halts_before :]]
        await wire.send(STREAM + b"".join(chunked(event.frame()) for event in self.events[: -self.halts_before]))
        left = asyncio.create_task(wire.rest())
        goes_on = asyncio.create_task(self.goes_on.wait())
        await asyncio.wait((left, goes_on), return_when=asyncio.FIRST_COMPLETED)
        goes_on.cancel()
        if left.done():
            self.left.set()
            return
        await wire.send(b"".join(held) + END)
        await left


@pytest.fixture
async def halting() -> AsyncIterator[Halting]:
    async with wire_upstream() as wires:
        endpoint = Halting(url=wires.url)
        wires.script = endpoint.script
        yield endpoint


@pytest.mark.parametrize("held", [1, 2], ids=["the marker", "usage and marker"])
async def test_a_client_that_leaves_at_the_finish_reason_leaves_time_for_the_end_marker(
    halting: Halting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(flight, "END_OF_BODY_S", 120.0)
    halting.halts_before = held
    async with gateway_before(halting, tmp_path, "openai") as served:
        async with connected(served.url) as wire:
            await wire.send(asked())
            await until_done(wire, b'"stop"')
        await until(lambda: aboard(served) == 0)
        halting.goes_on.set()
        await until(lambda: stored(served) == 1)
        async with connected(served.url) as wire:
            await wire.send(asked())
            await until_done(wire)
    assert halting.calls == 1


async def test_without_an_end_marker_it_is_cancelled_after_that_time(
    halting: Halting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "END_OF_BODY_S", 0.01)
    async with gateway_before(halting, tmp_path, "openai") as served:
        async with connected(served.url) as wire:
            await wire.send(asked())
            await until_done(wire, b'"stop"')
        await asyncio.wait_for(halting.left.wait(), 120)
        await until(lambda: not served.gateway.parts.flights)
        assert stored(served) == 0


@pytest.mark.parametrize("speaks", ["openai", "anthropic", "responses"])
async def test_a_client_that_leaves_before_the_model_has_finished_cancels_the_call_at_once(
    halting: Halting, tmp_path: Path, speaks: str
) -> None:
    halting.halts_before = len(BY_DIALECT[speaks]) - 2
    path = {"openai": "chat/completions", "anthropic": "messages", "responses": "responses"}[speaks]
    body: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a"}], "input": "a"}
    body |= {"max_tokens": 9} if speaks == "anthropic" else {}
    body.pop("messages" if speaks == "responses" else "input")
    async with gateway_before(halting, tmp_path, speaks) as served:
        async with served.session.post(f"{served.url}/v1/{path}", json=body) as response:
            assert await response.content.readany()
            response.close()
        await asyncio.wait_for(halting.left.wait(), 120)
        await until(lambda: not served.gateway.parts.flights)
        assert stored(served) == 0


TOOLS = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 10m}, share: global, mcp: {tools: {search: {ttl: 5m, read_only: on}}}}
    route: {backend: main}
"""
RESULT = Event(b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"found"}]}}', "message")
CALL_TOOL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"query":"x"}}}'


@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_a_client_of_an_mcp_server_may_leave_at_the_result(
    endpoint: Endpoint, tmp_path: Path, client: str
) -> None:
    """As the official client does. The stream is relayed byte for byte."""
    endpoint.events, endpoint.late_s = [RESULT], NEVER
    config = config_of(tmp_path, {"main": {"adapter": "mcp", "url": endpoint.url, "client": client}})
    async with gateway_of(config, TOOLS) as served:
        for _ in range(3):
            async with connected(served.url) as wire:
                head = b"POST /mcp HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer ann\r\n"
                head += b"Accept: application/json, text/event-stream\r\n"
                await wire.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(CALL_TOOL), CALL_TOOL))
                await until_done(wire, b"found")
            await until(lambda: not served.gateway.parts.flights)
        assert stored(served) == 1
    assert endpoint.calls == 1
