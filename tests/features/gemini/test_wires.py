"""Answers as servers of Gemini's protocol send them, proxies among them: read, passed on, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.features.gemini.answers import inspect
from gateway.outcomes import Admission
from tests.admin.keys import ADMIN, create, keyed
from tests.features.gemini.test_gemini_clients import KEY, STREAM, WHOLE, asked, before
from tests.fixtures.gateways import EXACT_CACHE, gateway_of
from tests.fixtures.gemini_upstream import gemini
from tests.fixtures.upstream import Upstream

LONG = 123456789012345678901234567890  # beyond 64 bits
BOM = b"\xef\xbb\xbf"


def candidate(*parts: Any, reason: str | None = "STOP", **more: Any) -> dict[str, Any]:
    ended = {} if reason is None else {"finishReason": reason}
    return {"candidates": [{"content": {"parts": [*parts], "role": "model"}, **ended, "index": 0, **more}]}


def call(name: str, args: Any, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, **more}}


def events(*chunks: Any) -> bytes:
    return b"".join(b"data: %s\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks)


HALVES = candidate({"text": "one "}, reason=None), candidate({"text": "two"})
TEXTS = {
    "a mark of the byte order": BOM + events(*HALVES),
    "keep-alives": b": ping\n\n" + events(HALVES[0]) + b": ping\n\ndata: \n\n" + events(HALVES[1]),
    "an end as OpenAI's": events(*HALVES) + b"data: [DONE]\n\n",
    "null texts": events(candidate({"text": None}, reason=None), *HALVES),
    "an index as a text": events(*(candidate(*each["candidates"][0]["content"]["parts"], index="0",
        reason=each["candidates"][0].get("finishReason")) for each in HALVES)),
}  # fmt: skip
CALLS = {
    "two calls in two chunks": (
        events(candidate(call("f", {"a": 1}), reason=None), candidate(call("f", {"b": LONG}))),
        [{"a": 1}, {"b": LONG}],
    ),
    "two calls with one id": (
        events(candidate(call("f", {"a": 1}, id="x"), call("g", {"b": 2}, id="x"))),
        [{"a": 1}, {"b": 2}],
    ),
    "no arguments": (events(candidate(call("f", None))), [{}]),
    "arguments as a text": (events(candidate(call("f", '{"a": 1}'))), [{"a": 1}]),
}


def sending(upstream: Upstream, body: bytes, content_type: str = "text/event-stream") -> Upstream:
    gemini(upstream)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type)

    upstream.answer = answer
    return upstream


def question(name: str, **more: Any) -> dict[str, Any]:
    return {"model": "g", "messages": [{"role": "user", "content": name}], **more}


async def test_a_stream_is_one_answer_for_each_client(upstream: Upstream, tmp_path: Path) -> None:
    async with before(gemini(upstream), tmp_path, adapter="gemini") as served:
        for name, body in TEXTS.items():
            sending(upstream, body)
            chat = await served.post("/v1/chat/completions", question(name, stream=True), KEY)
            lines = [line[6:] for line in chat.body.decode().splitlines() if line.startswith("data: ")]
            deltas = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines[:-1]]
            assert ("".join(deltas), lines[-1]) == ("one two", "[DONE]"), name
            assert "; hit" in (await served.post("/v1/chat/completions", question(name), KEY)).cache_status, name
            message = await served.post("/v1/messages", question(name, stream=True, max_tokens=9), KEY)
            assert "message_stop" in message.body.decode(), name
            if name != "null texts":  # they pass on as they are, and nothing joins them
                await served.post(f"{STREAM}?alt=sse", asked(name), KEY)
                whole = await served.post(WHOLE, asked(name), KEY)
                assert "; hit" in whole.cache_status, name
                assert whole.json["candidates"][0]["content"]["parts"] == [{"text": "one two"}], name


async def test_calls_keep_their_arguments_for_each_client(upstream: Upstream, tmp_path: Path) -> None:
    async with before(gemini(upstream), tmp_path, adapter="gemini") as served:
        for name, (body, expected) in CALLS.items():
            sending(upstream, body)
            chat = await served.post("/v1/chat/completions", question(name, stream=True), KEY)
            lines = [json.loads(line[6:]) for line in chat.body.decode().splitlines() if line.startswith("data: {")]
            made = [
                each for line in lines for choice in line["choices"] for each in choice["delta"].get("tool_calls", ())
            ]
            assert [json.loads(each["function"]["arguments"]) for each in made] == expected, name
            assert [each["index"] for each in made] == list(range(len(expected))), name
            (whole,) = [json.loads(line[6:]) for line in body.decode().splitlines() if line][-1:]
            sending(upstream, json.dumps(whole).encode(), "application/json")
            message = await served.post("/v1/messages", question(f"{name}, whole", max_tokens=9), KEY)
            assert message.json["content"][-1]["input"] == expected[-1], name


@pytest.mark.parametrize("body", [{}, {"candidates": []}, {"candidates": None}, [candidate({"text": "a"})]])
async def test_an_answer_without_a_candidate_is_not_stored(upstream: Upstream, tmp_path: Path, body: Any) -> None:
    async with before(gemini(upstream), tmp_path, adapter="gemini") as served:
        sending(upstream, json.dumps(body).encode(), "application/json")
        native = [await served.post(WHOLE, asked(), KEY) for _ in range(2)]
        chat = await served.post("/v1/chat/completions", question("a"), KEY)
    assert [(each.status, each.json, each.cache_status) for each in native] == [(200, body, "nearhit; fwd=miss")] * 2
    assert chat.status == 502


def test_the_end_of_openais_protocol_ends_nothing_early() -> None:
    payload = [json.dumps(each).encode() for each in HALVES]
    assert inspect([*payload, b"[DONE]"], True).admission is Admission.STORED
    assert inspect([payload[0], b"[DONE]"], True).admission is Admission.CUT
    assert inspect([b"[DONE]"], True).admission is Admission.CUT


REFUSED = [
    "/v1beta/models/gemini-3-pro:generateContent",
    "/v1beta/models/gemini%2D3-pro:generateContent",
    "/v1beta/models/gemini-3-pro%3AgenerateContent",
    "/v1beta/models/gemini-3-flash/../gemini-3-pro:generateContent",
    "/v1beta/models/gemini-3-flash%2F..%2Fgemini-3-pro:generateContent",
    "/V1BETA/models/gemini-3-pro:generateContent",
    "/v1beta/Models/gemini-3-pro:generateContent",
    "/v1beta/models/gemini-3-pro:countTokens",
    "/v1beta/models/gemini-3-pro:batchGenerateContent",
    "/v1beta/tunedModels/gemini-3-flash:generateContent",
    "/v1beta/models/tunedModels/x:generateContent",
    "/v1beta/dynamic/gemini-3-flash:generateContent",
    "/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:generateContent",
    "/v1/projects/p/locations/l/endpoints/1:generateContent",
]


async def test_a_key_of_some_models_gets_no_other_whatever_its_path(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as served:
        made = await create(served, models=["gemini-3-flash"])
        headers = {"x-goog-api-key": made["key"]}
        assert (await served.post(WHOLE, asked(), headers)).status == 200
        for path in REFUSED:
            answer = await served.post(path, asked(), headers)
            assert (answer.status, answer.json["error"]["status"]) == (403, "PERMISSION_DENIED"), path
    assert len(upstream.calls) == 1
