"""WebSockets on /v1/responses: each message is a call, with the limits, caches, metrics and log of the HTTP form."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType, web

from gateway.config.key_format import digest_of
from gateway.dialects.openai.responses_answers import events_of
from gateway.http_server import responses_socket
from gateway.observability.access_log import AccessLog
from tests.fixtures.gateways import BOTH_CACHES, EXACT_CACHE, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.responses import response_to, text_item
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

TIERED = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {light: light, large: large, escalate_above: 0.5, fallback: []}
"""
LIMITED = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    limits: {requests: 2/h}
    route: {backend: main}
"""


class Socket:
    """A client's connection."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, **message: Any) -> None:
        await self.socket.send_json(message)

    async def create(self, given: Any = "hello", **fields: Any) -> None:
        await self.send(type="response.create", model="m", input=given, **fields)

    async def event(self) -> dict[str, Any]:
        event: dict[str, Any] = await self.socket.receive_json()
        return event

    async def response(self) -> dict[str, Any]:
        """Return the next response, or the error in its place."""
        while True:
            event = await self.event()
            if event["type"] == "error":
                return event
            if event["type"] in ("response.completed", "response.failed", "response.incomplete"):
                return event["response"]

    async def ask(self, given: Any = "hello", **fields: Any) -> dict[str, Any]:
        await self.create(given, **fields)
        return await self.response()


@asynccontextmanager
async def opened(served: Served, **headers: str) -> AsyncIterator[Socket]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.session.ws_connect(f"{served.url}/v1/responses", headers=named, max_msg_size=2**24) as socket:
        yield Socket(socket)


@pytest.fixture
def responses(upstream: Upstream) -> Upstream:
    """An endpoint that streams responses, each with an id of its own. It has no WebSocket."""
    return answering(upstream)


def answering(upstream: Upstream) -> Upstream:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path != "/v1/responses" or request.method != "POST":
            return web.json_response({"error": {"message": "no such path"}}, status=404)
        number = len(upstream.calls)
        item = text_item(f"{upstream.name} {number}", id=f"msg_{upstream.name}_{number}")
        whole = response_to(call, item, id=f"resp_{upstream.name}_{number}")
        return await stream_of(request, whole)

    upstream.answer = answer
    return upstream


@asynccontextmanager
async def before(upstream: Upstream, folder: Path, policy: str = EXACT_CACHE, **more: Any) -> AsyncIterator[Served]:
    backend = {"adapter": "openai", "url": upstream.url, **more.pop("backend", {})}
    async with gateway_of(config_of(folder, {"main": backend}, **more), policy) as served:
        yield served


async def stream_of(
    request: web.Request, whole: dict[str, Any], *, cut: bool = False, count: int | None = None
) -> web.StreamResponse:
    """Stream a response, or its first `count` events. With `cut`, the connection breaks in the middle."""
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    events = events_of(orjson.dumps(whole))
    for event in events[: 3 if cut else count]:
        await out.write(event.frame())
    if cut and request.transport is not None:
        request.transport.close()
    return out


