"""Gemini's clients before backends of every protocol: cached, routed, limited, and given errors in their form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.dialects.sse import SSEParser
from tests.fixtures.anthropic_upstream import anthropic
from tests.fixtures.gateways import EXACT_CACHE, LOOSE, NO_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.gemini_upstream import chunks_of, gemini
from tests.fixtures.gemini_upstream import stream as stream_natively
from tests.fixtures.upstream import Upstream, chunk, completion, stream

KEY = {"x-goog-api-key": "of-the-client"}
WHOLE, STREAM = "/v1beta/models/gemini-3-flash:generateContent", "/v1beta/models/gemini-3-flash:streamGenerateContent"
PICTURE = {"inline_data": {"mime_type": "image/png", "data": "iVBORw"}}
LOOK = {"name": "look.at:page", "parameters": {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}}}


def asked(text: str = "alpha beta gamma delta epsilon", **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}], **more}


@asynccontextmanager
async def before(
    upstream: Upstream, folder: Path, policy: str = EXACT_CACHE, adapter: str = "openai", **keys: Any
) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": adapter, "url": upstream.url, **keys}}
    async with gateway_of(config_of(folder, backends), policy, {"KEY": "of-the-gateway"}) as served:
        yield served


async def ask(served: Served, body: Any, headers: Mapping[str, str] = KEY, path: str = WHOLE) -> Answer:
    return await served.post(path, body, headers)


async def chunks(served: Served, body: Any, headers: Mapping[str, str] = KEY) -> tuple[list[dict[str, Any]], Answer]:
    answer = await served.post(f"{STREAM}?alt=sse", body, headers)
    assert answer.headers["Content-Type"].startswith("text/event-stream"), answer.body
    parser = SSEParser()
    return [json.loads(event.data) for event in (*parser.feed(answer.body), *parser.close())], answer


def text_of(*answers: dict[str, Any]) -> str:
    parts = [part for each in answers for part in each["candidates"][0].get("content", {}).get("parts", ())]
    return "".join(part.get("text", "") for part in parts if not part.get("thought"))


async def test_a_client_is_cached_exactly_and_by_meaning_in_either_form(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path, LOOSE) as served:
        first = await ask(served, asked())
        assert first.headers["Cache-Status"].startswith("nearhit; fwd=miss; stored")
        assert text_of(first.json) == "upstream answers: alpha beta gamma delta epsilon"
        assert first.json["candidates"][0]["finishReason"] == "STOP"
        counts = {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12}
        assert first.json["usageMetadata"] == counts
        again = await ask(served, asked())
        assert again.headers["Cache-Status"].startswith("nearhit; hit; detail=exact")
        told, streamed = await chunks(served, asked())
        assert streamed.headers["Cache-Status"].startswith("nearhit; hit; detail=exact")
        assert text_of(*told) == text_of(first.json)
        assert told[-1]["usageMetadata"] == counts
        assert ["finishReason" in each["candidates"][0] for each in told] == [False] * (len(told) - 1) + [True]
        near = await ask(served, asked("alpha beta gamma delta zeta"))
        assert near.headers["Cache-Status"] == "nearhit; hit; detail=semantic"
    assert [call.path for call in upstream.calls] == ["/v1/chat/completions"]
    assert upstream.calls[0].headers["Authorization"] == "Bearer of-the-client"
    assert "x-goog-api-key" not in upstream.calls[0].headers


async def test_a_stored_stream_serves_a_whole_client_and_an_array(upstream: Upstream, tmp_path: Path) -> None:
    """Without `alt=sse`, Google's servers stream an array of JSON."""
    async with before(upstream, tmp_path) as served:
        told, _ = await chunks(served, asked())
        whole = await ask(served, asked())
        array = await served.post(f"{STREAM}?%24prettyPrint=false", asked(), KEY)
        plain = await served.post(STREAM, asked(), KEY)
    assert whole.headers["Cache-Status"].startswith("nearhit; hit; detail=exact")
    assert text_of(whole.json) == text_of(*told)
    assert array.json == plain.json == [whole.json]
    assert array.headers["Content-Type"].startswith("application/json")
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    "spelling",
    [
        {"contents": [{"parts": [{"text": "hello there"}]}]},  # the role may be missing
        {
            "contents": [{"role": "user", "parts": [{"text": "hello there"}]}],
            "generation_config": {"candidate_count": 1},
        },
        {"contents": [{"role": "user", "parts": [{"text": "hello there"}]}], "tools": [], "safetySettings": []},
        {"contents": [{"role": "user", "parts": [{"text": "hello there"}]}], "labels": {"team": "a"}},
    ],
)
async def test_requests_that_mean_the_same_share_an_entry(
    upstream: Upstream, tmp_path: Path, spelling: dict[str, Any]
) -> None:
    async with before(upstream, tmp_path) as served:
        await ask(served, asked("hello there"))
        answer = await ask(served, spelling)
        other = await ask(served, asked("hello there"), path=WHOLE.replace("gemini-3-flash", "gemini-3-pro"))
    assert "detail=exact" in answer.headers["Cache-Status"]
    assert other.headers["Cache-Status"].startswith("nearhit; fwd=miss")


