"""Answers that say nothing, and refusals, reach their client and are not stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from gateway.calls import Call, Dialect
from gateway.dialects.known import find_dialect
from gateway.outcomes import Admission
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
GENERATE = "/v2/models/m/generate"
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BLANK = ("", " ", "\n\n", "\u200b", "\ufeff \u3000")


def chat(*messages: Mapping[str, Any], finish: str = "stop") -> dict[str, Any]:
    choices = [
        {"index": i, "message": {"role": "assistant", **message}, "finish_reason": finish, "logprobs": None}
        for i, message in enumerate(messages)
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


def completion(text: str) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def response(*items: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": list(items)}


def said(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": list(parts)}


def text(value: str) -> dict[str, Any]:
    return {"type": "output_text", "text": value, "annotations": []}


def message(*blocks: Mapping[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 0}
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(blocks),
            "stop_reason": stop, "stop_sequence": None, "usage": usage}  # fmt: skip


REASONING = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
SHOUTING = {"type": "refusal", "refusal": "No."}
EMPTY: Sequence[tuple[str, dict[str, Any]]] = [
    *((CHAT, chat({"content": blank})) for blank in BLANK),
    (CHAT, chat({"content": None})),
    (CHAT, chat({})),
    (CHAT, chat({"content": []})),
    (CHAT, chat({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": ""}]})),
    (CHAT, chat({"content": "", "reasoning_content": "I think"})),
    (CHAT, chat({"content": "yes"}, {"content": ""})),
    (CHAT, chat({"content": None, "tool_calls": [TOOL_CALL]}, {"content": " "})),
    *((COMPLETIONS, completion(blank)) for blank in BLANK),
    (RESPONSES, response()),
    (RESPONSES, response(REASONING)),
    (RESPONSES, response(said())),
    *((RESPONSES, response(REASONING, said(text(blank), text("")))) for blank in BLANK),
    (MESSAGES, message()),
    *((MESSAGES, message({"type": "text", "text": blank})) for blank in BLANK),
    (MESSAGES, message({"type": "thinking", "thinking": "hm", "signature": "s"}, stop="stop_sequence")),
    (GENERATE, {"model_name": "m", "text_output": " "}),
]
REFUSED: Sequence[tuple[str, dict[str, Any]]] = [
    (CHAT, chat({"content": None, "refusal": "I can't help with that."})),
    (CHAT, chat({"content": "", "refusal": "No."})),
    (CHAT, chat({"content": "yes"}, {"content": None, "refusal": "No."})),
    (CHAT, chat({"content": [SHOUTING]})),
    (RESPONSES, response(said(SHOUTING))),
    (RESPONSES, response(said(text("well"), SHOUTING))),
    (MESSAGES, message({"type": "text", "text": "I can't"}, stop="refusal")),
    (MESSAGES, message(stop="refusal")),
]
STORED: Sequence[tuple[str, dict[str, Any]]] = [
    (CHAT, chat({"content": "0"})),
    (CHAT, chat({"content": "yes", "refusal": None})),
    (CHAT, chat({"content": [{"type": "text", "text": "yes"}]})),
    (CHAT, chat({"content": None, "audio": {"id": "a", "data": "AAAA", "transcript": "hi", "expires_at": 9}})),
    (CHAT, chat({"content": "", "images": [{"type": "image_url", "image_url": {"url": "data:"}}]})),
    (COMPLETIONS, completion("\n x")),
    (RESPONSES, response(said(text("")), said(text("yes")))),
    (MESSAGES, message({"type": "text", "text": ""}, {"type": "text", "text": "."})),
    (GENERATE, {"model_name": "m", "text_output": "yes"}),
]


def body_of(path: str) -> dict[str, Any]:
    if path == GENERATE:
        return {"text_input": "q"}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 9}
    if path == RESPONSES:
        return {"model": "m", "input": "q"}
    return (
        {**asked, "prompt": "q"} if path == COMPLETIONS else {**asked, "messages": [{"role": "user", "content": "q"}]}
    )


def parsed(path: str) -> tuple[Dialect, Call]:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    return dialect, dialect.parse(path, json.dumps(body_of(path)).encode(), {})


@pytest.mark.parametrize(
    ("path", "answer", "expected"),
    [*((*row, Admission.EMPTY) for row in EMPTY), *((*row, Admission.REFUSED) for row in REFUSED),
     *((*row, Admission.STORED) for row in STORED)],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_an_answer_that_says_nothing_is_told_from_one_that_does(
    path: str, answer: dict[str, Any], expected: Admission, streamed: bool
) -> None:
    dialect, call = parsed(path)
    whole = json.dumps(answer).encode()
    payload = tuple(event.data for event in dialect.events(call, whole)) if streamed else (whole,)
    if not streamed or path != GENERATE:
        assert dialect.inspect(call, payload, streamed).admission is expected


@pytest.mark.parametrize(
    ("path", "answer"),
    [EMPTY[0], EMPTY[2], EMPTY[9], EMPTY[10], EMPTY[12], EMPTY[17], EMPTY[20], EMPTY[25], EMPTY[26], *REFUSED[:1],
     REFUSED[4], REFUSED[6]],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_the_client_gets_it_and_the_next_one_asks_again(
    upstream: Upstream, tmp_path: Path, path: str, answer: dict[str, Any], streamed: bool
) -> None:
    dialect, call = parsed(path)

    async def reply(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        if not asked.get("stream"):
            return web.json_response(answer)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for event in dialect.events(call, json.dumps(answer).encode()):
            await out.write(event.frame())
        return out

    upstream.answer = reply
    adapter = "anthropic" if path == MESSAGES else "openai"
    url = upstream.url.removesuffix("/v1") if path == MESSAGES else upstream.url
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": adapter, "url": url}}), SEMANTIC) as served:
        for number, stream in enumerate((streamed, streamed, not streamed), 1):
            body = {**body_of(path), "stream": stream}
            got = await served.post(path, body, headers={"anthropic-version": "2023-06-01"})
            assert got.status == 200
            assert got.cache_status.startswith("nearhit; fwd=miss")
            assert "stored" not in got.cache_status or stream
            assert len(upstream.calls) == number
        outcomes = {outcome for _, outcome in served.gateway.parts.telemetry.admissions.values}
        assert outcomes in ({Admission.EMPTY}, {Admission.REFUSED})


SEMANTIC = """version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.5}}
    route: {backend: main}
"""


async def test_openais_client_gets_a_text_once_the_model_has_one(upstream: Upstream, tmp_path: Path) -> None:
    """A Gemini that thinks too long says nothing, with 0 tokens. The same question is answered a moment later."""
    answers = [chat({"content": None}), chat({"content": "yes"})]

    async def reply(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(answers[min(len(upstream.calls), 2) - 1])

    upstream.answer = reply
    async with (
        gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}), SEMANTIC) as served,
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="k") as client,
    ):
        texts = []
        for wording in ("Is it raining?", "is it raining?", "Is it raining?"):
            answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": wording}])
            texts.append(answer.choices[0].message.content)
    assert texts == [None, "yes", "yes"]
    assert len(upstream.calls) in (2, 3)