def text_in(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


async def test_a_message_is_a_call_of_the_http_form(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served, opened(served, authorization="Bearer k") as socket:
        await socket.create("hello", instructions="Be brief.", generate=True)
        kinds = []
        while not kinds or kinds[-1] != "response.completed":
            kinds.append((await socket.event())["type"])
    assert kinds[:2] == ["response.created", "response.in_progress"] and "response.output_text.delta" in kinds
    (call,) = responses.calls
    assert (call.method, call.path, call.headers["Authorization"]) == ("POST", "/v1/responses", "Bearer k")
    assert call.json == {"model": "m", "input": "hello", "instructions": "Be brief.", "stream": True}
    assert not any(name.lower().startswith("sec-websocket") or name.lower() == "upgrade" for name in call.headers)


async def test_messages_share_the_cache_with_the_http_form(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served, opened(served, openai_beta="responses_websockets=1") as socket:
        texts = [text_in(await socket.ask("hello")) for _ in range(2)]
        whole = await served.post("/v1/responses", {"model": "m", "input": "hello"})
        assert whole.cache_status.startswith("nearhit; hit; detail=exact")
        await served.post("/v1/responses", {"model": "m", "input": "hi"})
        texts += [text_in(whole.json), text_in(await socket.ask("hi"))]
    assert texts == ["upstream 1"] * 3 + ["upstream 2"]
    assert len(responses.calls) == 2


async def test_messages_are_matched_by_meaning_where_the_http_form_is(responses: Upstream, tmp_path: Path) -> None:
    policy = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.5")
    async with before(responses, tmp_path, policy) as served, opened(served) as socket:
        first = await socket.ask("What is the capital of Italy?")
        await served.settle()
        second = await socket.ask("What is the capital city of Italy?")
    assert text_in(first) == text_in(second) and len(responses.calls) == 1


async def test_messages_are_counted_and_limited(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path, LIMITED) as served, opened(served) as socket:
        for question in ("one", "two", "one"):
            assert "output" in await socket.ask(question)
        refused = await socket.ask("three")
        assert (refused["type"], refused["status"]) == ("error", 429)
        assert refused["error"]["message"] and int(refused["headers"]["retry-after"]) > 0
        assert "output" in await socket.ask("two")  # hits do not count
        counted = served.gateway.parts.telemetry.requests.values
        found = {labels[1:]: count for labels, count in counted.items() if labels[1] == "openai-responses"}
    assert found[("openai-responses", "miss", "200")] == 2 and found[("openai-responses", "exact", "200")] == 2
    assert sum(count for labels, count in found.items() if labels[2] == "429") == 1


async def test_messages_are_routed_by_their_complexity(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    sections = {each.name: {"adapter": "openai", "url": answering(each).url} for each in (light, large)}
    hard = (
        "Explain step by step why this function deadlocks, compare three designs that avoid it, and prove that yours "
        "does not:\n```\ndef f(a, b):\n    with a, b: pass\n```\nThe answer must be a table of at most 300 words."
    )
    async with gateway_of(config_of(tmp_path, sections), TIERED) as served, opened(served) as socket:
        first = await socket.ask("What is the capital of Italy?")
        assert text_in(first) == "light 1"
        assert text_in(await socket.ask(hard)) == "large 1"
        assert text_in(await socket.ask(hard + " ", previous_response_id=first["id"])) == "light 2"


async def test_an_error_of_the_backend_is_an_error_event_with_its_status(upstream: Upstream, tmp_path: Path) -> None:
    error = {"message": "Previous response with id 'resp_9' not found.", "type": "invalid_request_error"}
    error |= {"param": "previous_response_id", "code": "previous_response_not_found"}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": error}, status=400)

    upstream.answer = answer
    async with before(upstream, tmp_path) as served, opened(served) as socket:
        for _ in range(2):  # the connection goes on
            found = await socket.ask(previous_response_id="resp_9")
            assert (found["type"], found["status"], found["error"]) == ("error", 400, error)


async def test_a_broken_stream_ends_with_an_error_event_that_has_a_status(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream_of(request, response_to(call), cut=True)

    upstream.answer = answer
    async with before(upstream, tmp_path) as served, opened(served) as socket:
        for _ in range(2):
            found = await socket.ask()
            assert (found["type"], found["status"], found["error"]["type"]) == ("error", 502, "upstream_error")


HALF, DEEP = b'"half \\ud83d"', b"[" * 300 + b"]" * 300
ODD_ERRORS = {
    "half a character": (b'{"type": "error", "error": {"message": %b}}' % HALF, "half \ufffd"),
    "a deep value": (b'{"type": "error", "error": {"message": "no", "details": %b}}' % DEEP, "no"),
    "no JSON": (b'{"type": "error", broken', '{"type": "error", broken'),
    "no status": (b'{"type": "error", "status": "bad", "error": {"message": "no"}}', "no"),
}


@pytest.mark.parametrize("name", ODD_ERRORS)
async def test_an_error_in_an_odd_form_comes_with_its_message(upstream: Upstream, tmp_path: Path, name: str) -> None:
    data, message = ODD_ERRORS[name]

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["input"] == "whole":
            return web.Response(status=400, body=data, content_type="application/json")
        out = await stream_of(request, response_to(call, text_item("x", id="msg_1"), id="resp_1"), count=4)
        await out.write(b"event: error\ndata: " + data + b"\n\n")
        return out

    upstream.answer = answer
    async with before(upstream, tmp_path, NO_CACHE) as served, opened(served) as socket:
        error = await socket.ask("stream")
        assert (error["status"], error["error"]["message"]) == (502, message)
        assert (await socket.ask("whole"))["status"] == 400


async def test_a_conversation_goes_on_after_half_a_character(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        item = json.dumps(call["input"]).encode() if isinstance(call["input"], str) else b'"well"'
        whole = response_to(call, text_item("TEXT", id="msg_1"), id=f"resp_{len(upstream.calls)}")
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for event in events_of(orjson.dumps(whole)):
            await out.write(event.frame().replace(b'"TEXT"', HALF if item == b'"half"' else item))
        return out

    upstream.answer = answer
    async with before(upstream, tmp_path, NO_CACHE) as served, opened(served) as socket:
        first = await socket.ask("half", store=False)
        assert text_in(await socket.ask("go on", store=False, previous_response_id=first["id"])) == "well"
    said = upstream.calls[-1].json["input"]
    assert [each["content"] for each in said][1][0]["text"] == "half \ufffd"


async def test_events_in_the_forms_of_other_servers_come_in_frames(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for event in events_of(orjson.dumps(response_to(call))):  # no names, more spaces, comments, an end mark
            await out.write(b": ping\n\ndata:   " + event.data + b"\n\n")
        await out.write(b"data: [DONE]\n\n")
        return out

    upstream.answer = answer
    async with before(upstream, tmp_path) as served, opened(served) as socket:
        for _ in range(2):
            assert text_in(await socket.ask(stream_id="a")) == "upstream answers: hello"
        given = await socket.ask("go on", store=False)
        await socket.ask("more", store=False, previous_response_id=given["id"])
    assert [len(call.json["input"]) for call in upstream.calls[2:]] == [3]


BAD: dict[str, tuple[str | bytes, str]] = {
    "no JSON": ("hello", "invalid_json"),
    "a list": ("[1]", "invalid_json"),
    "the same key twice": ('{"type": "response.create", "model": "m", "model": "n"}', "invalid_json"),
    "another type": ('{"type": "response.steer"}', "unknown_message_type"),
    "a type that is no text": ('{"type": ["response.create"]}', "unknown_message_type"),
    "no type": ('{"model": "m"}', "unknown_message_type"),
    "a binary frame": (b'{"type": "response.create"}', "invalid_message"),
    "a lane without a name": ('{"type": "response.create", "stream_id": ""}', "invalid_stream_id"),
}


@pytest.mark.parametrize(("frame", "code"), BAD.values(), ids=BAD)
async def test_a_message_that_cannot_be_read_is_refused_and_the_connection_goes_on(
    responses: Upstream, tmp_path: Path, frame: str | bytes, code: str
) -> None:
    async with before(responses, tmp_path) as served, opened(served) as socket:
        await (socket.socket.send_str(frame) if isinstance(frame, str) else socket.socket.send_bytes(frame))
        found = await socket.event()
        assert (found["type"], found["status"], found["error"]["code"]) == ("error", 400, code)
        assert found["error"]["message"]
        assert "output" in await socket.ask()


async def test_a_call_that_the_dialect_refuses_says_what_was_expected(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served, opened(served) as socket:
        found = await socket.ask(7)
        assert (found["status"], found["error"]["param"]) == (400, "input")
        assert not responses.calls


async def test_a_warm_up_calls_no_backend_and_the_next_call_continues_it(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served, opened(served) as socket:
        given = [{"type": "message", "role": "developer", "content": "Be brief."}]
        warm = await socket.ask(given, generate=False, store=False)
        assert (warm["status"], warm["output"], warm["usage"]["total_tokens"]) == ("completed", [], 0)
        assert not responses.calls
        await socket.ask("hello", previous_response_id=warm["id"], store=False)
    (call,) = responses.calls
    assert "previous_response_id" not in call.json and "generate" not in call.json
    assert call.json["input"] == [*given, {"type": "message", "role": "user", "content": "hello"}]


async def test_a_response_that_no_backend_stores_is_continued_within_the_connection(
    upstream: Upstream, tmp_path: Path
) -> None:
    call_item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
    hidden, open_ = {"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "reasoning", "id": "rs_2"}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        items = [{**hidden}, {**open_, "summary": [], "encrypted_content": "e"}, call_item]
        number = len(upstream.calls)
        last = text_item("done", id=f"msg_{number}")
        return await stream_of(request, response_to(call, *(items if number == 1 else [last]), id=f"resp_{number}"))

    upstream.answer = answer
    async with before(upstream, tmp_path) as served, opened(served) as socket:
        first = await socket.ask("hello", store=False)
        result = {"type": "function_call_output", "call_id": "c1", "output": "42"}
        second = await socket.ask([result], store=False, previous_response_id=first["id"])
        await socket.ask("thanks", store=False, previous_response_id=second["id"])
        forked = await socket.ask("or else", store=False, previous_response_id=first["id"])
        assert forked["status"] == "completed"
    asked = {"type": "message", "role": "user", "content": "hello"}
    carried = {"type": "reasoning", "summary": [], "encrypted_content": "e"}
    called = {key: value for key, value in call_item.items() if key != "id"}
    history = [asked, carried, called]
    said = [call.json["input"] for call in upstream.calls]
    assert said[0] == "hello"
    assert said[1] == [*history, result]
    assert said[2][:4] == said[1]
    assert [(item["role"], item.get("id")) for item in said[2][4:]] == [("assistant", None), ("user", None)]
    assert said[3] == [*history, {"type": "message", "role": "user", "content": "or else"}]
    assert not any("previous_response_id" in call.json for call in upstream.calls)


async def test_a_stored_response_is_continued_by_its_id(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served, opened(served) as socket:
        first = await socket.ask("hello")
        await socket.ask("go on", previous_response_id=first["id"])
    assert responses.calls[1].json["previous_response_id"] == first["id"]
    assert responses.calls[1].json["input"] == "go on"


async def test_what_a_connection_remembers_is_bounded(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path, server={"max_body": "4KiB"}) as served, opened(served) as socket:
        first = await socket.ask("a" * 1000, store=False)
        second = await socket.ask("b" * 1000, store=False)
        await socket.ask("x", store=False, previous_response_id=second["id"])
        await socket.ask("x", store=False, previous_response_id=first["id"])
        assert [call.json.get("previous_response_id") for call in responses.calls[2:]] == [None, first["id"]]
        third = await socket.ask("c" * 3500, store=False)
        assert third["status"] in ("completed", 413)


async def test_messages_wait_for_the_call_in_progress_in_their_order(responses: Upstream, tmp_path: Path) -> None:
    responses.gate.clear()
    async with before(responses, tmp_path) as served, opened(served) as socket:
        for question in ("one", "two", "three"):
            await socket.create(question)
        await responses.arrived.wait()
        assert len(responses.calls) == 1
        responses.gate.set()
        assert [text_in(await socket.response()) for _ in range(3)] == ["upstream 1", "upstream 2", "upstream 3"]
    assert [call.json["input"] for call in responses.calls] == ["one", "two", "three"]


async def test_more_messages_than_may_wait_are_refused(
    responses: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "MAX_WAITING", 2)
    responses.gate.clear()
    async with before(responses, tmp_path) as served, opened(served) as socket:
        await socket.create("first")
        await responses.arrived.wait()
        for question in ("one", "two", "three"):
            await socket.create(question)
        found = await socket.event()
        assert (found["status"], found["error"]["code"]) == (429, "too_many_messages")
        responses.gate.set()
        assert [text_in(await socket.response()) for _ in range(3)] == ["upstream 1", "upstream 2", "upstream 3"]


async def test_lanes_have_their_name_in_each_event(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served, opened(served) as socket:
        await socket.create("one", stream_id="planner")
        await socket.create("two", stream_id="critic.1")
        await socket.create("three")
        named = []
        while len([each for each in named if each[0] == "response.completed"]) < 3:
            event = await socket.event()
            named.append((event["type"], event.get("stream_id")))
        await socket.create(7, stream_id="planner")
        assert (await socket.event())["stream_id"] == "planner"
    assert dict.fromkeys(name for _, name in named) == dict.fromkeys(["planner", "critic.1", None])
    assert not any("stream_id" in call.json for call in responses.calls)


async def test_lanes_are_bounded(responses: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_socket, "MAX_STREAMS", 1)
    async with before(responses, tmp_path) as served, opened(served) as socket:
        assert "output" in await socket.ask(stream_id="a")
        found = await socket.ask(stream_id="b")
        assert (found["error"]["code"], found["stream_id"]) == ("websocket_stream_limit_reached", "b")
        assert "output" in await socket.ask(stream_id="a")


@pytest.mark.parametrize("way", ["close", "vanish"])
async def test_a_client_that_leaves_cancels_the_call_upstream(responses: Upstream, tmp_path: Path, way: str) -> None:
    responses.gate.clear()
    async with before(responses, tmp_path, NO_CACHE) as served:
        async with opened(served) as socket:
            await socket.create()
            await responses.arrived.wait()
            if way == "vanish":
                socket.socket._response.connection.transport.abort()
        await responses.left.wait()
        pool = served.gateway.parts.pools["main"]
        await until(lambda: pool.inflight == 0)
        assert responses.cancelled == 1


async def test_a_message_cancels_the_call_in_progress(responses: Upstream, tmp_path: Path) -> None:
    responses.gate.clear()
    async with before(responses, tmp_path, NO_CACHE) as served, opened(served) as socket:
        await socket.create()
        await responses.arrived.wait()
        await socket.send(type="response.cancel")
        assert (await socket.event())["error"]["code"] == "response_cancelled"
        await responses.left.wait()
        responses.gate.set()
        assert "output" in await socket.ask()
        await socket.send(type="response.cancel")  # nothing runs
        await socket.send(type="response.processed", response_id="resp_1")
        assert "output" in await socket.ask()


async def test_a_cancel_reaches_the_call_that_came_just_before_it(responses: Upstream, tmp_path: Path) -> None:
    responses.gate.clear()
    async with before(responses, tmp_path, NO_CACHE) as served, opened(served) as socket:
        await asyncio.gather(socket.create("first"), socket.send(type="response.cancel"), socket.create("second"))
        assert (await socket.event())["error"]["code"] == "response_cancelled"
        responses.gate.set()
        assert "output" in await socket.response()
        assert [call.json["input"] for call in responses.calls] == ["second"]


async def test_a_message_larger_than_max_body_closes_the_connection(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path, server={"max_body": "4KiB"}) as served, opened(served) as socket:
        await socket.create("a" * 8192)
        message = await socket.socket.receive()
        assert (message.type, socket.socket.close_code) == (WSMsgType.CLOSE, 1009)
    assert not responses.calls


async def test_a_connection_ends_after_idleness_and_at_its_age(
    responses: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "IDLE_S", 0.01)
    async with before(responses, tmp_path) as served:
        async with opened(served) as socket:
            message = await socket.socket.receive()
            assert (message.type, socket.socket.close_code) == (WSMsgType.CLOSE, 1000)
        monkeypatch.setattr(responses_socket, "IDLE_S", 60.0)
        responses.gate.clear()
        async with opened(served) as socket:
            await socket.create("one")
            await responses.arrived.wait()
            monkeypatch.setattr(responses_socket, "MAX_AGE_S", 0.0)
            await socket.create("two")
            responses.gate.set()
            assert "output" in await socket.response()
            assert (await socket.event())["error"]["code"] == "websocket_connection_limit_reached"
            assert (await socket.socket.receive()).type is WSMsgType.CLOSE


async def test_an_unknown_key_is_refused_before_the_upgrade(responses: Upstream, tmp_path: Path) -> None:
    auth = {"mode": "keys", "keys": {"acme": [digest_of("sk-good")]}}
    async with before(responses, tmp_path, auth=auth) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with opened(served, authorization="Bearer sk-bad"):
                pass
        assert refused.value.status == 401
        async with opened(served, authorization="Bearer sk-good") as socket:
            assert "output" in await socket.ask()
    assert len(responses.calls) == 1


PAGE = "https://app.example"


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ([], None, True),
        ([], "SELF", True),
        ([], PAGE, False),
        ([], "null", False),
        ([PAGE], PAGE, True),
        ([PAGE], "https://app.example.evil", False),
        (["*"], "https://any.example", True),
    ],
)
async def test_a_page_of_another_site_opens_no_connection(
    responses: Upstream, tmp_path: Path, origins: list[str], origin: str | None, allowed: bool
) -> None:
    async with before(responses, tmp_path, server={"cors": {"origins": origins}}) as served:
        headers = {} if origin is None else {"origin": served.url if origin == "SELF" else origin}
        if allowed:
            async with opened(served, **headers) as socket:
                assert "output" in await socket.ask()
            assert "Origin" not in responses.calls[0].headers
            return
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with opened(served, **headers):
                pass
        assert refused.value.status == 403
    assert not responses.calls


async def test_the_answers_of_one_tenant_serve_no_other(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served:
        texts = []
        for key in ("a", "b", "a"):
            async with opened(served, authorization=f"Bearer {key}") as socket:
                texts.append(text_in(await socket.ask()))
    assert texts == ["upstream 1", "upstream 2", "upstream 1"]


async def test_the_key_of_a_browser_among_the_subprotocols_is_the_key_of_its_calls(
    responses: Upstream, tmp_path: Path
) -> None:
    async with before(responses, tmp_path) as served:
        texts = []
        for key in ("a", "b", "a"):
            offered = ("realtime", f"openai-insecure-api-key.{key}")
            async with served.session.ws_connect(f"{served.url}/v1/responses", protocols=offered) as socket:
                texts.append(text_in(await Socket(socket).ask()))
        async with opened(served, authorization="Bearer b") as other:
            texts.append(text_in(await other.ask()))
    assert texts == ["upstream 1", "upstream 2", "upstream 1", "upstream 2"]
    assert [call.headers["Authorization"] for call in responses.calls if call.method == "POST"] == [
        "Bearer a",
        "Bearer b",
    ]


async def test_a_backend_with_a_setting_gets_the_websocket_itself(tmp_path: Path) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"as it is: {message.data}")
        return socket

    application = web.Application()
    application.router.add_get("/v1/responses", echo)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = Upstream(url="http://{}:{}/v1".format(*runner.addresses[0][:2]))
    try:
        tunnel = {"responses_websocket": "tunnel"}
        async with before(upstream, tmp_path, backend=tunnel) as served, opened(served) as socket:
            await socket.socket.send_str("hello")
            assert await socket.socket.receive_str() == "as it is: hello"
    finally:
        await runner.cleanup()


async def test_a_call_has_the_id_of_its_connection_with_its_number(responses: Upstream, tmp_path: Path) -> None:
    log = io.StringIO()
    access_log = AccessLog(log)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": responses.url}})
    async with gateway_of(config, EXACT_CACHE, access_log=access_log) as served:
        async with opened(served, x_request_id="mine") as socket:
            assert socket.socket._response.headers["x-request-id"] == "mine"
            await socket.ask("one")
            await socket.ask("one")
            assert (await socket.ask(7))["headers"] == {"x-request-id": "mine-3"}
        await until(lambda: access_log.flush() or log.getvalue().count("\n") == 4)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["id"], line["status"], line["verdict"]) for line in lines] == [
        ("mine-1", 200, "miss"),
        ("mine-2", 200, "exact"),
        ("mine-3", 400, "miss"),
        ("mine", 101, "bypass"),
    ]
    assert lines[3]["reason"] == "websocket"


@pytest.mark.parametrize("busy", [False, True])
async def test_the_gateway_s_stop_closes_the_connection_after_the_call_in_progress(
    responses: Upstream, tmp_path: Path, busy: bool
) -> None:
    async with before(responses, tmp_path) as served, opened(served) as socket:
        await socket.ask()
        if busy:
            responses.gate.clear()
            responses.arrived.clear()
            await socket.create("one")
            await socket.create("two")
            await responses.arrived.wait()
        served.gateway.data_port._service.stopping.set()
        responses.gate.set()
        if busy:
            assert text_in(await socket.response()) == "upstream 2"
        message = await socket.socket.receive()
        assert (message.type, socket.socket.close_code) == (WSMsgType.CLOSE, 1001)
    assert len(responses.calls) == 1 + busy


async def test_a_call_that_outlasts_the_drain_ends_with_going_away(responses: Upstream, tmp_path: Path) -> None:
    async with (
        before(responses, tmp_path, server={"drain_timeout": "500ms"}) as served,
        opened(served) as socket,
    ):
        responses.gate.clear()
        await socket.create("one")
        await responses.arrived.wait()
        stopping = asyncio.create_task(served.gateway.data_port.stop())
        message = await socket.socket.receive()
        assert (message.type, socket.socket.close_code) == (WSMsgType.CLOSE, 1001)
        await stopping
        responses.gate.set()


async def test_a_call_takes_a_place_of_max_inflight_and_an_idle_connection_none(
    responses: Upstream, tmp_path: Path
) -> None:
    async with before(responses, tmp_path, server={"max_inflight": 2}) as served:
        inflight = served.gateway.inflight
        async with opened(served) as first, opened(served) as second:
            await until(lambda: inflight.count == 0)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with opened(served):
                    pass
            assert refused.value.status == 503
            responses.gate.clear()
            await first.create("one")
            await second.create("two")
            await until(lambda: (len(responses.calls), inflight.count) == (2, 2))
            assert (await served.post("/v1/responses", {"model": "m", "input": "three"})).status == 503
            responses.gate.set()
            assert [text_in(await each.response()) for each in (first, second)]
            await until(lambda: inflight.count == 0)
        await until(lambda: inflight.count == 0)
        async with opened(served) as socket:
            assert "output" in await socket.ask("four")


async def test_a_get_without_an_upgrade_passes_through(responses: Upstream, tmp_path: Path) -> None:
    async with before(responses, tmp_path) as served:
        answer = await served.get("/v1/responses")
        assert (answer.status, json.loads(answer.body)) == (404, {"error": {"message": "no such path"}})
        assert [call.method for call in responses.calls] == ["GET"]


async def test_many_connections_share_one_call(responses: Upstream, tmp_path: Path) -> None:
    responses.gate.clear()
    async with before(responses, tmp_path) as served:

        async def one() -> str:
            async with opened(served) as socket:
                return text_in(await socket.ask())

        asking = [asyncio.create_task(one()) for _ in range(4)]
        await responses.arrived.wait()
        responses.gate.set()
        assert await asyncio.gather(*asking) == ["upstream 1"] * 4
    assert len(responses.calls) == 1