async def test_a_key_in_the_query_is_the_tenant_and_goes_to_the_backend_in_a_header(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with before(upstream, tmp_path) as served:
        verdicts = []
        for path, headers in (
            (f"{WHOLE}?key=one", {}), (f"{WHOLE}?key=two", {}), (f"{WHOLE}?key=one", {}),
            (WHOLE, {"x-goog-api-key": "one"}), (f"{WHOLE}?key=three", {"x-goog-api-key": "one"}),
        ):  # fmt: skip
            verdicts.append((await served.post(path, asked(), headers)).headers["Cache-Status"].split("; ")[1])
    assert verdicts == ["fwd=miss", "fwd=miss", "hit", "hit", "fwd=miss"]
    sent = [call.headers["Authorization"] for call in upstream.calls]
    assert sent == ["Bearer one", "Bearer two", "Bearer one"]
    assert not any("key=" in call.path for call in upstream.calls)
    assert not any(key in record.getMessage() + str(vars(record)) for record in caplog.records for key in ("key=one",))


async def test_the_gateways_keys_are_accepted_where_google_puts_them(upstream: Upstream, tmp_path: Path) -> None:
    key = "sk-secret-of-the-app-0123456789"
    auth = {"mode": "keys", "keys": {"acme": [hashlib.sha256(key.encode()).hexdigest()]}}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "api_key_env": "KEY"}}, auth=auth)
    async with gateway_of(config, EXACT_CACHE, {"KEY": "of-the-gateway"}) as served:
        good = [
            await served.post(f"{WHOLE}?key={key}", asked(), {}),
            await served.post(WHOLE, asked(), {"x-goog-api-key": key}),
        ]
        bad = await served.post(f"{WHOLE}?key=wrong", asked(), {})
    assert [each.status for each in good] == [200, 200]
    assert "detail=exact" in good[1].headers["Cache-Status"]
    assert (bad.status, bad.json["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert [call.headers["Authorization"] for call in upstream.calls] == ["Bearer of-the-gateway"]
    assert key not in str([(call.path, call.headers) for call in upstream.calls])


async def test_an_access_token_goes_to_vertex_as_a_bearer_token(upstream: Upstream, tmp_path: Path) -> None:
    gemini(upstream).url += "/v1/projects/p/locations/l"
    (tmp_path / "key").write_text("ya29.an-access-token")
    async with before(upstream, tmp_path / "data", adapter="gemini", api_key_file=str(tmp_path / "key")) as served:
        answer = await ask(served, asked())
    assert answer.status == 200
    headers = upstream.calls[0].headers
    assert (headers.get("Authorization"), headers.get("x-goog-api-key")) == ("Bearer ya29.an-access-token", None)


async def test_a_part_of_an_answer_or_another_form_of_it_is_no_answer_for_others(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with before(upstream, tmp_path) as served:
        await ask(served, asked())
        verdicts = [
            (await ask(served, asked(), {**KEY, **headers}, WHOLE + query)).headers["Cache-Status"].split("; ")[1]
            for headers, query in (
                ({"x-goog-fieldmask": "candidates"}, ""), ({}, "?alt=proto"), ({}, "?fields=candidates"),
                ({}, "?alt=json"),
            )
        ]  # fmt: skip
    assert verdicts == ["fwd=miss", "fwd=miss", "fwd=miss", "hit"]


async def test_the_system_instruction_the_functions_and_all_settings_reach_the_backend(
    upstream: Upstream, tmp_path: Path
) -> None:
    """BerriAI/litellm #14994: `systemInstruction` and `tools` are lost where a Gemini client meets another backend."""
    body = {
        "system_instruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "What is on this page?"}, PICTURE]},
            {"role": "model", "parts": []},
            {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "", "thoughtSignature": "c2ln"}]},
        ],
        "tools": [{"function_declarations": [LOOK, {"name": "other"}]}],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["look.at:page"]}},
        "generationConfig": {
            "temperature": 0.5, "topP": 0.9, "topK": 64, "maxOutputTokens": 100, "candidateCount": 2, "seed": 7,
            "stopSequences": ["END"], "thinkingConfig": {"thinkingBudget": 0}, "presencePenalty": 0.1,
            "responseMimeType": "application/json",
            "responseSchema": {
                "type": "OBJECT", "properties": {"n": {"type": "INTEGER", "nullable": True, "minimum": 1}},
                "propertyOrdering": ["n"], "required": ["n"],
            },
        },
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }  # fmt: skip
    async with before(upstream, tmp_path, NO_CACHE, model="gpt") as served:
        answer = await ask(served, body)
    assert answer.status == 200, answer.body
    sent = upstream.calls[0].json
    name = sent["tools"][0]["function"]["name"]
    assert name.startswith("look_at_page")
    assert "." not in name
    assert sent == {
        "model": "gpt",
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "seed": 7,
        "n": 2,
        "max_completion_tokens": 100,
        "stop": ["END"],
        "reasoning_effort": "none",
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
                },
            }
        ],
        "tool_choice": "required",
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": {
                    "type": "object",
                    "properties": {"n": {"type": ["integer", "null"], "minimum": 1}},
                    "required": ["n"],
                },
            },
        },
        "messages": [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is on this page?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                ],
            },
        ],
    }


