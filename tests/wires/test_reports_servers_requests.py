"""What public reports say that libraries ask of model servers, and what those answer. `LOG.md` names the reports."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.gateways import BOTH_CACHES, EXACT_CACHE, NO_CACHE
from tests.wires.scripted import (
    DONE,
    STOP,
    Pair,
    before_raw,
    chunk,
    completion,
    data,
    message,
    scripted,
    sse,
    values_of,
    whole,
)

BODY = json.dumps(completion({"content": "Hello"})).encode()
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def vectors(*lists: Any) -> bytes:
    items = [{"object": "embedding", "index": i, "embedding": values} for i, values in enumerate(lists)]
    return whole(json.dumps({"object": "list", "data": items, "model": "m"}).encode())


@pytest.mark.parametrize("policy", [NO_CACHE, BOTH_CACHES], ids=["uncached", "cached"])
@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        {"items": [{"text": "a"}, {"image": "AAAA"}]},
        {"input": {"text": "a"}},
        {"input": [{"text": "a"}, {"image": "AAAA"}]},
        {"input": [{"type": "text", "text": "a"}, IMAGE]},
        {"input": [[{"role": "user", "content": "a"}]]},
    ],
    ids=["messages", "items", "object", "objects", "parts", "conversations"],
)
async def test_embeddings_of_what_is_no_text_go_to_the_server_as_they_came(
    tmp_path: Path, policy: str, asked: dict[str, Any]
) -> None:
    async with before_raw(tmp_path, policy) as (served, raw):
        raw.answer(vectors([0.5, 1.0]))
        for _ in range(2):
            answer = await served.post("/v1/embeddings", {"model": "m", **asked})
            assert answer.status == 200, answer.body
            assert [item["embedding"] for item in answer.json["data"]] == [[0.5, 1.0]]
        assert all(json.loads(request.body) == {"model": "m", **asked} for request in raw.requests)


async def test_personal_data_within_messages_to_embed_is_found(tmp_path: Path) -> None:
    private = EXACT_CACHE.rstrip() + "\n    privacy: {pii: [email], action: bypass}\n"
    said = {"messages": [{"role": "user", "content": [{"type": "text", "text": "I am ann@example.org"}, IMAGE]}]}
    async with before_raw(tmp_path, private) as (served, raw):
        raw.answer(vectors([0.5, 1.0]))
        for asked in (said, {"input": [{"text": "I am ann@example.org"}]}):
            answer = await served.post("/v1/embeddings", {"model": "m", **asked})
            assert "detail=personal-data" in answer.cache_status


@pytest.mark.parametrize("given", [[1, 2], [[1, 2], [3]]])
async def test_token_ids_are_inputs(pair: Pair, given: Any) -> None:
    served, raw = pair
    lists = [[0.5, 1.0], [0.25, 2.0]][: 1 if given == [1, 2] else 2]
    refused = whole(b'{"detail":[{"msg":"Input should be a valid string"}]}', status=b"422 Unprocessable Entity")
    scripted(raw, [refused, vectors(*lists)])
    answer = await served.post("/v1/embeddings", {"model": "m", "input": given})
    assert (answer.status, answer.json) == (422, {"detail": [{"msg": "Input should be a valid string"}]})
    for _ in range(2):
        answer = await served.post("/v1/embeddings", {"model": "m", "input": given})
        assert [item["embedding"] for item in answer.json["data"]] == lists
    assert len(raw.requests) == 2
    assert json.loads(raw.requests[1].body)["input"] == given


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 0, "echo": True, "logprobs": 1}, {"max_tokens": -1}, {"max_tokens": 16.0}, {"temperature": 3}],
    ids=["none", "unbounded", "float", "hot"],
)
async def test_the_server_judges_numbers(pair: Pair, fields: dict[str, Any]) -> None:
    served, raw = pair
    choice = {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    raw.answer(whole(json.dumps({"id": "c", "object": "text_completion", "choices": [choice]}).encode()))
    for _ in range(2):
        answer = await served.post("/v1/completions", {"model": "m", "prompt": "Hel", **fields})
        assert answer.status == 200, answer.body
    assert json.loads(raw.requests[0].body).items() >= fields.items()
    raw.answer(whole(BODY))
    assert (await served.chat("hi", **fields)).status == 200


async def test_a_prompt_of_null_goes_to_the_server(pair: Pair) -> None:
    served, raw = pair
    choice = {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    raw.answer(whole(json.dumps({"id": "c", "object": "text_completion", "choices": [choice]}).encode()))
    for asked in ({"prompt": None, "prompt_embeds": "AAAA"}, {"prompt_embeds": "BBBB"}):
        assert (await served.post("/v1/completions", {"model": "m", **asked})).status == 200
    assert [json.loads(request.body).get("prompt_embeds") for request in raw.requests] == ["AAAA", "BBBB"]


async def test_speech_that_ends_with_its_expiry_is_whole_and_not_cut(pair: Pair) -> None:
    served, raw = pair
    sound = [b"abc", b"de", b"f"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "audio": {"id": "audio_1", "transcript": "Hel"}}]
    deltas += [{"audio": {"data": base64.b64encode(piece).decode()}} for piece in sound]
    deltas += [{"audio": {"transcript": "lo"}}, {"audio": {"expires_at": 99}}]
    raw.answer(sse(*(data(chunk(delta)) for delta in deltas), DONE))
    streamed, joined = await asyncio.gather(served.chat("hi", stream=True), served.chat("hi"))
    assert values_of(streamed.body) == [chunk(delta) for delta in deltas]
    audio = joined.json["choices"][0]["message"]["audio"]
    assert base64.b64decode(audio.pop("data")) == b"".join(sound)
    assert audio == {"id": "audio_1", "transcript": "Hello", "expires_at": 99}


async def test_fragments_of_reasoning_details_become_one_with_its_signature(pair: Pair) -> None:
    served, raw = pair
    shared = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    other = {"type": "reasoning.encrypted", "data": "xyz", "format": "openai", "id": "r2", "index": 1}
    parts = [{**shared, "text": "Let"}, {**shared, "text": " me"}, {**shared, "signature": "Et8B"}, other]
    deltas = [{"role": "assistant", "content": "", "reasoning_details": [part]} for part in parts]
    raw.answer(sse(*(data(chunk(delta)) for delta in deltas), data(chunk({"content": "391"})), STOP, DONE))
    for _ in range(2):
        said = (await served.chat("hi")).json["choices"][0]["message"]
        assert said["reasoning_details"] == [{**shared, "text": "Let me", "signature": "Et8B"}, other]
        assert said["content"] == "391"
    assert len(raw.requests) == 1


async def test_reasoning_and_token_ids_of_vllm_are_kept(pair: Pair) -> None:
    served, raw = pair
    chunks = [
        chunk(delta) for delta in ({"role": "assistant"}, {"reasoning": "so"}, {"reasoning": " it"}, {"content": "A"})
    ]
    for each, ids in zip(chunks, (None, [1], [2, 3], [4]), strict=True):
        each["choices"][0] |= {"logprobs": None, "token_ids": ids}
    raw.answer(sse(*map(data, chunks), STOP, DONE))
    choice = (await served.chat("hi")).json["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "A", "reasoning": "so it"}
    assert choice["token_ids"] == [1, 2, 3, 4]
    streamed = values_of((await served.chat("hi", stream=True)).body)
    assert streamed[: len(chunks)] == chunks
    blocks = (await message(served)).json["content"]
    assert [(block["type"], block.get("thinking", block.get("text"))) for block in blocks] == [
        ("thinking", "so it"), ("text", "A"),
    ]  # fmt: skip


@pytest.mark.parametrize("said", [b"", b"<html>502</html>", b"\xff\xfe", b"upstream connect error"])
async def test_errors_that_are_no_json_come_through(tmp_path: Path, said: bytes) -> None:
    path, body = "/v2/models/m/infer", {"inputs": [{"name": "a", "shape": [1], "datatype": "FP32", "data": [1]}]}
    async with before_raw(tmp_path, adapter="kserve") as (served, raw):
        raw.answer(whole(said, status=b"400 Bad Request", headers=b"Content-Type: text/html\r\n"))
        answer = await served.post(path, body)
        assert (answer.status, answer.body) == (400, said)
    async with before_raw(tmp_path) as (served, raw):
        raw.answer(whole(said, status=b"400 Bad Request", headers=b"Content-Type: text/html\r\n"))
        answer = await served.chat("hi")
        assert (answer.status, answer.body) == (400, said)
        translated = await message(served)
        assert translated.status == 400
        assert translated.json["type"] == "error"
