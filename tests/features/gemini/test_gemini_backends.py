"""OpenAI's and Anthropic's clients before a backend that speaks Gemini's protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.gemini_upstream import gemini, refusal
from tests.fixtures.gemini_upstream import stream as stream_natively
from tests.fixtures.upstream import Upstream

MODEL = "gemini-3-flash"
KEY = {"Authorization": "Bearer of-the-client"}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
BACK: dict[str, Any] = {"type": "function", "function": {"name": "back"}}


@asynccontextmanager
async def before(upstream: Upstream, folder: Path, policy: str = EXACT_CACHE, **keys: Any) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": "gemini", "url": gemini(upstream).url, "model": MODEL, **keys}}
    async with gateway_of(config_of(folder, backends), policy) as served:
        yield served


def openai_client(served: Served) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=served.url + "/v1", api_key="of-the-client", max_retries=0)


async def test_openais_client_is_answered_and_cached_whole_and_streamed(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served, openai_client(served) as client:
        messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "please think"}]
        stream = await client.chat.completions.create(
            model="m", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.chat.completions.create(model="m", messages=messages)
        one = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "another"}])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        "gemini answers: please think"
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert whole.choices[0].message.content == "gemini answers: please think"
    for usage in (chunks[-1].usage, whole.usage):
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 8, 15)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 2
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 3
    assert one.model == "gemini-3-flash-001"
    assert [call.path for call in upstream.calls] == [
        f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse",
        f"/v1beta/models/{MODEL}:generateContent",
    ]
    assert upstream.calls[0].headers["x-goog-api-key"] == "of-the-client"
    assert upstream.calls[0].json == {
        "contents": [{"role": "user", "parts": [{"text": "please think"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    }


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_calls_keep_their_signatures_ids_and_order(upstream: Upstream, tmp_path: Path, streamed: bool) -> None:
    """openai/openai-agents-python #2109, BerriAI/litellm #16893: a call comes back without its signature, and Gemini
    refuses the turn. praxis-proxy/ai #1000: ids restart in each turn, so that results get mixed up."""
    async with before(upstream, tmp_path, NO_CACHE) as served:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "call them"}]
        ids = list[str]()
        for _ in range(2):
            body = {"model": "m", "messages": messages, "tools": [LOOK, BACK], "stream": streamed}
            answer = await served.post("/v1/chat/completions", body, KEY)
            assert answer.status == 200, answer.body
            if streamed:
                events = [json.loads(each[6:]) for each in answer.body.decode().split("\n\n")[:-2]]
                deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
                calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
                assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][
                    -1
                ] == "tool_calls"
                assert answer.body.endswith(b"data: [DONE]\n\n")
                calls = [{key: value for key, value in call.items() if key != "index"} for call in calls]
            else:
                calls = answer.json["choices"][0]["message"]["tool_calls"]
                assert answer.json["choices"][0]["finish_reason"] == "tool_calls"
            ids += [call["id"] for call in calls]
            results = [{"role": "tool", "tool_call_id": call["id"], "content": f"of {call['id']}"} for call in calls]
            messages = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": calls},
                *reversed(results),
                {"role": "user", "content": "call again"},
            ]
    contents = upstream.calls[-1].json["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user", "user"]
    made = contents[1]["parts"]
    assert [part.get("thoughtSignature") for part in made] == ["c2lnbmVk", None]
    assert [part["functionCall"]["name"] for part in made] == ["look", "back"]
    given = [part["functionResponse"] for part in contents[2]["parts"]]
    assert [(each["name"], each["response"]) for each in given] == [
        ("look", {"result": f"of {ids[0]}"}),
        ("back", {"result": f"of {ids[1]}"}),
    ]
    assert len(set(ids)) == len(ids) == 4


