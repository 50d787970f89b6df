"""What would take a text past the guard: forms of requests, answers and events that hide it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from gateway.dialects.sse import SSEParser
from gateway.errors import AnswerWithheld
from gateway.features.guard.texts import content_of_answer
from gateway.messages import Event
from tests.features.guard.conftest import Guarded
from tests.features.guard.test_stream import BODIES, Guard, call_of, guarded_stream, read
from tests.fixtures.upstream import completion
from tests.wires.forms import PATHS, Form, all_forms

CHAT = "/v1/chat/completions"


def said(**message: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}, {"role": "user", **message}]}


HIDDEN: list[tuple[str, dict[str, Any]]] = [
    (CHAT, said(type="function_call", content="forbidden")),
    (CHAT, said(type="tool_use", content=[{"type": "text", "text": "forbidden"}])),
    (CHAT, said(type="image", source={"data": "aGk="}, content="forbidden")),
    (CHAT, said(type="image_url", image_url={"url": "data:,", "text": "forbidden"}, content="x")),
    (CHAT, said(type="base64", content="forbidden")),
    (CHAT, said(content=[{"type": "image_url", "image_url": {"url": "data:,"}, "text": "forbidden"}])),
    (CHAT, said(content=[{"type": "image_url", "image_url": "data:,", "source": {"data": "forbidden"}}])),
    (CHAT, said(tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "forbidden"}}], content=None)),
    (CHAT, said(function_call={"arguments": "forbidden"}, content="x")),
    (CHAT, said(content="x", reasoning_content="forbidden")),
    (CHAT, {**said(content="x"), "functions": [{"name": "f", "description": "forbidden"}]}),
    ("/v1/completions", {"model": "m", "prompt": "x", "suffix": "forbidden"}),
    ("/v1/responses", {"model": "m", "input": [{"type": "message", "role": "user", "content": "forbidden"}]}),
    ("/v1/responses", {"model": "m", "input": [{"type": "custom_tool_call", "input": "x", "content": "forbidden"}]}),
    ("/v1/responses", {"model": "m", "input": "x", "prompt": {"id": "p", "variables": {"name": "forbidden"}}}),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "body"), HIDDEN)
async def test_a_text_in_an_odd_place_is_judged(guarded: Guarded, path: str, body: dict[str, Any]) -> None:
    await guarded.post(path, body, "requests")
    (question,) = guarded.questions()
    content = [question[name] for name in ("texts", "images", "tools", "tool_calls")]
    assert "forbidden" in json.dumps(content)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["prompt_embeds", "prompt_token_ids", "input_ids", "input_embeds"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_prompt_that_only_the_backend_can_read_is_refused(guarded: Guarded, path: str, name: str) -> None:
    body = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}], name: [1, 2]}
    answer = await guarded.post(path, body, "requests")
    assert (answer.status, len(guarded.upstream.calls)) == (403, 0)


ANSWERS: list[dict[str, Any]] = [
    {"choices": [{"message": {"content": None, "audio": {"id": "a", "data": "UklG", "transcript": "forbidden"}}}]},
    {"content": [{"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": "forbidden"}]}]},
    {"choices": [{"message": {"content": "x", "annotations": [{"url_citation": {"title": "forbidden"}}]}}]},
]


@pytest.mark.parametrize("answer", ANSWERS, ids=json.dumps)
def test_a_text_beside_the_answer_is_judged(answer: dict[str, Any]) -> None:
    assert "forbidden" in content_of_answer(answer).texts
    assert "UklG" not in content_of_answer(answer).texts


def test_a_picture_that_a_tool_made_is_an_image_and_no_text() -> None:
    """Its megabytes of base64 would be a text, for which a guard takes longer than it has."""
    item = {
        "type": "image_generation_call",
        "id": "ig",
        "status": "completed",
        "result": "aGk=",
        "revised_prompt": "a fjord",
    }
    shot = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:,aGk="}}
    content = content_of_answer({"output": [item, shot]})
    assert (content.texts, content.images) == (["a fjord"], ["aGk=", "data:,aGk="])


def events_of(*values: dict[str, Any]) -> list[Event]:
    return [Event(json.dumps(value).encode(), str(value["type"]) if "type" in value else None) for value in values]


async def test_a_long_tool_call_is_judged_before_any_of_it_passes() -> None:
    """Each event of a few characters has some 200 bytes around them, so a file of 30 KB fills the window of 1 MiB."""
    filler = "x" * 200
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "rm", "arguments": ""}}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": "abcd"}}]} for _ in range(4_000)),
        {"tool_calls": [{"index": 0, "function": {"arguments": "forbidden"}}]},
    ]
    values = [{"id": filler, "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    values.append({"id": filler, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    guard = Guard()
    await read(guarded_stream([*events_of(*values), Event(b"[DONE]")], call_of(CHAT), guard))
    (calls,) = [each for each in guard.calls if each]
    assert calls[0]["function"]["arguments"].endswith("forbidden")


async def test_a_message_that_begins_with_its_content_is_judged() -> None:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "usage": {"input_tokens": 1}}
    events = events_of(
        {"type": "message_start", "message": {**message, "content": [{"type": "text", "text": "a secret"}]}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )
    found = await read(guarded_stream(events, call_of("/v1/messages"), Guard()))
    assert not any(b"secret" in event.data for event in found)


async def test_a_quotation_is_no_part_of_the_text_that_it_stands_in() -> None:
    block = {"type": "content_block_delta", "index": 0}
    events = events_of(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {**block, "delta": {"type": "text_delta", "text": "a plain word. "}},
        {
            **block,
            "delta": {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "a secret"}},
        },
        {**block, "delta": {"type": "text_delta", "text": "The end."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    )
    guard = Guard()
    found = await read(guarded_stream(events, call_of("/v1/messages"), guard))
    assert guard.texts == [["a plain word. The end.", "a secret"]]
    assert not any(b"secret" in event.data for event in found)
    assert json.loads(found[2].data)["delta"]["citation"]["cited_text"] == "a [gone]"


async def test_a_transcript_of_an_audio_answer_is_judged() -> None:
    deltas = [{"audio": {"id": "a", "transcript": "a sec"}}, {"audio": {"data": "UklG", "transcript": "ret"}}]
    values = [{"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    guard = Guard()
    found = await read(guarded_stream([*events_of(*values), Event(b"[DONE]")], call_of(CHAT), guard))
    assert guard.texts == [["a secret"]]
    assert b"UklG" in found[1].data


async def test_arguments_that_come_whole_are_held_until_the_answer_is_judged() -> None:
    item = {"type": "function_call", "id": "i", "call_id": "c", "name": "rm", "arguments": "forbidden"}
    response = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": [item]}
    events = events_of(
        {"type": "response.function_call_arguments.done", "item_id": "i", "output_index": 0, "arguments": "forbidden"},
        {"type": "response.completed", "response": response},
    )
    guard = Guard()
    flow = guarded_stream(events, call_of("/v1/responses"), guard)
    first = await anext(flow)
    assert first == events[0]
    assert guard.calls[0][0]["function"] == {"name": "rm", "arguments": "forbidden"}
    await flow.aclose()


STREAMS = [
    each
    for each in all_forms()
    if each.reply is not None and each.reply.streamed and each.reply.status == 200 and PATHS.get(each.dialect) in BODIES
]
CUT = {"cut-in-an-event"}  # the reader of the answer reports it before the guard


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in an event that the clients of all dialects show."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        name, each = waiting.pop()
        if isinstance(each, str) and name in ("text", "content", "thinking", "reasoning_content", "refusal", "delta"):
            yield each
        elif isinstance(each, dict):
            waiting += each.items()
        elif isinstance(each, list):
            waiting += ((name, item) for item in each)


@pytest.mark.parametrize("form", STREAMS, ids=lambda form: form.id)
async def test_streams_of_real_servers_are_read_whole_and_pass_as_they_came(form: Form) -> None:
    assert form.reply is not None
    parser, guard = SSEParser(), Guard()
    events = [*parser.feed(form.reply.content), *parser.close()]
    if form.id in CUT:
        with pytest.raises(AnswerWithheld):
            await read(guarded_stream(events, call_of(PATHS[form.dialect]), guard))
        return
    assert await read(guarded_stream(events, call_of(PATHS[form.dialect]), guard)) == events
    judged = "\n".join(text for texts in guard.texts for text in texts) + json.dumps([*guard.calls])
    values = [json.loads(event.data) for event in events if event.data.startswith(b"{")]
    assert [text for value in values for text in texts_in(value) if text not in judged] == []


async def test_a_tool_call_that_the_token_limit_cut_is_judged_as_far_as_it_came() -> None:
    (form,) = all_forms(["anthropic-max-tokens-in-a-tool"])
    assert form.reply is not None
    guard = Guard()
    await read(guarded_stream([*SSEParser().feed(form.reply.content)], call_of("/v1/messages"), guard))
    assert guard.calls[-1][0]["function"] == {"name": "write", "arguments": '{"text": "Es war ein'}


@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_that_no_guard_reads_is_not_stored(guarded: Guarded) -> None:
    async def sorted_(_: web.Request, call: Any) -> web.StreamResponse:
        return web.json_response({"results": [{"index": 0, "relevance_score": 0.5}]})

    guarded.upstream.answer = sorted_
    body = {"model": "r", "query": "q", "documents": ["a", "b"]}
    for _ in range(2):
        answer = await guarded.post("/v1/rerank", body, "open")
        assert (answer.status, "stored" in answer.cache_status) == (200, False), answer.cache_status
    assert len(guarded.upstream.calls) == 2


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("status", [201, 203])
async def test_an_answer_with_another_status_of_success_is_judged(guarded: Guarded, status: int) -> None:
    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "a forbidden answer"), status=status)

    guarded.upstream.answer = answer
    assert (await guarded.chat(f"with {status}", "answers")).status == 400


@pytest.mark.asyncio(loop_scope="module")
async def test_every_choice_of_a_stream_is_judged(guarded: Guarded) -> None:
    async def speak(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index, text in ((0, "fine"), (1, "a sec"), (0, " too"), (1, "ret")):
            delta = {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}
            await response.write(f"data: {json.dumps(delta)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    guarded.upstream.answer = speak
    body = {**said(content="twice"), "stream": True, "n": 2}
    answer = await guarded.post(CHAT, body, "answers")
    assert b"[gone]" in answer.body and b"secret" not in answer.body


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("text", ["a \\ud800 secret", "a secret 1000000000000000000001"])
async def test_odd_json_is_judged_and_changed(guarded: Guarded, text: str) -> None:
    body = f'{{"model": "m", "seed": 1000000000000000000001, "messages": [{{"role": "user", "content": "{text}"}}]}}'
    url, headers = f"{guarded.served.url}{CHAT}", {"x-route": "requests", "content-type": "application/json"}
    async with guarded.served.session.post(url, data=body.encode(), headers=headers) as response:
        status = response.status
    assert status in (200, 400)
    for call in guarded.upstream.calls:
        assert b"[gone]" in call.body and b"1000000000000000000001" in call.body


@pytest.mark.asyncio(loop_scope="module")
async def test_a_verdict_may_begin_with_a_byte_order_mark(guarded: Guarded) -> None:
    async def marked(_: web.Request, question: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=b'\xef\xbb\xbf{"action": "NONE"}', content_type="application/json")

    guarded.guard.answer = marked
    assert (await guarded.chat("of a server on .NET", "both")).status == 200
