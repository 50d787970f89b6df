"""OpenAI's client before an Anthropic endpoint and Anthropic's before an OpenAI one: text, tools, streams, errors, with
the official clients, before endpoints that are strict about what they are sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.anthropic_upstream import events_of, message, refusal
from tests.fixtures.anthropic_upstream import stream as anthropic_stream
from tests.fixtures.gateways import BOTH_CACHES, TIERS, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, frame, serving
from tests.http_server.conftest import openai_client
from tests.http_server.test_anthropic_client import ask, client_of, headers_of, streamed, told, tool

QUESTION = "Which ports does it listen on?"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": tool(name)["input_schema"]}} for name in ("a", "b")
]


@pytest.fixture
async def to_claude(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    speaking_anthropic(upstream)
    backend = {"adapter": "anthropic", "url": upstream.url, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as gateway:
        yield gateway


@pytest.fixture
async def to_openai(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backend = {"adapter": "openai", "url": upstream.url, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as gateway:
        yield gateway


async def final_of(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    state = ChatCompletionStreamState()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async for chunk in await client.chat.completions.create(**fields, **options):
        state.handle_chunk(chunk)
    return state.get_final_completion()


@pytest.mark.parametrize("first", ["whole", "stream"])
async def test_openais_client_is_answered_by_claude(to_claude: Served, upstream: Upstream, first: str) -> None:
    """In both forms, of one entry that is OpenAI's."""
    asked = {**CHAT, "messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]], "temperature": 1.5}
    async with openai_client(to_claude) as client:
        for form in (first, "whole", "stream", "whole", "stream"):
            answer = await (client.chat.completions.create(**asked) if form == "whole" else final_of(client, **asked))
            assert answer.choices[0].message.content == f"claude answers: {QUESTION}"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.created > 1_700_000_000
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 5)
            assert answer.usage.prompt_tokens_details.cached_tokens == 3
    (call,) = upstream.calls
    assert call.path == "/v1/messages"
    assert call.json == {
        "model": "m",
        "max_tokens": 4096,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "temperature": 1,
        **({"stream": True} if first == "stream" else {}),
    }
    assert headers_of(call)["x-api-key"] == "sk-test"
    assert headers_of(call)["anthropic-version"] == "2023-06-01"
    assert "authorization" not in headers_of(call)


async def test_in_other_words_openais_client_gets_claudes_answer(to_claude: Served, upstream: Upstream) -> None:
    owner = {"Authorization": "Bearer sk-test"}
    miss = await to_claude.chat("which ports does it listen on", headers=owner)
    hit = await to_claude.chat("which ports does it listen on ?", headers=owner)
    assert hit.cache_status.startswith("nearhit; hit; detail=semantic")
    assert (hit.body, len(upstream.calls)) == (miss.body, 1)


async def test_openais_client_reads_thoughts_as_reasoning(to_claude: Served) -> None:
    asked = {**CHAT, "messages": [{"role": "user", "content": "do think"}]}
    async with openai_client(to_claude) as client:
        whole = await client.chat.completions.create(**asked, extra_headers={"cache-control": "no-store"})
        assert whole.choices[0].message.to_dict()["reasoning_content"] == "They want to know. " * 3
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    said = [chunk.choices[0].delta.to_dict() for chunk in chunks if chunk.choices]
    assert "".join(delta.get("reasoning_content", "") for delta in said) == "They want to know. " * 3
    assert "".join(delta.get("content") or "" for delta in said) == "claude answers: do think"