async def test_a_call_without_a_signature_gets_the_one_that_google_accepts(upstream: Upstream, tmp_path: Path) -> None:
    """Clients of OpenAI's protocol drop fields that they do not know, and other models sign nothing."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"seen": true}'},
    ]
    async with before(upstream, tmp_path) as served:
        answer = await served.post("/v1/chat/completions", {"model": "m", "messages": messages, "tools": [LOOK]}, KEY)
    assert answer.status == 200, answer.body
    said, result = upstream.calls[0].json["contents"][1:]
    assert said["parts"][1] == {
        "functionCall": {"id": "call_1", "name": "look", "args": {"n": 1}},
        "thoughtSignature": "skip_thought_signature_validator",
    }
    assert result["parts"] == [{"functionResponse": {"id": "call_1", "name": "look", "response": {"seen": True}}}]


async def test_anthropics_client_calls_tools_and_thinks_on(upstream: Upstream, tmp_path: Path) -> None:
    """BerriAI/litellm #25322, tashfeenahmed/freellmapi #487: the signature is lost between Anthropic's client and
    Gemini."""
    async with (
        before(upstream, tmp_path, NO_CACHE) as served,
        AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
    ):
        asked: Any = {
            "model": "c",
            "max_tokens": 64,
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
            "system": "Be brief.",
        }
        turns: list[Any] = [{"role": "user", "content": "call it"}]
        async with client.messages.stream(messages=turns, **asked) as stream:
            told = await stream.get_final_message()
        content: Any = [block.model_dump(exclude_none=True) for block in told.content]
        [use] = [block for block in content if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "a page"}
        turns += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        last = await client.messages.create(messages=turns, **asked)
    assert told.stop_reason == "tool_use"
    assert told.usage.output_tokens == 5
    [text] = last.content
    assert text.type == "text"
    assert text.text == "gemini answers: [functionResponse]"
    sent = upstream.calls[-1].json
    assert sent["contents"][1]["parts"][0]["thoughtSignature"] == "c2lnbmVk"
    assert sent["generationConfig"] == {"maxOutputTokens": 64}


async def test_settings_pictures_and_forms_reach_gemini(upstream: Upstream, tmp_path: Path) -> None:
    body = {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                    {"type": "image_url", "image_url": {"url": "https://host/a.jpg?size=1"}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                ],
            }
        ],
        "temperature": 0.3,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop": "END",
        "seed": 3,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "tools": [LOOK],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "user": "u",
        "logit_bias": {},
    }
    async with before(upstream, tmp_path) as served:
        answer = await served.post("/v1/chat/completions", body, KEY)
    assert answer.status == 200, answer.body
    assert upstream.calls[0].json == {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "What is it?"},
                    {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                    {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://host/a.jpg?size=1"}},
                    {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
                ],
            }
        ],
        "generationConfig": {
            "temperature": 0.3,
            "topP": 0.5,
            "seed": 3,
            "maxOutputTokens": 9,
            "stopSequences": ["END"],
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object"},
            "thinkingConfig": {"thinkingLevel": "LOW"},
        },
        "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
    }


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"logprobs": True}, "'logprobs'"),
        ({"tools": [LOOK], "parallel_tool_calls": False}, "'parallel_tool_calls: false'"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "'custom'"),
        ({"response_format": {"type": "grammar"}}, "'grammar'"),
        ({"messages": [{"role": "tool", "tool_call_id": "none", "content": "x"}]}, "belongs to no call"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}, "'file'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/x"}}]}]},
            "does not tell its type",
        ),
    ],
)
async def test_what_gemini_cannot_express_is_refused(
    upstream: Upstream, tmp_path: Path, more: dict[str, Any], what: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    async with before(upstream, tmp_path) as served:
        answer = await served.post("/v1/chat/completions", body, KEY)
    assert answer.status == 400
    assert what in answer.json["error"]["message"]
    assert not upstream.calls


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("word", "finish"), [("blocked", "content_filter"), ("unsafe", "content_filter"), ("long", "length")]
)
async def test_what_ends_early_says_why_and_is_not_stored(
    upstream: Upstream, tmp_path: Path, word: str, finish: str, streamed: bool
) -> None:
    async with before(upstream, tmp_path) as served, openai_client(served) as client:
        for _ in range(2):
            messages: Any = [{"role": "user", "content": word}]
            if streamed:
                stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
                finishes = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
            else:
                whole = await client.chat.completions.create(model="m", messages=messages)
                finishes = [choice.finish_reason for choice in whole.choices]
                if word == "blocked":
                    assert whole.choices[0].message.refusal == "The prompt was blocked: PROHIBITED_CONTENT."
            assert finishes[-1] == finish
    assert len(upstream.calls) == 2


async def test_a_reason_in_each_chunk_ends_nothing_early(upstream: Upstream, tmp_path: Path) -> None:
    """suhaibbinyounis/github-copilot-api-vscode #100, and chunks whose usage comes alone, after the reason."""
    async with before(upstream, tmp_path) as served:

        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            said = [{"candidates": [{"content": {"parts": [{"text": word}]}, "finishReason": "STOP"}]} for word in "ab"]
            return await stream_natively(request, [*said, {"usageMetadata": {"promptTokenCount": 4}}])

        upstream.answer = answer
        async with openai_client(served) as client:
            messages: Any = [{"role": "user", "content": "hi"}]
            stream = await client.chat.completions.create(
                model="m", messages=messages, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            again = await client.chat.completions.create(model="m", messages=messages)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, None, None, "stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 4
    assert again.choices[0].message.content == "ab"
    assert len(upstream.calls) == 1


async def test_a_cut_stream_is_an_error_for_openais_client(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served:

        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            return await stream_natively(request, [{"candidates": [{"content": {"parts": [{"text": "half"}]}}]}])

        upstream.answer = answer
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        answers = [await served.post("/v1/chat/completions", body, KEY) for _ in range(2)]
    for each in answers:
        assert b'"error"' in each.body
        assert b"[DONE]" not in each.body
    assert len(upstream.calls) == 2


async def test_errors_come_in_openais_form(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served:
        full = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
        told = [refusal(429, "RESOURCE_EXHAUSTED", "Quota exceeded"), refusal(400, "INVALID_ARGUMENT", full)]

        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            return told.pop(0)

        upstream.answer = answer
        limited, long = [await served.chat("hi") for _ in range(2)]
    assert (limited.status, limited.json["error"]["type"]) == (429, "rate_limit_error")
    assert (long.status, long.json["error"]["code"]) == (400, "context_length_exceeded")


async def test_embeddings_and_models_of_gemini_serve_openais_client(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served, openai_client(served) as client:
        vectors = await client.embeddings.create(model="m", input=["a", "bb"], dimensions=2)
        plain = await client.embeddings.create(model="m", input="a", dimensions=2, encoding_format="float")
        models = await client.models.list()
    assert [each.embedding for each in vectors.data] == [[0.5, 0.125], [0.5, 0.25]]
    assert plain.data[0].embedding == [0.5, 0.125]
    assert [model.id for model in models.data] == ["gemini-3-flash"]
    batch = next(call.json for call in upstream.calls if call.method == "POST")
    assert batch["requests"][0] == {
        "model": f"models/{MODEL}", "content": {"parts": [{"text": "a"}]}, "outputDimensionality": 2
    }  # fmt: skip