def calling(upstream: Upstream, *, model: str = "gemini-3-pro") -> None:
    """Let an endpoint call a function, signed as Gemini's compatible endpoint signs it, and then tell the results."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        last = call["messages"][-1]
        if last["role"] == "tool":
            results = [each["content"] for each in call["messages"] if each["role"] == "tool"]
            return web.json_response(completion(call, " and ".join(results)))
        name = call["tools"][0]["function"]["name"]
        made = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": f'{{"n": {i}}}'}}
            for i in range(2)
        ]
        made[0] |= {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
        if not call.get("stream"):
            return web.json_response(completion(call, "", "tool_calls", tool_calls=made))
        deltas = [chunk(call, {"tool_calls": [{"index": i, **each}]}) for i, each in enumerate(made)]
        return web.Response(
            body=b"".join([*deltas, chunk(call, {}, "tool_calls"), b"data: [DONE]\n\n"]),
            headers={"Content-Type": "text/event-stream"},
        )

    upstream.answer = answer


@pytest.mark.parametrize("with_ids", [True, False], ids=["with ids", "without ids"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_calls_of_functions_go_there_and_back(
    upstream: Upstream, tmp_path: Path, streamed: bool, with_ids: bool
) -> None:
    """BerriAI/litellm #16893: the signature of a call is lost. praxis-proxy/ai #1000: ids of calls collide, so that a
    result belongs to the wrong call. Clients of Gemini send calls and results with and without ids."""
    calling(upstream)
    body = asked("Look twice.", tools=[{"functionDeclarations": [LOOK]}])
    async with before(upstream, tmp_path, NO_CACHE, model="gemini-3-pro") as served:
        for _ in range(2):
            if streamed:
                told, _ = await chunks(served, body)
                parts = [part for each in told for part in each["candidates"][0]["content"]["parts"]]
                assert told[-1]["candidates"][0]["finishReason"] == "STOP"
            else:
                parts = (await ask(served, body)).json["candidates"][0]["content"]["parts"]
            calls = [part["functionCall"] for part in parts]
            assert [(each["name"], each["args"]) for each in calls] == [("look.at:page", {"n": i}) for i in range(2)]
            assert [part.get("thoughtSignature") for part in parts] == ["c2lnbmVk", None]
            results = [
                {"name": each["name"], "id": each["id"], "response": {"page": each["args"]["n"]}} for each in calls
            ]
            if with_ids:
                results.reverse()
            for each in () if with_ids else (*calls, *results):
                del each["id"]
            turns = [
                {"role": "model", "parts": parts},
                {"role": "user", "parts": [{"functionResponse": each} for each in results]},
            ]
            body = {**body, "contents": [*body["contents"], *turns]}
            last = await ask(served, body)
            assert last.status == 200, last.body
            body = {**body, "contents": [*body["contents"], *asked("Again.")["contents"]]}
    messages = upstream.calls[-1].json["messages"]
    made = [each for message in messages for each in message.get("tool_calls", ())]
    given = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    if not with_ids:
        assert len({each["id"] for each in made}) == len(made) == 4
    assert {each["id"]: json.loads(each["function"]["arguments"])["n"] for each in made} == {
        identity: json.loads(content)["page"] for identity, content in given.items()
    }
    assert [each.get("extra_content") for each in made] == [{"google": {"thought_signature": "c2lnbmVk"}}, None] * 2
    names = {tool["function"]["name"] for tool in upstream.calls[-1].json["tools"]}
    assert {each["function"]["name"] for each in made} == names


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (asked(cachedContent="cachedContents/1"), "'cachedContent'"),
        (asked(tools=[{"googleSearch": {}}]), "the tool 'googleSearch'"),
        (asked(generationConfig={"responseModalities": ["IMAGE"]}), "'responseModalities'"),
        (asked(generationConfig={"speechConfig": {"voiceConfig": {}}}), "'generationConfig.speechConfig'"),
        (asked(generationConfig={"responseLogprobs": True}), "'generationConfig.responseLogprobs'"),
        (asked(generationConfig={"responseMimeType": "text/x.enum"}), "'text/x.enum'"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "gs://b/x.mp4", "mimeType": "video/mp4"}}]}]}, "'fileData'"),
        ({"contents": [{"parts": [{"inlineData": {"data": "AA==", "mimeType": "video/mp4"}}]}]}, "'video/mp4'"),
        ({"contents": [{"parts": [{"executableCode": {"code": "1"}}]}]}, "'executableCode'"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]}, "belongs to no call"),
        ({"contents": [{"role": "narrator", "parts": [{"text": "x"}]}]}, "the role 'narrator'"),
    ],
)
async def test_what_another_protocol_cannot_express_is_refused_in_googles_form(
    upstream: Upstream, tmp_path: Path, body: dict[str, Any], what: str
) -> None:
    async with before(upstream, tmp_path) as served:
        answer = await ask(served, body)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert what in error["message"]
    assert not upstream.calls


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({}, "'contents'"),
        ({"contents": []}, "'contents'"),
        ({"contents": ["hello"]}, "'contents[0]'"),
        ({"contents": [{"parts": "hello"}]}, "'contents[0].parts'"),
        ({"contents": [{"parts": [{"text": 5}]}]}, "'contents[0].parts[0].text'"),
        (asked(generationConfig=[1]), "'generationConfig'"),
        (asked(generationConfig={"temperature": "hot"}), "'temperature'"),
        (asked(generationConfig={}, generation_config={}), "'generationConfig' occurs twice"),
        (b'{"contents": [', "not valid JSON"),
    ],
)
async def test_a_request_that_is_none_is_refused_with_its_place(
    upstream: Upstream, tmp_path: Path, body: Any, what: str
) -> None:
    async with before(upstream, tmp_path) as served:
        answer = await ask(served, body)
    assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert what in answer.json["error"]["message"]
    assert not upstream.calls


@pytest.mark.parametrize(
    ("finish", "message", "reason", "stored"),
    [
        ("length", {}, "MAX_TOKENS", False),
        ("content_filter", {}, "SAFETY", False),
        ("stop", {"refusal": "I will not."}, "SAFETY", False),
        ("stop", {}, "STOP", True),
        ("eos_token", {}, "STOP", True),
        ("weird", {}, "OTHER", False),
    ],
)
async def test_only_a_complete_answer_is_stored(
    upstream: Upstream, tmp_path: Path, finish: str, message: dict[str, Any], reason: str, stored: bool
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call.get("stream"):
            return await stream(request, call, "some words here", finish=finish)
        return web.json_response(completion(call, "" if message else "some words", finish, **message))

    upstream.answer = answer
    async with before(upstream, tmp_path) as served:
        answers = [await ask(served, asked()) for _ in range(2)]
        told, _ = await chunks(served, asked("another question"))
    assert [each.json["candidates"][0]["finishReason"] for each in answers] == [reason] * 2
    assert ("detail=exact" in answers[1].headers["Cache-Status"]) is stored
    if not message:
        assert told[-1]["candidates"][0]["finishReason"] == reason


async def test_a_claude_answers_with_thoughts_functions_and_usage(upstream: Upstream, tmp_path: Path) -> None:
    """BerriAI/litellm #21584: a Gemini request that is routed to Anthropic is not translated properly."""
    anthropic(upstream)
    thinking = {"thinkingConfig": {"includeThoughts": True}, "maxOutputTokens": 5000, "topK": 40}
    body = asked("think and call", tools=[{"functionDeclarations": [LOOK]}], generationConfig=thinking)
    async with before(upstream, tmp_path, adapter="anthropic", model="claude-1") as served:
        whole = (await ask(served, body)).json
        told, _ = await chunks(served, {**body, "generationConfig": {"maxOutputTokens": 5000}})
        refused = await ask(served, asked("x", generationConfig={"candidateCount": 2}))
        parts = whole["candidates"][0]["content"]["parts"]
        [made] = [part["functionCall"] for part in parts if "functionCall" in part]
        result = {"functionResponse": {"name": made["name"], "response": {"seen": 1}}}
        turns = [{"role": "model", "parts": parts}, {"role": "user", "parts": [result]}]
        last = await ask(served, {**body, "contents": [*body["contents"], *turns]})
    assert parts[0] == {"text": "They want to know. " * 3, "thought": True}
    assert made["name"] == "look.at:page"
    assert whole["usageMetadata"]["promptTokenCount"] == 7
    assert whole["usageMetadata"]["cachedContentTokenCount"] == 3
    assert not any(part.get("thought") for each in told for part in each["candidates"][0]["content"]["parts"])
    assert (refused.status, refused.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert last.status == 200, last.body
    assert upstream.calls[0].headers["x-api-key"] == "of-the-client"


async def test_an_error_of_the_backend_comes_in_googles_form(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "slow down", "type": "rate_limit_error"}}, status=429)

    upstream.answer = answer
    async with before(upstream, tmp_path) as served:
        for path in (WHOLE, f"{STREAM}?alt=sse"):
            refused = await ask(served, asked(), path=path)
            error = {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}
            assert (refused.status, refused.json) == (429, {"error": error})