@pytest.mark.parametrize("form", ["whole", "stream"])
async def test_openais_client_uses_tools_through_claude(to_claude: Served, upstream: Upstream, form: str) -> None:
    asked = {**CHAT, "messages": [{"role": "user", "content": "do call them"}], "tools": FUNCTIONS}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    async with openai_client(to_claude) as client:
        answer = await (client.chat.completions.create(**asked) if form == "whole" else final_of(client, **asked))
        assert answer.choices[0].finish_reason == "tool_calls"
        calls = answer.choices[0].message.tool_calls
        assert [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("toolu_0", "a", {"city": "C0"}),
            ("toolu_1", "b", {"city": "C1"}),
        ]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in calls]
        said = answer.choices[0].message.model_dump(exclude_none=True)
        turns = [*asked["messages"], said, *results, {"role": "user", "content": "so?"}]
        last = await client.chat.completions.create(**{**asked, "messages": turns})
    assert last.choices[0].message.content == "claude answers: [tool_result] [tool_result] so?"
    assert upstream.calls[0].json["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert upstream.calls[0].json["tools"][0] == {"name": "a", "input_schema": tool("a")["input_schema"]}
    _, uses, told_back = upstream.calls[1].json["messages"]
    assert [block["type"] for block in uses["content"]] == ["text", "tool_use", "tool_use"]
    assert told_back["content"][0] == {
        "type": "tool_result", "tool_use_id": "toolu_0", "content": [{"type": "text", "text": "42"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (401, "authentication_error", openai.AuthenticationError),
        (429, "rate_limit_error", openai.RateLimitError),
        (529, "overloaded_error", openai.InternalServerError),
    ],
)
async def test_claudes_errors_are_openais_to_its_client(
    to_claude: Served, upstream: Upstream, status: int, kind: str, error: type[openai.APIStatusError]
) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return refusal(status, kind, "not now", {"Retry-After": "7"})

    upstream.answer = answer
    async with openai_client(to_claude) as client:
        with pytest.raises(error, match="not now") as caught:
            await client.chat.completions.create(**CHAT)
    assert caught.value.type == kind
    assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("broken", ["error", "cut"])
async def test_a_stream_of_claudes_that_breaks_is_an_error_to_openais_client(
    to_claude: Served, upstream: Upstream, broken: str
) -> None:
    well = upstream.answer

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        events = events_of(message([{"type": "text", "text": "one two"}]))[:4]
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return await anthropic_stream(request, events + ([error] if broken == "error" else []), cut=broken == "cut")

    upstream.answer = answer
    async with openai_client(to_claude) as client:
        with pytest.raises(openai.APIError, match="Overloaded" if broken == "error" else "broke off"):
            _ = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
        upstream.answer = well
        assert (await client.chat.completions.create(**CHAT)).choices[0].message.content  # nothing of it was stored
    assert len(upstream.calls) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": 2}, "'n' above 1"),
        ({"logprobs": True}, "'logprobs'"),
        ({"response_format": {"type": "json_object"}}, "'response_format'"),
        ({"tools": [{"type": "web_search"}]}, "a tool of the type 'web_search'"),
    ],
)
async def test_what_anthropic_cannot_say_is_refused_before_anything_is_sent(
    to_claude: Served, upstream: Upstream, fields: dict[str, Any], said: str
) -> None:
    async with openai_client(to_claude) as client:
        with pytest.raises(openai.BadRequestError, match=said):
            await client.chat.completions.create(**CHAT, **fields)
        with pytest.raises(openai.BadRequestError, match="embeddings cannot be translated"):
            await client.embeddings.create(model="m", input="x")
    assert upstream.calls == []


async def test_models_are_listed_to_either_client(to_claude: Served, tmp_path: Path, upstream: Upstream) -> None:
    async with openai_client(to_claude) as client:
        (model,) = [model async for model in client.models.list()]
        assert (model.id, model.object, model.owned_by, model.created) == ("claude-1", "model", "anthropic", 1767312000)
    assert upstream.calls[-1].path == "/v1/models?limit=1000"
    async with serving(Upstream("other")) as other:
        backends = {
            "light": {"adapter": "openai", "url": other.url},
            "large": {"adapter": "anthropic", "url": upstream.url},
        }
        policy = BOTH_CACHES.replace("{backend: main}", "{light: light, large: large, escalate_above: 0.5}")
        async with gateway_of(config_of(tmp_path / "two", backends), policy) as served:
            async with openai_client(served) as client:
                assert [model.id async for model in client.models.list()] == ["other-model", "claude-1"]
            async with client_of(served) as claude:
                listed = [model async for model in claude.models.list()]
                assert [(model.id, model.display_name) for model in listed] == [
                    ("other-model", "other-model"),
                    ("claude-1", "Claude 1"),
                ]
                assert (await claude.models.retrieve("other-model")).type == "model"
        assert headers_of(other.calls[-1])["authorization"] == "Bearer sk-ant-test"


