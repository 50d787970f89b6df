"""One entry serves stream and non-stream clients, whichever stored it, as the official client and the wire see it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.dialects.openai.answers import split
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, fast_path, gateway_of
from tests.fixtures.upstream import USAGE, Upstream
from tests.fixtures.waiting import until
from tests.http_server.conftest import openai_client

OWNER = {"Authorization": "Bearer sk-test"}  # as the SDK's client sends it: they share what it may see
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Which ports does it listen on?"}],
    "n": 2,
}
PROMPT: dict[str, Any] = {"model": "m", "prompt": "Once upon a time"}


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}


def choice(index: int, content: str, **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, "refusal": None, **message}
    logprobs = {"content": [token(word) for word in content.split()], "refusal": None}
    return {"index": index, "message": said, "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None}


HEAD = {"created": 1700000000, "model": "m", "system_fingerprint": "fp_1", "of_the_vendor": {"a": [1, None]}}
CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    **HEAD,
    "choices": [
        choice(0, "Two ports: 8080 and 9090. " * 8, reasoning_content="They asked for ports. " * 5, annotations=[]),
        choice(1, "8080 for requests", reasoning="hm", content_filter={"hate": {"filtered": False}}),
    ],
    "usage": USAGE,
}
COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    **HEAD,
    "choices": [
        {"index": 0, "text": "there was a cache " * 9, "logprobs": {"tokens": ["a", "b"]}, "finish_reason": "stop"},
        {"index": 1, "text": "nothing", "logprobs": None, "finish_reason": "stop"},
    ],
    "usage": USAGE,
}


def scripted(usage: bool = True) -> Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]:
    """The same answer in the form that was asked for; the bytes of a whole one are spaced as nobody else would."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        operation, body = ("chat.completions", CHAT_ANSWER) if request.path == CHAT else ("completions", COMPLETION)
        whole = json.dumps(body, indent=3, separators=(" ,", " : ")).encode()
        if not call.get("stream"):
            return web.Response(body=whole, content_type="application/json")
        assert call["stream_options"]["include_usage"]  # the gateway always asks
        frames = b"".join(event.frame() for event in split(operation, whole))
        return web.Response(body=frames, content_type="text/event-stream")

    return answer


@pytest.fixture
def scripted_upstream(upstream: Upstream) -> Upstream:
    upstream.answer = scripted()
    return upstream


def policy(cache: str) -> str:
    return BOTH_CACHES.replace("cache: {", f"cache: {{{cache}, ")


def gateway(upstream: Upstream, tmp_path: Path, cache: str) -> Any:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    return gateway_of(config, policy(cache))


async def test_a_whole_answer_is_served_again_byte_for_byte(served: Served, scripted_upstream: Upstream) -> None:
    for path, ask in ((CHAT, ASK), (TEXT, PROMPT)):
        miss, *hits = [await served.post(path, ask) for _ in range(3)]
        assert b'" :' in miss.body
        assert [(hit.cache_status.split("; ttl")[0], hit.body) for hit in hits] == [
            ("nearhit; hit; detail=exact", miss.body)
        ] * 2
    assert len(scripted_upstream.calls) == 2


async def test_a_stream_is_served_again_byte_for_byte(served: Served, scripted_upstream: Upstream) -> None:
    ask = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    miss, *hits = [await served.post(CHAT, ask) for _ in range(3)]
    assert miss.body.endswith(b"data: [DONE]\n\n")
    assert [hit.body for hit in hits] == [miss.body] * 2  # by all steps, then by the fast path
    assert hits[-1].headers["Content-Type"] == miss.headers["Content-Type"]
    assert len(scripted_upstream.calls) == 1