async def test_a_stream_that_breaks_ends_with_an_error_that_googles_client_knows(
    upstream: Upstream, tmp_path: Path
) -> None:
    """The official client takes a chunk for an error if its first bytes are these."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three four", cut=True)

    upstream.answer = answer
    async with before(upstream, tmp_path) as served:
        told, streamed = await chunks(served, asked())
    assert told[-1]["error"]["status"] == "UNAVAILABLE"
    assert b'data: {"error":{"code":' in streamed.body


async def test_no_comment_of_a_backend_reaches_googles_client(upstream: Upstream, tmp_path: Path) -> None:
    """The official client takes a comment for a part of the answer, and fails. It gets a chunk without candidates."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": PROCESSING\n\n")
        await response.write(chunk(call, {"content": "hello"}) + b": PROCESSING\n\n" + chunk(call, {}, "stop"))
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.answer = answer
    async with before(upstream, tmp_path) as served:
        told, streamed = await chunks(served, asked())
    assert b"PROCESSING" not in streamed.body
    assert text_of(*(each for each in told if each["candidates"])) == "hello"


async def test_embeddings_are_cached_input_by_input(upstream: Upstream, tmp_path: Path) -> None:
    batch, one = (WHOLE.replace("generateContent", each) for each in ("batchEmbedContents", "embedContent"))

    def request(text: str, **more: Any) -> dict[str, Any]:
        return {"model": "models/gemini-3-flash", "content": {"parts": [{"text": text}]}, **more}

    async with before(upstream, tmp_path) as served:
        first = await served.post(batch, {"requests": [request("a"), request("bb")]}, KEY)
        again = await served.post(batch, {"requests": [request("bb"), request("ccc"), request("a")]}, KEY)
        alone = await served.post(one, request("dddd", outputDimensionality=2), KEY)
        picture = {"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": "AA=="}}]}}
        refused = await served.post(one, picture, KEY)
        empty = await served.post(batch, {"requests": []}, KEY)
    assert first.json == {"embeddings": [{"values": [0.5, 0.125]}, {"values": [0.5, 0.25]}]}
    assert [each["values"][1] for each in again.json["embeddings"]] == [0.25, 0.375, 0.125]
    assert alone.json == {"embedding": {"values": [0.5, 0.5]}}
    sent = [call.json for call in upstream.calls]
    assert [each["input"] for each in sent] == [["a", "bb"], ["ccc"], ["dddd"]]
    assert sent[2]["dimensions"] == 2
    assert (refused.status, empty.status) == (400, 400)