@pytest.mark.parametrize("first", ["whole", "stream"])
async def test_anthropics_client_is_answered_by_an_openai_endpoint(
    to_openai: Served, upstream: Upstream, first: str
) -> None:
    asked = ask(system="Be brief.", stop_sequences=["END"], metadata={"user_id": "u"}, extra_body={"top_k": 5})
    async with client_of(to_openai) as client:
        for form in (first, "whole", "stream", "whole", "stream"):
            answer = await client.messages.create(**asked) if form == "whole" else (await streamed(client, **asked))[1]
            assert answer.content[0].text == f"upstream answers: {QUESTION}"
            assert (answer.stop_reason, answer.model, answer.role) == ("end_turn", "claude-1", "assistant")
            assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 5)
            assert answer.id.startswith("msg_")
    (call,) = upstream.calls
    assert call.path == "/v1/chat/completions"
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    assert call.json == {
        "model": "claude-1",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
        "max_completion_tokens": 64,
        "stop": ["END"],
        "user": "u",
        **(stream if first == "stream" else {}),
    }
    sent = headers_of(call)
    assert sent["authorization"] == "Bearer sk-ant-test"
    assert not [name for name in sent if name.startswith("anthropic-") or name == "x-api-key"]


async def test_a_key_of_anthropics_form_goes_to_an_openai_endpoint_in_its_own(
    to_openai: Served, upstream: Upstream
) -> None:
    answer = await to_openai.post("/v1/messages", ask(), {"x-api-key": "sk-1", "anthropic-version": "2023-06-01"})
    assert (answer.status, answer.json["type"]) == (200, "message")
    sent = headers_of(upstream.calls[0])
    assert sent["authorization"] == "Bearer sk-1"
    assert "x-api-key" not in sent


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return frame({"id": "chatcmpl-9", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields})


def call(index: int, arguments: str, **named: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": named["name"]} if named else {})}
    return {"tool_calls": [{"index": index, "function": function, **({"id": named["id"]} if named else {})}]}


@pytest.mark.parametrize("form", ["whole", "stream"])
async def test_anthropics_client_uses_tools_through_an_openai_endpoint(
    to_openai: Served, upstream: Upstream, form: str
) -> None:
    """Calls that come in between each other, after thoughts and words."""

    async def answer(request: web.Request, given: dict[str, Any]) -> web.StreamResponse:
        if given["messages"][-1]["role"] == "tool":
            return web.json_response(completion(given, "so be it"))
        if not given.get("stream"):
            calls = [
                {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": f'{{"n": {i}}}'}}
                for i, n in enumerate("ab")
            ]
            thoughts = {"reasoning_content": "hm, hm", "tool_calls": calls}
            return web.json_response(completion(given, "I call", "tool_calls", **thoughts))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in (
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "hm, "}),
            chunk({"reasoning_content": "hm"}),
            chunk({"content": "I "}),
            chunk({"content": "call"}),
            chunk(call(0, "", id="call_0", name="a")),
            chunk(call(1, '{"n"', id="call_1", name="b")),
            chunk(call(0, '{"n": ')),
            chunk(call(1, ": 1}")),
            chunk(call(0, "0}")),
            chunk({}, "tool_calls"),
            frame({"id": "chatcmpl-9", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}),
            b"data: [DONE]\n\n",
        ):
            await response.write(piece)
        return response

    upstream.answer = answer
    asked = ask("do call them", tools=[tool("a"), tool("b")], tool_choice={"type": "tool", "name": "a"})
    async with client_of(to_openai) as client:
        got = await client.messages.create(**asked) if form == "whole" else (await streamed(client, **asked))[1]
        assert told(got)["content"] == [
            {"type": "thinking", "thinking": "hm, hm", "signature": ""},
            {"type": "text", "text": "I call"},
            {"type": "tool_use", "id": "call_0", "name": "a", "input": {"n": 0}},
            {"type": "tool_use", "id": "call_1", "name": "b", "input": {"n": 1}},
        ]
        assert (got.stop_reason, got.usage.input_tokens, got.usage.output_tokens) == ("tool_use", 7, 5)
        results = [
            {"type": "tool_result", "tool_use_id": "call_0", "content": "yes"},
            {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "no"}]},
        ]
        turns = [
            *asked["messages"],
            {"role": "assistant", "content": told(got)["content"]},
            {"role": "user", "content": results},
        ]
        last = await client.messages.create(**{**asked, "messages": turns})
    assert last.content[0].text == "so be it"
    sent = upstream.calls[0].json
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "a"}}
    assert sent["tools"][0]["function"]["parameters"] == tool("a")["input_schema"]
    assert upstream.calls[1].json["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I call",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "a", "arguments": '{"n":0}'}},
                {"id": "call_1", "type": "function", "function": {"name": "b", "arguments": '{"n":1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "yes"},
        {"role": "tool", "tool_call_id": "call_1", "content": "no"},
    ]


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (503, "overloaded_error", anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("body", ["json", "page"])
async def test_openais_errors_are_anthropics_to_its_client(
    to_openai: Served, upstream: Upstream, status: int, kind: str, error: type[anthropic.APIStatusError], body: str
) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        headers = {"Retry-After": "7"}
        if body == "page":
            return web.Response(status=status, text="<html>no</html>", content_type="text/html", headers=headers)
        given = {"error": {"message": "not now", "type": "x", "param": None, "code": "y"}}
        return web.json_response(given, status=status, headers=headers)

    upstream.answer = answer
    said = "not now" if body == "json" else f"the backend answered with status {status}"
    async with client_of(to_openai) as client:
        with pytest.raises(error) as caught:
            await client.messages.create(**ask())
    assert caught.value.body["error"] == {"type": kind, "message": said}
    assert caught.value.response.headers["retry-after"] == "7"


async def test_a_stream_of_an_openai_endpoint_that_breaks_is_an_error_to_anthropics_client(
    to_openai: Served, upstream: Upstream
) -> None:
    async def answer(request: web.Request, given: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk({"content": "one "}))
        await response.write(frame({"error": {"message": "out of memory"}}))
        return response

    upstream.answer = answer
    async with client_of(to_openai) as client:
        with pytest.raises(anthropic.APIStatusError, match="out of memory"):
            await streamed(client, **ask())
        upstream.answer = None
        assert (await client.messages.create(**ask())).content[0].text == f"upstream answers: {QUESTION}"


async def test_an_answer_that_cannot_be_read_is_a_failure_of_the_backend(to_openai: Served, upstream: Upstream) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"choices": []})

    upstream.answer = answer
    async with client_of(to_openai) as client:
        with pytest.raises(anthropic.InternalServerError, match="cannot be parsed") as caught:
            await client.messages.create(**ask())
    assert caught.value.status_code == 502