@pytest.mark.parametrize("first", ["whole", "stream", "stream with usage"])
async def test_every_form_is_served_from_one_entry(served: Served, scripted_upstream: Upstream, first: str) -> None:
    """Whoever stored it, and asked again: by all steps, and by the fast path."""
    forms: dict[str, dict[str, Any]] = {
        "whole": {},
        "stream": {"stream": True},
        "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
        "stream without": {"stream": True, "stream_options": {"include_usage": False}},
    }
    await served.post(CHAT, {**ASK, **forms[first]})
    for name, form in [*forms.items()] * 2:
        answer = await served.post(CHAT, {**ASK, **form})
        assert answer.cache_status.startswith("nearhit; hit; detail=exact")
        if name == "whole":
            assert answer.json == CHAT_ANSWER
            continue
        chunks = [json.loads(frame[6:]) for frame in answer.body.split(b"\n\n")[:-2]]
        assert [c["usage"] for c in chunks if c.get("usage")] == ([USAGE] if name == "stream with usage" else [])
    assert len(scripted_upstream.calls) == 1


def accumulated(chunks: list[ChatCompletionChunk]) -> dict[str, Any]:
    """What a reader of the chunks has in the end. The SDK's own accumulator reads fields that it does not know from
    the first chunk alone."""
    body: dict[str, Any] = {"choices": {}}
    for chunk in chunks:
        seen = chunk.to_dict(exclude_unset=True)
        for each in seen.pop("choices"):  # type: ignore[attr-defined]
            merged = body["choices"].setdefault(each["index"], {"message": {}})
            for key, value in each.pop("delta").items():
                before = merged["message"].get(key)
                merged["message"][key] = before + value if isinstance(before, str) and before else value
            merged.update({key: value for key, value in each.items() if value is not None or key not in merged})
        body.update(seen)
    return {**body, "object": "chat.completion", "choices": [body["choices"][i] for i in sorted(body["choices"])]}


def by_the_sdk(chunks: list[ChatCompletionChunk]) -> ChatCompletion:
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    return state.get_final_completion()


@pytest.mark.parametrize("stored_by", ["whole", "stream"])
@pytest.mark.parametrize("client", ["async", "sync"])
async def test_the_sdk_puts_together_what_was_answered(
    served: Served, scripted_upstream: Upstream, stored_by: str, client: str
) -> None:
    await served.post(CHAT, {**ASK, "stream": stored_by == "stream"}, OWNER)
    whole, chunks = await (by_async if client == "async" else by_sync)(served)
    assert whole.to_dict() == CHAT_ANSWER
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 5
    assert accumulated(chunks) == CHAT_ANSWER
    final = by_the_sdk(chunks)
    assert final.usage == whole.usage
    for said, expected in zip(final.choices, whole.choices, strict=True):
        assert (said.message.role, said.message.content) == ("assistant", expected.message.content)
        assert (said.logprobs, said.finish_reason) == (expected.logprobs, expected.finish_reason)
    assert len(scripted_upstream.calls) == 1


WITH_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def by_async(served: Served) -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
    async with openai_client(served) as client:
        whole = await client.chat.completions.create(**ASK)
        return whole, [chunk async for chunk in await client.chat.completions.create(**ASK, **WITH_USAGE)]