async def test_tokens_are_estimated_where_the_backend_cannot_count(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    upstream.answer = answer
    count = WHOLE.replace("generateContent", "countTokens")
    async with before(upstream, tmp_path) as served:
        counted = await served.post(count, asked("x" * 400), KEY)
        wrapped = await served.post(count, {"generateContentRequest": {"model": "models/m", **asked("x" * 400)}}, KEY)
    assert (counted.status, counted.json) == (200, {"totalTokens": 100})
    assert wrapped.json == counted.json


async def test_the_models_of_a_route_are_listed_in_googles_form(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served:
        page = await served.get("/v1beta/models?pageSize=50", KEY)
        one = await served.get("/v1beta/models/upstream-model", KEY)
        new = await served.get("/v1/models", KEY)
        missing = await served.get("/v1beta/models/none", KEY)
    assert [each["name"] for each in page.json["models"]] == ["models/upstream-model"]
    assert one.json["displayName"] == "upstream-model"
    assert new.json == page.json
    assert (missing.status, missing.json["error"]["status"]) == (404, "NOT_FOUND")


async def test_a_route_by_model_and_its_limits_hold(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    policy = """
version: 1
routes:
  - name: flash
    match: {model: "gemini-*-flash"}
    limits: {requests: 1/h}
    route: {backend: light}
  - name: default
    match: {}
    route: {backend: large}
"""
    backends = {name: {"adapter": "openai", "url": each.url} for name, each in (("light", light), ("large", large))}
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        routes = [(await ask(served, asked())).headers["x-nearhit-route"]]
        limited = await ask(served, asked())
        vertex = "/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:generateContent"
        routes.append((await ask(served, asked(), path=vertex)).headers["x-nearhit-route"])
    assert routes == ["flash", "default"]
    assert (limited.status, limited.json["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert (len(light.calls), len(large.calls)) == (1, 1)


# Backends that speak the protocol themselves.


@pytest.mark.parametrize(
    ("below", "path", "sent"),
    [
        ("", WHOLE, WHOLE),
        ("/v1beta", WHOLE.replace("v1beta", "v1"), WHOLE),
        (
            "/v1/projects/p/locations/l",
            WHOLE,
            "/v1/projects/p/locations/l/publishers/google/models/gemini-3-flash:generateContent",
        ),
        (
            "/v1/projects/p/locations/l/publishers/google",
            "/v1beta1/projects/other/locations/x/publishers/google/models/gemini-3-flash:generateContent",
            "/v1/projects/p/locations/l/publishers/google/models/gemini-3-flash:generateContent",
        ),
    ],
)
async def test_a_native_backend_gets_the_request_as_it_is_below_its_url(
    upstream: Upstream, tmp_path: Path, below: str, path: str, sent: str
) -> None:
    gemini(upstream).url += below
    body = asked(labels={"a": "b"}, generation_config={"top_k": 3})
    async with before(upstream, tmp_path, adapter="gemini") as served:
        first, again = [await ask(served, body, path=path) for _ in range(2)]
    assert first.json["modelVersion"] == "gemini-3-flash-001"
    assert again.body == first.body
    assert "detail=exact" in again.headers["Cache-Status"]
    assert [call.path for call in upstream.calls] == [sent]
    assert upstream.calls[0].json == asked(labels={"a": "b"}, generationConfig={"topK": 3})
    assert upstream.calls[0].headers["x-goog-api-key"] == "of-the-client"


async def test_a_native_stream_is_stored_and_served_in_either_form(upstream: Upstream, tmp_path: Path) -> None:
    gemini(upstream)
    body = asked("please think", generationConfig={"thinkingConfig": {"includeThoughts": True}})
    async with before(upstream, tmp_path, adapter="gemini", models={"gemini-*": "other"}) as served:
        first, missed = await chunks(served, body)
        again, hit = await chunks(served, body)
        whole = await ask(served, body)
    assert missed.headers["Cache-Status"].startswith("nearhit; fwd=miss")
    assert "detail=exact" in hit.headers["Cache-Status"]
    assert again == first
    assert whole.json["candidates"][0]["content"]["parts"] == [
        {"text": "They want to know.", "thought": True},
        {"text": "gemini answers: please think"},
    ]
    assert whole.json["usageMetadata"]["thoughtsTokenCount"] == 3
    assert [call.path for call in upstream.calls] == ["/v1beta/models/other:streamGenerateContent?alt=sse"]


@pytest.mark.parametrize("word", ["blocked", "unsafe", "long"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_googles_filters_withhold_is_passed_on_and_not_stored(
    upstream: Upstream, tmp_path: Path, word: str, streamed: bool
) -> None:
    gemini(upstream)
    async with before(upstream, tmp_path, adapter="gemini") as served:
        for _ in range(2):
            if streamed:
                told, answer = await chunks(served, asked(word))
                last = told[-1]
            else:
                answer = await ask(served, asked(word))
                last = answer.json
            assert (answer.status, "; hit" in answer.headers["Cache-Status"]) == (200, False)
        if word == "blocked":
            assert last["promptFeedback"]["blockReason"] == "PROHIBITED_CONTENT"
    assert len(upstream.calls) == 2


async def test_a_native_stream_that_is_cut_is_not_stored_and_ends_with_an_error(
    upstream: Upstream, tmp_path: Path
) -> None:
    gemini(upstream)
    told = chunks_of({"candidates": [{"content": {"parts": [{"text": "one two three"}]}, "finishReason": "STOP"}]})

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream_natively(request, told[:2])

    upstream.answer = answer
    async with before(upstream, tmp_path, adapter="gemini") as served:
        for _ in range(2):
            got, streamed = await chunks(served, asked())
            assert "; hit" not in streamed.headers["Cache-Status"]
            assert got[-1]["error"]["status"] == "UNAVAILABLE"
            assert text_of(*got[:-1]) == "one two"


async def test_a_key_of_the_gateway_replaces_the_clients(upstream: Upstream, tmp_path: Path) -> None:
    gemini(upstream)
    async with before(upstream, tmp_path, adapter="gemini", api_key_env="KEY") as served:
        await served.post(f"{WHOLE}?key=of-the-client", asked(), {})
        await ask(served, asked("another"))
        count = await served.post(WHOLE.replace("generateContent", "countTokens"), asked(), KEY)
        listed = await served.get("/v1beta/models", KEY)
    assert [call.headers["x-goog-api-key"] for call in upstream.calls] == ["of-the-gateway"] * 4
    assert "of-the-client" not in str([(call.path, call.headers) for call in upstream.calls])
    assert count.json == {"totalTokens": 31}
    assert listed.json["models"][0]["name"] == "models/gemini-3-flash"


async def test_native_embeddings_name_the_backends_model(upstream: Upstream, tmp_path: Path) -> None:
    gemini(upstream)
    batch = WHOLE.replace("generateContent", "batchEmbedContents")
    requests = [{"model": "models/gemini-3-flash", "content": {"parts": [{"text": each}]}} for each in ("a", "bb")]
    async with before(upstream, tmp_path, adapter="gemini", model="vectors") as served:
        answers = [await served.post(batch, {"requests": requests}, KEY) for _ in range(2)]
    assert answers[0].json == answers[1].json == {"embeddings": [{"values": [0.5, 0.125]}, {"values": [0.5, 0.25]}]}
    [call] = upstream.calls
    assert call.path == "/v1beta/models/vectors:batchEmbedContents"
    assert {each["model"] for each in call.json["requests"]} == {"models/vectors"}