async def test_what_is_not_translated_goes_to_the_tier_that_has_it(
    tmp_path: Path, light: Upstream, large: Upstream
) -> None:
    """Counting of tokens to Anthropic's, embeddings and files to OpenAI's, wherever they stand."""
    for at in ("light", "large"):
        claude, other = (light, large) if at == "light" else (large, light)
        speaking_anthropic(claude).calls.clear()
        other.answer, other.calls = None, []
        backends = {
            name: {"adapter": "anthropic" if name == at else "openai", "url": upstream.url}
            for name, upstream in (("light", light), ("large", large))
        }
        async with gateway_of(config_of(tmp_path / at, backends), TIERS) as served:
            async with client_of(served) as client:
                messages: Any = [{"role": "user", "content": "hi"}]
                assert (await client.messages.count_tokens(model="m", messages=messages)).input_tokens == 14
            async with openai_client(served) as asking:
                assert len((await asking.embeddings.create(model="m", input="x", encoding_format="float")).data) == 1
            assert (await served.get("/v1/files")).status == 200
        assert [call.path for call in claude.calls] == ["/v1/messages/count_tokens"]
        assert [call.path for call in other.calls] == ["/v1/embeddings", "/v1/files"]


async def test_a_tier_that_speaks_the_other_dialect_answers_too(
    tmp_path: Path, light: Upstream, large: Upstream
) -> None:
    """Light with OpenAI's protocol, large with Anthropic's: either client is answered by both."""
    speaking_anthropic(large)
    backends = {
        "light": {"adapter": "openai", "url": light.url, "model": "small"},
        "large": {"adapter": "anthropic", "url": large.url, "model": "big"},
    }
    for at, threshold in (("light", 1.0), ("large", 0.0)):
        policy = BOTH_CACHES.replace("{backend: main}", f"{{light: light, large: large, escalate_above: {threshold}}}")
        async with gateway_of(config_of(tmp_path / at, backends), policy) as served:
            async with openai_client(served) as client:
                answer = await client.chat.completions.create(**CHAT)
                assert (answer.choices[0].message.content or "").endswith(f"answers: {QUESTION}")
            async with client_of(served) as claude:
                assert told(await claude.messages.create(**ask()))["content"][0]["text"].endswith(QUESTION)
    assert [call.json["model"] for call in light.calls] == ["small", "small"]
    assert [call.json["model"] for call in large.calls] == ["big", "big"]


