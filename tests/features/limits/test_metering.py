"""Everything that spends is metered: what passes through unparsed counts, and what nothing can count is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import FormData, WSMsgType, web

from gateway.features.limits import socket_meter
from gateway.steps.traffic_log.format import RecordedRequest
from tests.features.limits.test_limits import limited, policy, settled
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

TOKENS = {"input_per_million": 1000.0, "output_per_million": 1000.0}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
PICTURE = {"created": 1, "data": [{"b64_json": "AAAA"}, {"b64_json": "BBBB"}]}

Start = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def start(upstream: Upstream, tmp_path: Path) -> Start:
    @asynccontextmanager
    async def begin(limits: str, price: dict[str, Any] | None = None, **backend: Any) -> AsyncIterator[Served]:
        section = {"adapter": "openai", "url": upstream.url, "price": TOKENS if price is None else price, **backend}
        async with gateway_of(config_of(tmp_path, {"main": section}), policy(limits)) as served:
            yield served

    return begin


def replies(upstream: Upstream, body: object, **options: Any) -> None:
    """Let the upstream answer each request so, whatever it is."""

    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        if isinstance(body, bytes):
            return web.Response(body=body, **options)
        return web.json_response(body, **options)

    upstream.answer = answer


def dollars(served: Served) -> float:
    return round(served.gateway.parts.telemetry.limits_cost.total(), 6)


def tokens(served: Served) -> float:
    return served.gateway.parts.telemetry.limits_tokens.total()


def events(*values: object) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


REPORTING = {
    "images": ("/v1/images/generations", {"model": "gpt-image-1", "prompt": "a cat"}),
    "rerank": ("/v1/rerank", {"model": "r", "query": "q", "documents": ["a", "b"]}),
    "rerank of Cohere": ("/v2/rerank", {"model": "r", "query": "q", "documents": ["a", "b"]}),
    "compaction": ("/v1/responses/compact", {"model": "m", "input": "hello"}),
    "moderation": ("/v1/moderations", {"model": "m", "input": "hello"}),
    "fill in": ("/v1/fim/completions", {"model": "m", "prompt": "def"}),
}
USAGES = {
    "OpenAI": {"usage": USAGE},
    "Responses": {"usage": {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}},
    "total alone": {"usage": {"total_tokens": 12}},
    "Cohere": {"meta": {"tokens": {"input_tokens": 7, "output_tokens": 5}}},
    "Gemini": {"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2}},
    "Bedrock": {"usage": {"inputTokens": 7, "outputTokens": 5}},
    "Ollama": {"prompt_eval_count": 7, "eval_count": 5},
    "long": {"padding": "x" * 3_000_000, "usage": {"input_tokens": 7, "output_tokens": 5}},
}


@pytest.mark.parametrize("kind", REPORTING)
@pytest.mark.parametrize("usage", USAGES)
async def test_calls_that_pass_through_count_by_their_usage(
    start: Start, upstream: Upstream, kind: str, usage: str
) -> None:
    path, body = REPORTING[kind]
    replies(upstream, {"id": "x", **USAGES[usage]})
    async with start("[{tokens: 1M/day}, {cost: {per_day: 0.03 USD}}]") as served:
        statuses = [(await served.post(path, body)).status for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        await settled(served)
        assert (tokens(served), dollars(served)) == (24, 0.024)


@pytest.mark.parametrize("name", ["transcript.text.done", "speech.audio.done", "image_generation.completed"])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_the_last_event_of_a_stream_tells_the_usage(
    start: Start, upstream: Upstream, name: str, coding: str
) -> None:
    body = events(
        {"type": "delta", "delta": "x" * 100_000}, {"type": name, "usage": {"input_tokens": 7, "output_tokens": 5}}
    )
    headers = {"Content-Type": "text/event-stream"}
    if coding == "gzip":
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    replies(upstream, body, headers=headers)
    async with start("{tokens: 1M/day}") as served:
        answer = await served.post("/v1/images/generations", {"prompt": "a cat", "stream": True})
        assert answer.status == 200
        await until(lambda: tokens(served) == 12)


UNMETERED = [
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/images/variations"),
    ("POST", "/v1/videos"),
    ("POST", "/v1/ocr"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/messages/batches"),
    ("POST", "/v1/fine_tuning/jobs"),
    ("POST", "/v1/realtime/client_secrets"),
    ("POST", "/v1/threads/runs"),
    ("POST", "/api/generate"),
    ("POST", "/v1/chat/completions/..%2F..%2Fimages%2Fvariations"),
    ("PUT", "/v1/anything"),
    ("PATCH", "/v1/anything"),
]


@pytest.mark.parametrize("limit", ["tokens: 1M/day", "cost: {per_day: 9 USD}"], ids=["tokens", "cost"])
async def test_what_nothing_meters_is_refused_with_a_sentence(start: Start, upstream: Upstream, limit: str) -> None:
    async with start(f"{{{limit}}}") as served:
        for refused, (method, path) in enumerate(UNMETERED, 1):
            async with served.session.request(method, served.url + path, json={"input": "hi"}) as answer:
                assert answer.status == 403, (method, path)
                error = (await answer.json())["error"]
            assert error["type"] == "permission_error"
            assert "nothing meters" in error["message"]
            assert "price: {" in error["message"]
            assert (upstream.calls, limited(served)) == ([], {"unmetered": refused}), (method, path)


async def test_the_refusal_has_the_shape_of_anthropics_errors(start: Start) -> None:
    async with start("{tokens: 1M/day}") as served:
        answer = await served.post(
            "/v1/messages/batches", {"requests": []}, headers={"anthropic-version": "2023-06-01"}
        )
        assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (403, "error", "permission_error")


FREE = [
    ("GET", "/v1/models"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/files/file-1/content"),
    ("HEAD", "/v1/models"),
    ("DELETE", "/v1/files/file-1"),
    ("POST", "/v1/files"),
    ("POST", "/v1/uploads/up_1/parts"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/v1/batches/batch_1/cancel"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("POST", "/v1/conversations"),
]


async def test_what_spends_nothing_passes_even_at_an_exhausted_limit(start: Start) -> None:
    async with start("[{tokens: 12/day}, {per: route, cost: {per_day: 0.012 USD}}]") as served:
        assert (await served.chat("q")).status == 200
        await settled(served)
        assert (await served.chat("other")).status == 429
        for method, path in FREE:
            async with served.session.request(method, served.url + path, json={}) as answer:
                assert answer.status == 200, (method, path)
            assert tokens(served) == 12, (method, path)


async def test_limits_of_requests_alone_refuse_nothing_as_unmetered(start: Start) -> None:
    async with start("{requests: 2/h, concurrency: 5}") as served:
        assert [(await served.post("/v1/audio/speech", {"input": "hi"})).status for _ in range(3)] == [200, 200, 429]


SPEECH = ("/v1/audio/speech", {"model": "tts-1", "input": "x" * 1000})
IMAGES = ("/v1/images/generations", {"model": "dall-e-2", "prompt": "a cat", "n": 2})


@pytest.mark.parametrize(
    ("call", "answer", "price", "cost"),
    [
        (SPEECH, b"mp3", {"per_million_characters": 15}, 0.015),
        (SPEECH, b"mp3", {"per_call": 0.5}, 0.5),
        (SPEECH, b"mp3", {"per_call": {"/v1/audio/*": 0.25, "*": 9}}, 0.25),
        (IMAGES, PICTURE, {"per_image": 0.04}, 0.08),
        (IMAGES, {"created": 1}, {"per_image": 0.04}, 0.08),
        (IMAGES, {**PICTURE, "usage": USAGE}, {"per_image": 0.04, **TOKENS}, 0.08),
        (IMAGES, {**PICTURE, "usage": USAGE}, {"per_call": 0.01, **TOKENS}, 0.022),
        (("/v1/videos", {"seconds": "4"}), {"id": "v", "seconds": "12"}, {"per_second": 0.1}, 1.2),
        (("/v1/videos", {"seconds": "4"}), {"id": "v"}, {"per_second": 0.1}, 0.4),
        (("/v1/ocr", {"document": {}}), {"pages": []}, {"per_call": {"/v1/ocr": 0.001}}, 0.001),
        (("/v1/batches", {"endpoint": "x"}), {"id": "b"}, {"per_call": {"/v1/batches": 2.5}}, 2.5),
        (("/v1/moderations", {"input": "hi"}), {"results": []}, {"per_call": 0}, 0.0),
        (("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "q"}]}),
         {"choices": [], "usage": USAGE}, {"per_call": 0.1, **TOKENS}, 0.112),
    ],
)  # fmt: skip
async def test_a_price_of_a_call_a_picture_or_a_character_meters_it(
    start: Start, upstream: Upstream, call: tuple[str, Any], answer: Any, price: dict[str, Any], cost: float
) -> None:
    replies(upstream, answer)
    async with start("[{tokens: 100k/day}, {per: route, cost: {per_day: 9 USD}}]", price) as served:
        assert (await served.post(*call)).status == 200
        await settled(served)
        assert dollars(served) == pytest.approx(cost)


async def test_pictures_of_a_long_answer_are_counted(start: Start, upstream: Upstream) -> None:
    replies(upstream, {"created": 1, "data": [{"b64_json": "A" * 700_000} for _ in range(4)]})
    async with start("{cost: {per_day: 9 USD}}", {"per_image": 0.04}) as served:
        form = FormData({"model": "gpt-image-1", "prompt": "a cat", "n": "4"})
        form.add_field("image", b"png", filename="a.png")
        async with served.session.post(served.url + "/v1/images/edits", data=form) as answer:
            assert (answer.status, len(await answer.read()) > 2_800_000) == (200, True)
        await until(lambda: dollars(served) == pytest.approx(0.16))


async def test_a_post_with_an_upgrade_is_the_post_that_it_is(start: Start, upstream: Upstream) -> None:
    async with start("{cost: {per_day: 9 USD}}", {"per_minute": 0.01}) as served:
        headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert (await served.post("/v1/audio/speech", {"input": "hi"}, headers=headers)).status == 403
        assert (await served.post("/v1/tokenize", {"input": "hi"}, headers=headers)).status == 200
        assert [call.method for call in upstream.calls] == ["POST"]


@pytest.mark.parametrize("prefix", ["/openai/deployments/d-1", "/openai/v1", ""])
async def test_paths_of_azure_are_known(start: Start, upstream: Upstream, prefix: str) -> None:
    replies(upstream, {"usage": USAGE})
    async with start("{tokens: 1M/day}") as served:
        assert (await served.post(f"{prefix}/images/generations", {"prompt": "a cat"})).status == 200
        await settled(served)
        assert tokens(served) == 12


async def test_a_price_for_all_paths_does_not_meter_what_starts_other_calls(start: Start, upstream: Upstream) -> None:
    async with start("{cost: {per_day: 9 USD}}", {"per_call": 0.1}) as served:
        assert (await served.post("/v1/batches", {})).status == 403
        assert (await served.post("/v1/ocr", {})).status == 200


@pytest.mark.parametrize(
    ("body", "content_type", "cost"),
    [
        (b'{"text": "hi", "usage": {"type": "duration", "seconds": 90}}', "application/json", 0.009),
        (b'{"text": "hi", "duration": 90.0, "segments": []}', "application/json", 0.009),
        (b"1\n00:00:00,000 --> 00:01:30,000\nhi\n", "text/plain", 0.009),
        (b"WEBVTT\n\n00:00.000 --> 01:30.000\nhi\n", "text/vtt", 0.009),
        (b"hi", "text/plain", 0.01),  # 400 kB of sound at 32 kbit/s
    ],
)
async def test_a_transcription_costs_its_minutes(
    start: Start, upstream: Upstream, body: bytes, content_type: str, cost: float
) -> None:
    replies(upstream, body, headers={"Content-Type": content_type})
    async with start("{cost: {per_day: 9 USD}}", {"per_minute": 0.006}) as served:
        form = FormData({"model": "whisper-1", "language": "en"})
        form.add_field("file", b"\0" * 400_000, filename="a.mp3")
        async with served.session.post(served.url + "/v1/audio/transcriptions", data=form) as answer:
            assert (answer.status, await answer.read()) == (200, body)
        await until(lambda: dollars(served) == pytest.approx(cost, abs=1e-4))


async def test_an_answer_that_should_report_its_usage_and_does_not_is_the_last_one(
    start: Start, upstream: Upstream
) -> None:
    replies(upstream, PICTURE)
    async with start("{cost: {per_day: 9 USD}}") as served:
        answers = [
            await served.post("/v1/images/generations", {"model": "dall-e-3", "prompt": "a cat"}) for _ in range(3)
        ]
        assert [answer.status for answer in answers] == [200, 403, 403]
        assert "per_image: 0.04" in answers[1].json["error"]["message"]
        await settled(served)
        assert 0.1 < dollars(served) < 1  # by what was reserved for it


async def test_a_client_that_leaves_early_or_wants_text_costs_others_nothing(start: Start, upstream: Upstream) -> None:
    async def endless(request: web.Request, call: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(events({"type": "image_generation.partial_image"}))
        await asyncio.Event().wait()
        return response

    upstream.answer = endless
    path, body = "/v1/images/generations", {"prompt": "a cat"}
    async with start("{tokens: 1M/day}") as served:
        async with served.session.post(served.url + path, json=body) as answer:
            await answer.content.readline()
        await until(lambda: tokens(served) > 0)
        replies(upstream, {"data": [{"url": "x"}]})  # no usage
        mine, others = ({"Authorization": f"Bearer {name}"} for name in "ab")
        assert [(await served.post(path, body, headers=mine)).status for _ in range(2)] == [200, 403]
        assert (await served.post(path, body, headers=others)).status == 200


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"usage": []}', b'{"usage": {"total_tokens": "x"}}', b'{"usage": {"total_tokens": 1e400}}', b"[1, 2]",
     b'{"usage": {"prompt_tokens": -5, "completion_tokens": null}}', b'{"data": [[], null], "seconds": []}',
     b'{"usage": {"total_tokens": 10000000000000000000000000}}', b"\xff\xfe", b""],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_odd_usage_costs_its_client_no_answer(
    start: Start, upstream: Upstream, body: bytes, kind: str
) -> None:
    sent = body if kind == "application/json" else b"data: " + body + b"\n\n"
    replies(upstream, sent, headers={"Content-Type": kind})
    async with start("{tokens: 1M/day}") as served:
        answer = await served.post("/v1/rerank", {"query": "q"})
        assert (answer.status, answer.body) == (200, sent)
        await until(lambda: served.gateway.parts.telemetry.limits_tokens.values != {})
        assert 0 <= tokens(served) < 1000


async def test_moderation_counts_the_text_that_it_reads(start: Start, upstream: Upstream) -> None:
    replies(upstream, {"results": []})
    async with start("{tokens: 1k/day}") as served:
        statuses = [(await served.post("/v1/moderations", {"input": "x" * 1000})).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]


async def test_failures_cost_nothing(start: Start, upstream: Upstream) -> None:
    replies(upstream, {"error": {"message": "no"}}, status=400)
    async with start("{cost: {per_day: 0.05 USD}}", {"per_image": 0.04}) as served:
        for _ in range(5):
            assert (await served.post(*IMAGES[:1], {"prompt": "a cat"})).status == 400
        await settled(served)
        assert dollars(served) == 0


@pytest.mark.parametrize("size", [50, 500])
async def test_a_burst_of_pictures_passes_a_cap_by_no_call(start: Start, upstream: Upstream, size: int) -> None:
    replies(upstream, {"created": 1, "data": [{"url": "x"}]})
    async with start("{cost: {per_day: 0.4 USD}}", {"per_image": 0.04}) as served:
        burst = await asyncio.gather(*(served.post("/v1/images/generations", {"prompt": str(i)}) for i in range(size)))
        assert sum(answer.status == 200 for answer in burst) == len(upstream.calls) == 10


async def test_openais_client_sees_why(start: Start, upstream: Upstream) -> None:
    async with start("{cost: {per_day: 1 USD}}") as served, openai.AsyncOpenAI(
        base_url=served.url + "/v1", api_key="k", max_retries=0
    ) as client:  # fmt: skip
        with pytest.raises(openai.PermissionDeniedError, match="per_million_characters"):
            await client.audio.speech.create(model="tts-1", voice="alloy", input="hello")
        with pytest.raises(openai.PermissionDeniedError, match="set jobs"):
            await client.batches.create(
                completion_window="24h", endpoint="/v1/chat/completions", input_file_id="file-1"
            )


@pytest.mark.parametrize("adapter", ["kserve", "tfserving"])
async def test_tensors_need_a_price_of_a_call(start: Start, upstream: Upstream, adapter: str) -> None:
    path = "/v2/models/m/infer" if adapter == "kserve" else "/v1/models/m:predict"
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    reply = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
    replies(upstream, reply)
    url = upstream.url.removesuffix("/v1")
    async with start("{cost: {per_day: 0.05 USD}}", {}, adapter=adapter, url=url) as served:
        answer = await served.post(path, body if adapter == "kserve" else {"instances": [[1.0]]})
        assert (answer.status, "per_call" in json.dumps(answer.json)) == (403, True)


async def test_calls_of_tensors_count_by_their_price(start: Start, upstream: Upstream) -> None:
    replies(upstream, {"predictions": [1.0]})
    url = upstream.url.removesuffix("/v1")
    async with start("{cost: {per_day: 0.03 USD}}", {"per_call": 0.01}, adapter="tfserving", url=url) as served:
        answers = [await served.post("/v1/models/m:predict", {"instances": [[float(i)]]}) for i in range(5)]
        assert [answer.status for answer in answers] == [200] * 3 + [429] * 2


# WebSockets


@asynccontextmanager
async def realtime(upstream: Upstream) -> AsyncIterator[list[str]]:
    """Let the upstream answer each message of a WebSocket with a response that reports 12 tokens."""
    heard: list[str] = []

    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            heard.append(message.data)
            usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
            await socket.send_json({"type": "response.done", "response": {"usage": usage}})
        return socket

    upstream.answer = answer
    yield heard


@pytest.mark.parametrize("limit", ["tokens: 40/day", "cost: {per_day: 0.04 USD}"], ids=["tokens", "cost"])
async def test_a_websocket_counts_by_the_usage_of_its_messages_and_ends_at_the_limit(
    start: Start, upstream: Upstream, limit: str
) -> None:
    async with realtime(upstream) as heard, start(f"[{{{limit}}}, {{per: route, concurrency: 1}}]") as served:
        async with served.session.ws_connect(served.url + "/v1/realtime?model=m") as socket:
            for _ in range(3):
                await socket.send_str("hello")
                assert (await socket.receive_json())["type"] == "response.done"
            await socket.send_str("hello")
            told = [await socket.receive() for _ in range(2)]
            assert told[-1].data == 1008 or told[0].data == 1008
        assert len(heard) <= 4
        await until(lambda: served.gateway.parts.pools["main"].inflight == 0)
        await settled(served)
        assert tokens(served) in (36, 48)
        assert (await served.post("/v1/rerank", {"query": "x" * 100})).status == 429


async def test_a_websocket_costs_the_time_that_it_is_open(
    start: Start, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_meter, "TICK_S", 0.02)
    async with realtime(upstream), start("{cost: {per_day: 60.1 USD}}", {"per_minute": 60}) as served:
        async with served.session.ws_connect(served.url + "/v1/anything") as socket:
            closed = await socket.receive()
            assert (closed.type, closed.data) == (WSMsgType.CLOSE, 1008)
            assert "the cap of 60.10 USD a day" in closed.extra
        await until(lambda: 0.05 < dollars(served) < 30)


@pytest.mark.parametrize(("path", "status"), [("/v1/realtime", 101), ("/v1/other", 403)])
async def test_a_websocket_that_reports_nothing_needs_a_price_of_its_time(
    start: Start, upstream: Upstream, path: str, status: int
) -> None:
    async with realtime(upstream), start("{tokens: 100k/day}") as served:
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        async with served.session.get(served.url + path, headers=headers) as answer:
            assert answer.status == status
            if status == 403:
                assert "per_minute" in (await answer.json())["error"]["message"]


# Without limits


async def test_calls_with_a_price_are_counted_without_limits(start: Start, upstream: Upstream, tmp_path: Path) -> None:
    replies(upstream, {"data": [{"url": "x"}], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 2}}})
    section = {"adapter": "openai", "url": upstream.url, "price": {**TOKENS, "per_call": {"/v1/images/*": 0.5}}}
    rules = NO_CACHE.replace("    route:", "    record: on\n    route:")
    async with gateway_of(config_of(tmp_path, {"main": section}), rules) as served:
        for _ in range(2):
            assert (await served.post("/v1/images/generations", {"model": "m", "prompt": "a cat"})).status == 200
        assert (await served.get("/v1/models")).status == 200
        telemetry, recorder = served.gateway.parts.telemetry, served.gateway.parts.recorder.log
        assert telemetry.tokens.values == {
            ("default", "main", "input"): 14, ("default", "main", "output"): 10, ("default", "main", "cached"): 4
        }  # fmt: skip
        assert telemetry.cost.values == {("default", "main"): pytest.approx(1.024)}
        assert telemetry.limits_tokens.values == {}
        rows = [row for row in recorder._rows if isinstance(row, RecordedRequest)]  # type: ignore[attr-defined]
        assert [(row.request.operation, row.request.path) for row in rows] == [("images", "/v1/images/generations")] * 2
        answers = [row.answer for row in rows]
        assert all(answer is not None and round(answer.dollars, 3) == 0.512 for answer in answers)
        assert all(answer is not None and answer.input_tokens == 7 for answer in answers)


# Keys, MCP, and answers that come later


async def test_keys_with_limits_pay_for_pictures_over_all_routes(upstream: Upstream, tmp_path: Path) -> None:
    replies(upstream, PICTURE)
    section = {"adapter": "openai", "url": upstream.url, "price": {"per_image": 0.04}}
    config = config_of(tmp_path, {"main": section}, auth={"mode": "keys"})
    async with gateway_of(config, NO_CACHE) as served:
        key = {"name": "ci", "tenant": "acme", "limits": [{"cost": {"per_day": "0.2 USD"}}]}
        async with served.session.post(served.admin_url + "/admin/keys", json=key) as made:
            assert made.status == 200, await made.text()
            headers = {"Authorization": f"Bearer {(await made.json())['key']}"}
        burst = await asyncio.gather(*(served.post(*IMAGES, headers=headers) for _ in range(10)))
        assert sorted(answer.status for answer in burst) == [200] * 2 + [429] * 8  # two pictures each
        refused = await served.post("/v1/audio/speech", {"input": "hi"}, headers=headers)
        assert (refused.status, "nothing meters" in refused.json["error"]["message"]) == (403, True)
        assert (await served.get("/v1/models", headers)).status == 200


def mcp(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_calls_of_tools_cost_what_their_price_says(start: Start, upstream: Upstream, streamed: bool) -> None:
    result = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "done"}]}}
    if streamed:
        replies(upstream, events(result), headers={"Content-Type": "text/event-stream"})
    else:
        replies(upstream, result)
    url = upstream.url.removesuffix("/v1")
    async with start("{cost: {per_day: 0.03 USD}}", {"per_call": 0.01}, adapter="mcp", url=url) as served:
        headers = {"Accept": "application/json, text/event-stream"}
        for method in ("initialize", "tools/list", "ping"):
            assert (await served.post("/mcp", mcp(method), headers=headers)).status == 200
        call = mcp("tools/call", name="f", arguments={})
        assert [(await served.post("/mcp", call, headers=headers)).status for _ in range(5)] == [200] * 3 + [429] * 2
        assert (await served.post("/mcp", mcp("tools/list"), headers=headers)).status == 200
    async with start("{cost: {per_day: 0.03 USD}}", {}, adapter="mcp", url=url) as served:
        assert (await served.post("/mcp", call, headers=headers)).status == 403
        assert (await served.post("/mcp", mcp("initialize"), headers=headers)).status == 200


async def test_an_answer_that_comes_later_counts_by_its_bound(start: Start, upstream: Upstream) -> None:
    replies(upstream, {"id": "resp_1", "object": "response", "status": "queued", "output": [], "usage": None})
    body = {"model": "m", "input": "x" * 40, "background": True, "max_output_tokens": 100}
    async with start("{tokens: 300/day}") as served:
        statuses = [(await served.post("/v1/responses", body)).status for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert tokens(served) == 330


async def test_each_line_of_a_batch_of_the_gateway_counts(upstream: Upstream, tmp_path: Path) -> None:
    section = {"adapter": "openai", "url": upstream.url, "price": TOKENS}
    config = config_of(tmp_path, {"main": section}, jobs={"batches": True})
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "m", "messages": [{"role": "user", "content": f"q{i}"}]}}
        for i in range(6)
    ]  # fmt: skip
    async with gateway_of(config, policy("{cost: {per_day: 0.036 USD}}", cache="cache: {}")) as served:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="k") as client:
            data = "\n".join(map(json.dumps, lines)).encode()
            file = await client.files.create(file=data, purpose="batch")
            await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        await until(lambda: limited(served).get("cost", 0) >= 1)
        assert (len(upstream.chats), dollars(served)) == (3, 0.036)