async def by_sync(served: Served) -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
    def ask() -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0) as client:
            return client.chat.completions.create(**ASK), [*client.chat.completions.create(**ASK, **WITH_USAGE)]

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("stored_by", ["whole", "stream"])
@pytest.mark.parametrize("client", ["async", "sync"])
async def test_the_sdk_reads_completions_in_both_forms(
    served: Served, scripted_upstream: Upstream, stored_by: str, client: str
) -> None:
    await served.post(TEXT, {**PROMPT, "stream": stored_by == "stream"}, OWNER)

    def by_thread() -> tuple[Completion, list[Completion]]:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0) as sync:
            return sync.completions.create(**PROMPT), [*sync.completions.create(**PROMPT, **WITH_USAGE)]

    if client == "sync":
        whole, chunks = await asyncio.to_thread(by_thread)
    else:
        async with openai_client(served) as asynchronous:
            whole = await asynchronous.completions.create(**PROMPT)
            chunks = [c async for c in await asynchronous.completions.create(**PROMPT, **WITH_USAGE)]
    assert whole.to_dict() == COMPLETION
    for index, expected in enumerate(COMPLETION["choices"]):  # type: ignore[arg-type]
        own = [each for chunk in chunks for each in chunk.choices if each.index == index]
        assert "".join(each.text for each in own) == expected["text"]
        assert own[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.to_dict() == USAGE
    assert len(scripted_upstream.calls) == 1


async def test_hits_get_ids_of_their_own_where_the_policy_says_so(scripted_upstream: Upstream, tmp_path: Path) -> None:
    async with gateway(scripted_upstream, tmp_path, "fresh_ids: on") as served:
        started = int(time.time())
        assert (await served.post(CHAT, ASK)).json == CHAT_ANSWER  # a miss is the backend's own
        hits = [(await served.post(CHAT, ASK)).json for _ in range(3)]
        streams = [await served.post(CHAT, {**ASK, "stream": True}) for _ in range(3)]
    chunks = [[json.loads(frame[6:]) for frame in answer.body.split(b"\n\n")[:-2]] for answer in streams]
    ids = [hit["id"] for hit in hits] + [each[0]["id"] for each in chunks]
    assert len(set(ids)) == 6
    assert all(each.startswith("chatcmpl-") and each != "chatcmpl-1" for each in ids)
    for each in chunks:
        assert len({(chunk["id"], chunk["created"]) for chunk in each}) == 1
    for hit in hits:
        assert hit["created"] >= started
        assert {**hit, "id": "chatcmpl-1", "created": 1700000000} == CHAT_ANSWER
    assert len(scripted_upstream.calls) == 1


async def events_of(served: Served, body: dict[str, Any]) -> AsyncIterator[bytes]:
    async with served.session.post(served.url + CHAT, json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                yield line


async def test_a_paced_stream_says_the_same_as_one_at_once(scripted_upstream: Upstream, tmp_path: Path) -> None:
    ask = {**ASK, **WITH_USAGE}
    async with gateway(scripted_upstream, tmp_path, "replay: paced, replay_rate: 1000/s") as served:
        miss, hit = await served.post(CHAT, ask), await served.post(CHAT, ask)
        assert hit.cache_status.startswith("nearhit; hit; detail=exact")
        assert hit.body == miss.body
        assert (await served.post(CHAT, ASK)).json == CHAT_ANSWER


async def test_a_paced_stream_ends_when_its_client_leaves(scripted_upstream: Upstream, tmp_path: Path) -> None:
    async with gateway(scripted_upstream, tmp_path, "replay: paced, replay_rate: 0.1/s") as served:
        await served.post(CHAT, ASK)
        events = events_of(served, {**ASK, "stream": True})
        assert b'"role":"assistant"' in await anext(events)  # the first one at once
        assert served.gateway.inflight.count == 1
        await events.aclose()
        await until(lambda: served.gateway.inflight.count == 0)


async def test_every_stream_hit_is_observed_once(served: Served, scripted_upstream: Upstream) -> None:
    """By all steps, and by the fast path."""
    requests = served.gateway.parts.telemetry.requests
    for _ in range(4):
        await served.post(CHAT, {**ASK, "stream": True})
    await until(lambda: sum(requests.values.values()) == 4)
    assert {key[2]: count for key, count in requests.values.items()} == {"miss": 1, "exact": 3}


async def test_streams_that_are_remembered_take_bounded_memory(
    served: Served, scripted_upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not remembered is answered all the same."""
    monkeypatch.setattr(fast_path(served)._hits, "_max_weight", 1)
    answers = [(await served.post(CHAT, {**ASK, "stream": True})).body for _ in range(4)]
    assert answers[1:] == answers[:1] * 3
