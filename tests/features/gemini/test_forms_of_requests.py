"""Requests as Google's documentation, its libraries and older clients write them: each means what it means there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.dialects.known import DIALECTS
from gateway.features.gemini.token_counts import estimate_tokens
from tests.features.gemini.test_gemini_clients import asked, before
from tests.fixtures.gemini_upstream import gemini
from tests.fixtures.upstream import Upstream

PATH = "/v1beta/models/gemini-3-flash:generateContent"
LOOK = {"name": "look", "parameters": {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}}}

# Google's parser takes one element for a list of one, and its examples are written so:
# https://ai.google.dev/gemini-api/docs/system-instructions, https://cloud.google.com/vertex-ai/docs/reference/rest
SAME_AS = {
    "one turn": (
        {"contents": {"role": "user", "parts": {"text": "hello"}}},
        {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
    ),
    "a role in capitals": (
        {"contents": [{"role": "USER", "parts": [{"text": "hello"}]}]},
        {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
    ),
    "one part of the system's": (
        asked(system_instruction={"parts": {"text": "You are a cat."}}),
        asked(systemInstruction={"parts": [{"text": "You are a cat."}]}),
    ),
    "one tool": (
        asked(tools={"function_declarations": LOOK}),
        asked(tools=[{"functionDeclarations": [LOOK]}]),
    ),
    "one setting of safety": (
        asked(safety_settings={"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}),
        asked(safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]),
    ),
    "one stop": (
        asked(generationConfig={"stopSequences": "END", "maxOutputTokens": "100"}),
        asked(generationConfig={"stopSequences": ["END"], "maxOutputTokens": 100}),
    ),
    "one allowed function": (
        asked(toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": "look"}}),
        asked(toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}}),
    ),
    "a schema whose name begins with an underscore": (
        asked(generation_config={"_responseJsonSchema": {"type": "object", "properties": {"a_b": {}}}}),
        asked(generationConfig={"_responseJsonSchema": {"type": "object", "properties": {"a_b": {}}}}),
    ),
    "the same in snake case": (
        asked(generationConfig={"_response_json_schema": {"properties": {"a_b": {}}}}),
        asked(generationConfig={"_responseJsonSchema": {"properties": {"a_b": {}}}}),
    ),
}


@pytest.mark.parametrize(("written", "plain"), SAME_AS.values(), ids=SAME_AS)
def test_a_form_of_a_request_that_google_reads_is_the_same_request(
    written: dict[str, Any], plain: dict[str, Any]
) -> None:
    dialect = DIALECTS["gemini"]
    calls = [dialect.parse(PATH, orjson.dumps(each), {}) for each in (written, plain)]
    assert calls[0].body == calls[1].body == plain
    assert calls[0].decisive == calls[1].decisive


def test_one_input_may_stand_alone_in_requests_for_vectors_and_counts() -> None:
    content = {"parts": {"text": "hello"}}
    one = DIALECTS["gemini"].parse("/v1beta/models/e:embedContent", orjson.dumps({"content": content}), {})
    batch = DIALECTS["gemini"].parse(
        "/v1beta/models/e:batchEmbedContents", orjson.dumps({"requests": {"content": content}}), {}
    )
    assert one.questions == batch.questions == ("hello",)
    listed = {"contents": [{"parts": [{"text": "hello there"}]}]}
    assert estimate_tokens({"contents": {"parts": {"text": "hello there"}}}) == estimate_tokens(listed)


async def test_one_tool_that_stands_alone_reaches_a_backend_of_another_protocol(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with before(upstream, tmp_path) as served:
        answer = await served.post(PATH, asked(tools={"functionDeclarations": LOOK}), {"x-goog-api-key": "k"})
    assert answer.status == 200, answer.body
    assert [each["function"]["name"] for each in upstream.calls[0].json["tools"]] == ["look"]


async def test_the_schema_of_an_answer_reaches_gemini_under_its_name(upstream: Upstream, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"first_name": {"type": "string"}}}
    body = asked(generation_config={"_responseJsonSchema": schema}, labels={"team_name": "a"})
    async with before(gemini(upstream), tmp_path, adapter="gemini") as served:
        answer = await served.post(PATH, body, {"x-goog-api-key": "k"})
    assert answer.status == 200, answer.body
    assert upstream.calls[0].json["generationConfig"] == {"_responseJsonSchema": schema}


DIFFER: list[dict[str, Any]] = [
    {"cachedContent": "cachedContents/a"},
    {"cached_content": "cachedContents/b"},
    {"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]},
    {"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_LOW_AND_ABOVE"}]},
    {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
    {"tools": [{"googleSearch": {}}]},
    {"tools": [{"codeExecution": {}}]},
    {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
    *({"generationConfig": {key: value}} for key, value in (
        ("candidateCount", 2), ("maxOutputTokens", 5), ("seed", 1), ("seed", 2), ("topK", 1), ("topP", 0.5),
        ("temperature", 0), ("responseMimeType", "application/json"), ("responseSchema", {"type": "OBJECT"}),
        ("thinkingConfig", {"includeThoughts": True}), ("thinkingConfig", {"thinkingBudget": 0}),
        ("responseModalities", ["IMAGE"]), ("speechConfig", {}), ("stopSequences", ["a"]), ("stopSequences", ["b"]),
    )),
]  # fmt: skip


def test_whatever_changes_an_answer_keeps_entries_apart() -> None:
    calls = [DIALECTS["gemini"].parse(PATH, orjson.dumps(asked(**more)), {}) for more in ({}, *DIFFER)]
    assert len({call.decisive.canonical for call in calls}) == len(calls)
    assert len({call.decisive.context for call in calls}) == len(calls)
