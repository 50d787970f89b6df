"""Answers of Gemini's protocol, as pure functions: what is stored, and that a stream and a whole hold the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.known import DIALECTS
from gateway.dialects.prompt_tokens import prompt_tokens
from gateway.dialects.targets import canonical_path
from gateway.features.gemini import answers
from gateway.features.gemini.base_url import GeminiUrl
from gateway.features.gemini.schemas import json_schema
from gateway.outcomes import Admission

CALL = {"functionCall": {"name": "look", "args": {"n": 1}}, "thoughtSignature": "c2ln"}
SAID = {"text": "They speak.", "thought": True}


def said(*parts: dict[str, Any], reason: str | None = "STOP", **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [*parts]}, "index": 0, **fields}
    return {"candidates": [candidate | ({} if reason is None else {"finishReason": reason})]}


def dumped(*bodies: dict[str, Any]) -> list[bytes]:
    return [json.dumps(body).encode() for body in bodies]


TEXT = {"text": "hello there"}
USAGE = {
    "promptTokenCount": 9, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "cachedContentTokenCount": 2,
    "totalTokenCount": 16,
}  # fmt: skip

WHOLES = {
    "a text": (said(TEXT), Admission.STORED),
    "thoughts and a text": (said(SAID, TEXT), Admission.STORED),
    "a text with a signature": (said({**TEXT, "thoughtSignature": "c2ln"}), Admission.STORED),
    "a picture": (said({"inlineData": {"mimeType": "image/png", "data": "AA=="}}), Admission.STORED),
    "a call": (said(CALL), Admission.TOOLS),
    "code that was run": (said(TEXT, {"executableCode": {"code": "1"}}), Admission.TOOLS),
    "a search": (said(TEXT, groundingMetadata={"webSearchQueries": ["x"]}), Admission.TOOLS),
    "no parts with STOP": ({"candidates": [{"content": {}, "finishReason": "STOP"}]}, Admission.EMPTY),  # AstrBot #6735
    "null parts": ({"candidates": [{"content": {"parts": None}, "finishReason": "STOP"}]}, Admission.EMPTY),
    "an empty text": (said({"text": ""}), Admission.EMPTY),
    "thoughts alone": (said(SAID), Admission.EMPTY),
    "a signature alone": (said({"thoughtSignature": "c2ln"}), Admission.EMPTY),
    # vercel/ai #5039, pydantic/pydantic-ai #631: an empty content next to this reason
    "a malformed call": (
        {"candidates": [{"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL"}]}, Admission.INCOMPLETE
    ),
    "the limit": (said(TEXT, reason="MAX_TOKENS"), Admission.INCOMPLETE),
    "a filter": ({"candidates": [{"finishReason": "SAFETY", "index": 0}]}, Admission.REFUSED),
    "a recitation": (said(TEXT, reason="RECITATION"), Admission.REFUSED),
    "another reason": (said(TEXT, reason="OTHER"), Admission.INCOMPLETE),
    "a blocked prompt": ({"promptFeedback": {"blockReason": "SAFETY"}}, Admission.REFUSED),
    "no candidates": ({"candidates": [], "usageMetadata": USAGE}, Admission.INCOMPLETE),  # langchain-google #188
    "an unspecified reason": (said(TEXT, reason="FINISH_REASON_UNSPECIFIED"), Admission.INCOMPLETE),
    "an error": ({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}, Admission.ERROR_STATUS),
    "a list": ([], Admission.MALFORMED),
}  # fmt: skip


@pytest.mark.parametrize(("body", "admission"), WHOLES.values(), ids=WHOLES)
def test_only_a_complete_answer_is_admitted(body: Any, admission: Admission) -> None:
    assert answers.inspect(dumped(body), streamed=False).admission is admission


@pytest.mark.parametrize("body", [body for body, admission in WHOLES.values() if admission is Admission.STORED])
def test_a_whole_answer_and_its_stream_hold_the_same(body: dict[str, Any]) -> None:
    body = {**body, "usageMetadata": USAGE, "modelVersion": "g", "responseId": "r"}
    events = [event.data for event in answers.split(json.dumps(body).encode())]
    assert json.loads(answers.assemble(events)) == body
    inspection = answers.inspect(events, streamed=True)
    assert inspection.admission is Admission.STORED
    assert inspection.tokens == (9, 7, 2, 0, 3)


def test_several_candidates_stay_apart() -> None:
    one, two = said({"text": "one two three four five six seven"})["candidates"][0], said(CALL)["candidates"][0]
    body = {"candidates": [one, {**two, "index": 1}]}
    assert json.loads(answers.assemble([event.data for event in answers.split(json.dumps(body).encode())])) == body
    open_candidates = answers.OpenCandidates()
    for each in dumped(said(TEXT), {"candidates": [{"index": 1, "content": {}}]}):
        open_candidates.feed(each)
    assert open_candidates
    open_candidates.feed(dumped({"candidates": [{"index": 1, "finishReason": "STOP"}]})[0])
    assert not open_candidates


STREAMS = {
    # vercel/ai #3637: a chunk with an empty list of candidates; braintrust-proxy #91: the usage comes last, alone
    "chunks without candidates": [
        {"candidates": [], "usageMetadata": {"promptTokenCount": 9}}, said(TEXT, reason=None), {"modelVersion": "g"},
        said({"text": ""}), {"usageMetadata": USAGE},
    ],
    # github-copilot-api-vscode #100: every chunk says STOP
    "a reason in each chunk": [said({"text": "hello "}), {**said({"text": "there"}), "usageMetadata": USAGE}],
    "an index and a role left out": [
        {"candidates": [{"content": {"parts": [TEXT]}}]},
        {"candidates": [{"content": None, "finishReason": "STOP"}], "usageMetadata": USAGE},
    ],
}  # fmt: skip


@pytest.mark.parametrize("chunks", STREAMS.values(), ids=STREAMS)
def test_chunks_as_servers_send_them_make_one_answer(chunks: list[dict[str, Any]]) -> None:
    whole = json.loads(answers.assemble(dumped(*chunks)))
    assert [part["text"] for part in whole["candidates"][0]["content"]["parts"]] == ["hello there"]
    assert whole["usageMetadata"] == USAGE
    inspection = answers.inspect(dumped(*chunks), streamed=True)
    assert (inspection.admission, inspection.tokens) == (Admission.STORED, (9, 7, 2, 0, 3))
    assert answers.text(json.dumps(whole).encode()) == "hello there"


def test_a_stream_without_a_reason_is_cut() -> None:
    chunks = dumped(said(TEXT, reason=None), said({"text": " more"}, reason=None))
    assert answers.inspect(chunks, streamed=True).admission is Admission.CUT
    assert not any(map(answers.is_finished, chunks))


def test_signatures_between_texts_are_not_lost() -> None:
    signed = {"text": "", "thoughtSignature": "c2ln"}
    chunks = [said({"text": "one "}, reason=None), said(signed, reason=None), said({"text": "two"})]
    parts = json.loads(answers.assemble(dumped(*chunks)))["candidates"][0]["content"]["parts"]
    assert parts == [{"text": "one "}, signed, {"text": "two"}]


def test_the_tokens_of_the_prompt_are_read_for_the_prompt_cache() -> None:
    assert prompt_tokens(dumped({"usageMetadata": USAGE})[0]) == (9, 2)


def test_a_schema_becomes_json_schema() -> None:
    given = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["a"], "nullable": True},
            "some_list": {"type": "ARRAY", "items": {"any_of": [{"type": "NUMBER"}]}, "max_items": "3"},
        },
        "propertyOrdering": ["type"],
    }
    assert json_schema(given) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["a", None]},
            "some_list": {"type": "array", "items": {"anyOf": [{"type": "number"}]}, "maxItems": 3},
        },
    }


PATHS = {
    "/v1beta/models/gemini-3-pro:generateContent": "gemini-3-pro",
    "/v1alpha/models/gemini-3-pro:streamGenerateContent": "gemini-3-pro",
    "/v1/models/org/name:8b:generateContent": "org/name:8b",
    "/v1beta/models/a%2Fb:embedContent": "a/b",
    "/v1/projects/p/locations/l/publishers/google/models/g:generateContent": "g",
    "/v1beta1/publishers/google/models/g:batchEmbedContents": "g",
}


@pytest.mark.parametrize(("path", "model"), PATHS.items())
def test_the_path_names_the_model(path: str, model: str) -> None:
    assert DIALECTS.claimant("POST", path) == "gemini"
    content = {"parts": [TEXT]}
    body = {"contents": [content], "content": content, "requests": [{"content": content}]}
    assert DIALECTS["gemini"].parse(path, json.dumps(body).encode(), {}).model == model


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/g:countTokens",
        "/v1beta/tunedModels/g:generateContent",
        "/v1/projects/p/locations/l/publishers/anthropic/models/claude:rawPredict",
        "/v1/models/g:predict",
        "/v1beta/files",
    ],
)
def test_other_operations_are_not_claimed(path: str) -> None:
    assert DIALECTS.claimant("POST", path) != "gemini"


def test_a_path_that_is_spelt_in_another_way_is_the_same() -> None:
    assert canonical_path("POST", "/v1beta//models/g%3AgenerateContent") == "/v1beta/models/g:generateContent"


TARGETS = {
    ("https://h", "/v1beta/models/g:generateContent"): "/v1beta/models/g:generateContent",
    ("https://h/v1", "/v1beta/models/g:generateContent"): "/v1/models/g:generateContent",
    ("https://h/gemini/v1beta", "/v1/models"): "/gemini/v1beta/models",
    ("https://h/v1beta", "/upload/v1beta/files"): "/upload/v1beta/files",
    ("https://h/v1beta", "/v1alpha/files/x"): "/v1beta/files/x",
    ("https://h/v1/projects/p/locations/l", "/v1beta/models/g:countTokens"): "/v1/projects/p/locations/l/publishers/"
    "google/models/g:countTokens",
    ("https://h/v1/projects/p/locations/l", "/v1/projects/p/locations/l/cachedContents"): "/v1/projects/p/locations/l/"
    "cachedContents",
}  # fmt: skip


@pytest.mark.parametrize(("asked", "sent"), TARGETS.items())
def test_a_path_becomes_that_of_the_endpoint(asked: tuple[str, str], sent: str) -> None:
    url, path = asked
    assert GeminiUrl("main", url).target(path, "alt=sse") == f"{sent}?alt=sse"