async def test_claude_code_is_answered_by_openai_in_spite_of_its_long_user_id(
    to_openai: Served, upstream: Upstream
) -> None:
    """Whole and streamed, with a turn of thinking alone and a tool whose name OpenAI refuses."""
    name = "mcp__" + "a_server__" * 7 + "look.up"

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert all(turn.get("content") is not None or turn.get("tool_calls") for turn in call["messages"])
        asked = call["tools"][0]["function"]["name"]
        assert len(asked) <= 64
        assert len(call["user"]) == 64
        function = {"name": asked, "arguments": "{}"}
        tool_call = {"id": "c", "type": "function", "function": function}
        whole = completion(call, "", "tool_calls", tool_calls=[tool_call])
        if not call.get("stream"):
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta, finish in (({"tool_calls": [{"index": 0, **tool_call}]}, None), ({}, "tool_calls")):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            await response.write(frame({**whole, "choices": [choice]}))
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.answer = answer
    asked = {
        "model": "m",
        "max_tokens": 99,
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]},
            {"role": "user", "content": "two"},
        ],
        "tools": [{"name": name, "input_schema": {"type": "object", "properties": {}}}],
        "metadata": {"user_id": "user_" + "0f" * 90},
    }
    async with client_of(to_openai) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
    assert [block.name for message in (whole, streamed) for block in message.content] == [name, name]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_that_openai_began_goes_on_at_anthropic(
    tmp_path: Path, upstream: Upstream, stream: bool
) -> None:
    """An Anthropic client before two tiers: the light one thinks without a signature, or calls a tool without
    thinking."""
    speaking_anthropic(upstream)
    tools = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    told_back = {"type": "tool_result", "tool_use_id": "t", "content": "5"}
    conversations = [
        [{"role": "assistant", "content": [thought, {"type": "text", "text": "so"}]}, {"role": "user", "content": "?"}],
        [{"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [told_back]}],
        [{"role": "assistant", "content": [use]}, {"role": "user", "content": [told_back]}],
    ]
    backend = {"adapter": "anthropic", "url": upstream.url, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as served, client_of(served) as client:
        for turns in conversations:
            asked: dict[str, Any] = {
                "model": "m", "max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 2000},
                "messages": [{"role": "user", "content": "hi"}, *turns], "tools": tools,
            }  # fmt: skip
            if stream:
                async with client.messages.stream(**asked) as events:
                    assert (await events.get_final_message()).content
            else:
                assert (await client.messages.create(**asked)).content
    assert ["thinking" in call.json for call in upstream.calls] == [True, False, False]
    assert b"signature" not in b"".join(call.body for call in upstream.calls)


async def test_an_endpoint_that_accepts_unsigned_thinking_gets_it(tmp_path: Path, upstream: Upstream) -> None:
    backend = {"adapter": "anthropic", "url": upstream.url, "unsigned_thinking": True}
    turns = [{"role": "user", "content": "hi"}]
    turns += [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}]}, *turns]
    async with gateway_of(config_of(tmp_path, {"main": backend})) as served:
        await served.post("/v1/messages", {"model": "m", "max_tokens": 9, "messages": turns})
    assert upstream.calls[0].json["messages"] == turns


async def test_an_untranslated_request_goes_upstream_as_the_client_sent_it(
    to_openai: Served, tmp_path: Path, upstream: Upstream
) -> None:
    """With values that a translation would fit: the backend judges what its own client sends."""
    call = {"id": "c" * 50, "type": "function", "function": {"name": "look.up", "arguments": "{}"}}
    chat: dict[str, Any] = {
        "model": "m", "user": "u" * 99, "prompt_cache_key": "k" * 99, "stop": [*"abcdef"],
        "messages": [
            {"role": "user", "content": "hi"}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c" * 50, "content": "5"},
        ],
    }  # fmt: skip
    await to_openai.post("/v1/chat/completions", chat)
    assert upstream.calls[-1].json == chat
    speaking_anthropic(upstream)
    message_request: dict[str, Any] = {
        "model": "m", "max_tokens": 9, "stop_sequences": ["\n"], "metadata": {"user_id": "ann@example.org"},
        "temperature": 0.2, "messages": [{"role": "user", "content": " "}],
    }  # fmt: skip
    backend = {"adapter": "anthropic", "url": upstream.url}
    async with gateway_of(config_of(tmp_path / "claude", {"main": backend})) as served:
        await served.post("/v1/messages", message_request)
    assert upstream.calls[-1].json == message_request
