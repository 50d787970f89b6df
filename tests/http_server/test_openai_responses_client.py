"""OpenAI's responses through the gateway, with the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from openai.types.responses import Response
from pydantic import BaseModel

from gateway.dialects.openai.responses_answers import events_of
from tests.fixtures.gateways import BOTH_CACHES, Served, aboard, config_of, gateway_of
from tests.fixtures.responses import answering, response_to, text_item
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.http_server.conftest import openai_client

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "m", "input": "Which ports does it listen on?"}
ANSWER = "upstream answers: Which ports does it listen on?"
HASHED = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.9")
FUNCTION_CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Paris"}',
}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "They ask for ports."}]}


@pytest.fixture
def answered(upstream: Upstream) -> Upstream:
    upstream.answer = answering(REASONING, text_item(ANSWER))
    return upstream


@pytest.fixture
async def similar(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """With a plain threshold: words decide."""
    upstream.answer = answering()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, HASHED) as served:
        yield served


async def status_of(client: openai.AsyncOpenAI, **fields: Any) -> tuple[str, Response]:
    raw = await client.responses.with_raw_response.create(**{**ASK, **fields})
    return raw.headers["cache-status"].split("; ttl")[0], raw.parse()


async def streamed(client: openai.AsyncOpenAI, **fields: Any) -> Response:
    async with client.responses.stream(**{**ASK, **fields}) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text
    return final


async def test_a_hit_is_the_same_response_to_the_client(client: openai.AsyncOpenAI, answered: Upstream) -> None:
    """Its id too: the response lies upstream, and the next request may name it."""
    first, second = [await status_of(client) for _ in range(2)]
    assert (first[0], second[0]) == ("nearhit; fwd=miss; stored", "nearhit; hit; detail=exact")
    assert first[1] == second[1]
    assert (second[1].id, second[1].output_text) == ("resp_1", ANSWER)
    assert second[1].usage is not None
    assert second[1].usage.total_tokens == 12
    assert len(answered.calls) == 1


@pytest.mark.parametrize("stored_by", ["whole", "stream"])
async def test_one_entry_serves_both_forms(client: openai.AsyncOpenAI, answered: Upstream, stored_by: str) -> None:
    if stored_by == "whole":
        await client.responses.create(**ASK)
    else:
        await streamed(client)
    for _ in range(2):  # by all steps, and by the fast path
        assert await streamed(client) == await client.responses.parse(**ASK)
    assert len(answered.calls) == 1


async def test_events_come_under_their_names_from_the_backend_and_from_the_cache(
    served: Served, answered: Upstream
) -> None:
    bodies = [(await served.post(PATH, {**ASK, "stream": True})).body for _ in range(3)]
    assert bodies[0] == bodies[1] == bodies[2]
    names = [frame.split(b"\n")[0] for frame in bodies[0].split(b"\n\n")[:-1]]
    assert (names[0], names[-1]) == (b"event: response.created", b"event: response.completed")
    assert len(answered.calls) == 1


async def test_a_question_in_other_words_is_a_hit(similar: Served, upstream: Upstream) -> None:
    async with openai_client(similar) as client:
        words = "which of the many ports does the whole gateway listen on when it has been started"
        first, _ = await status_of(client, input=words)
        second, answer = await status_of(client, input=words + "?")
        items = [{"role": "user", "content": [{"type": "input_text", "text": words}]}]
        await status_of(client, input=items, previous_response_id="resp_0")
        third, _ = await status_of(client, input=items, previous_response_id="resp_9")
    assert (first, second) == ("nearhit; fwd=miss; stored", "nearhit; hit; detail=semantic")
    assert answer.output_text == f"upstream answers: {words}"
    assert third == "nearhit; fwd=miss; stored"  # of another conversation
    assert len(upstream.calls) == 3


async def test_the_answer_to_another_request_repeats_the_askers_own_words(
    client: openai.AsyncOpenAI, answered: Upstream
) -> None:
    answer = await client.responses.create(**ASK, user="ann", metadata={"order": "1"})
    assert answer.metadata == {"order": "1"}
    for own in (await client.responses.create(**ASK, metadata={"order": "2"}), await streamed(client)):
        assert (own.user, own.id) == (None, "resp_1")
    assert (await streamed(client, metadata={"order": "3"})).metadata == {"order": "3"}
    assert len(answered.calls) == 1


async def test_who_shares_a_call_in_flight_gets_events_with_his_own_words(served: Served, answered: Upstream) -> None:
    answered.gate.clear()
    async with openai_client(served) as client:
        asks = [asyncio.create_task(streamed(client, metadata={"order": str(i)})) for i in range(3)]
        asks.append(asyncio.create_task(client.responses.create(**ASK, metadata={"order": "3"})))
        await until(lambda: aboard(served) == 4)
        answered.gate.set()
        answers = await asyncio.gather(*asks)
    assert [answer.metadata for answer in answers] == [{"order": str(i)} for i in range(4)]
    assert {answer.output_text for answer in answers} == {ANSWER}
    assert len(answered.calls) == 1


class Ports(BaseModel):
    ports: list[int]


async def test_structured_answers_are_parsed(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.answer = answering(text_item('{"ports": [8080, 9090]}'))
    for _ in range(2):
        parsed = await client.responses.parse(**ASK, text_format=Ports)
        assert parsed.output_parsed == Ports(ports=[8080, 9090])
        assert (await streamed(client, text_format=Ports)).output_text == '{"ports": [8080, 9090]}'
    assert len(upstream.calls) == 1
    assert (await client.responses.create(**ASK)).output_text == '{"ports": [8080, 9090]}'
    assert len(upstream.calls) == 2  # asked for in another format, it is another question


TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


async def test_calls_of_tools_are_streamed_and_not_stored(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.answer = answering(FUNCTION_CALL, {**FUNCTION_CALL, "id": "fc_2", "call_id": "call_2"})
    for count in (1, 2):
        async with client.responses.stream(**ASK, tools=[TOOL]) as stream:
            done = [event.arguments async for event in stream if event.type == "response.function_call_arguments.done"]
            final = await stream.get_final_response()
        assert done == [FUNCTION_CALL["arguments"]] * 2
        assert [(item.type, item.call_id) for item in final.output] == [  # type: ignore[union-attr]
            ("function_call", "call_1"),
            ("function_call", "call_2"),
        ]
        assert len(upstream.calls) == count


async def test_calls_of_tools_are_stored_where_the_policy_says_so(upstream: Upstream, tmp_path: Path) -> None:
    upstream.answer = answering(FUNCTION_CALL)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    policy = BOTH_CACHES.replace("cache: {", "cache: {admit: {tools: on}, ")
    async with gateway_of(config, policy) as served, openai_client(served) as client:
        answers = [await client.responses.create(**ASK, tools=[TOOL]) for _ in range(2)]
        assert answers[0] == answers[1]
        assert (await streamed(client, tools=[TOOL])).output == (
            await client.responses.parse(**ASK, tools=[TOOL])
        ).output
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        {"status": "failed", "error": {"code": "server_error", "message": "no"}},
    ],
)
@pytest.mark.parametrize("form", ["whole", "stream"])
async def test_what_did_not_complete_is_passed_on_and_not_stored(
    client: openai.AsyncOpenAI, upstream: Upstream, fields: dict[str, Any], form: str
) -> None:
    upstream.answer = answering(**fields)
    for count in (1, 2):
        if form == "whole":
            answer: Any = await client.responses.create(**ASK)
        else:
            *_, last = [event async for event in await client.responses.create(**ASK, stream=True)]
            assert last.type == f"response.{fields['status']}"
            answer = last.response  # type: ignore[union-attr]
        assert answer.status == fields["status"]
        assert len(upstream.calls) == count


@pytest.mark.parametrize(
    ("fields", "reason"), [({"background": True}, "background"), ({"conversation": "conv_1"}, "conversation")]
)
async def test_what_changes_something_upstream_goes_by_the_caches(
    client: openai.AsyncOpenAI, upstream: Upstream, fields: dict[str, Any], reason: str
) -> None:
    upstream.answer = answering()
    await client.responses.create(**ASK)
    asked = [await status_of(client, **fields) for _ in range(2)]
    assert [status for status, _ in asked] == [f"nearhit; fwd=bypass; detail={reason}"] * 2
    assert [answer.id for _, answer in asked] == ["resp_2", "resp_3"]


async def test_a_response_in_the_background_is_asked_for_until_it_is_there(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.Response:
        if request.method == "POST":
            return web.json_response(response_to(call, id="resp_7", status="queued", output=[]))
        return web.json_response(response_to(ASK, id="resp_7"))

    upstream.answer = answer
    queued = await client.responses.create(**ASK, background=True)
    assert queued.status == "queued"
    assert (await client.responses.retrieve(queued.id)).output_text == ANSWER


async def test_what_is_done_with_a_response_passes_through(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.Response:
        if request.path.endswith("/input_items"):
            return web.json_response({"object": "list", "data": [text_item("a")], "has_more": False})
        return web.json_response(response_to(ASK, status="cancelled" if "cancel" in request.path else "completed"))

    upstream.answer = answer
    assert (await client.responses.retrieve("resp_1", include=["reasoning.encrypted_content"])).id == "resp_1"
    assert (await client.responses.cancel("resp_1")).status == "cancelled"
    assert [item.id async for item in client.responses.input_items.list("resp_1")] == ["msg_1"]  # type: ignore[union-attr]
    await client.responses.delete("resp_1")
    await client.responses.input_tokens.count(model="m", input="a")
    seen = [(call.method, call.path.split("?")[0]) for call in upstream.calls]
    assert seen == [
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/input_tokens"),
    ]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_broken_stream_ends_with_an_error_that_the_sdk_raises(
    served: Served, upstream: Upstream, shared: bool
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events_of(json.dumps(response_to(call)).encode())[:5]:
            await response.write(event.frame())
        assert request.transport is not None
        request.transport.abort()
        return response

    upstream.answer = answer
    upstream.gate.clear()
    async with openai_client(served) as client:
        asks = [asyncio.create_task(streamed(client)) for _ in range(2 if shared else 1)]
        await until(lambda: aboard(served) == len(asks))
        upstream.gate.set()
        for failed in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(failed, openai.APIError)
            assert "broke off" in failed.message
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(**ASK)  # half a stream is no whole answer
    assert (await served.gateway.parts.store.stats()).entries == 0


async def test_an_error_in_a_stream_is_passed_on_and_not_stored(
    client: openai.AsyncOpenAI, served: Served, upstream: Upstream
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.Response:
        said = {"type": "error", "sequence_number": 2, "error": {"message": "out of memory", "code": "server_error"}}
        frames = [event.frame() for event in events_of(json.dumps(response_to(call)).encode())[:2]]
        error = b"event: error\ndata: " + json.dumps(said).encode() + b"\n\n"
        return web.Response(body=b"".join([*frames, error]), content_type="text/event-stream")

    upstream.answer = answer
    with pytest.raises(openai.APIError, match="out of memory"):
        await streamed(client)
    assert (await served.post(PATH, ASK)).status == 500
    assert (await served.gateway.parts.store.stats()).entries == 0


@pytest.mark.parametrize(("status", "error"), [(404, openai.NotFoundError), (429, openai.RateLimitError)])
async def test_errors_of_the_upstream_arrive_as_the_sdks_own(
    client: openai.AsyncOpenAI, upstream: Upstream, status: int, error: type[openai.APIStatusError]
) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        body = {"error": {"message": "no", "type": "of_the_upstream", "param": "previous_response_id", "code": "c"}}
        return web.json_response(body, status=status)

    upstream.answer = answer
    with pytest.raises(error) as caught:
        await client.responses.create(**ASK)
    assert (caught.value.type, caught.value.code) == ("of_the_upstream", "c")


async def test_what_the_gateway_itself_refuses_is_a_bad_request(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        await client.responses.create(**ASK, max_output_tokens="many")
    assert upstream.calls == []


async def test_hits_on_what_is_stored_nowhere_get_ids_of_their_own_where_the_policy_says_so(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.answer = answering()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    policy = BOTH_CACHES.replace("cache: {", "cache: {fresh_ids: on, ")
    async with gateway_of(config, policy) as served, openai_client(served) as client:
        kept = {(await client.responses.create(**ASK)).id for _ in range(3)}
        ids = [(await client.responses.create(**ASK, store=False)).id for _ in range(3)]
        final = await streamed(client, store=False)
    assert kept == {"resp_1"}  # the next turn names it
    assert ids[0] == "resp_2"
    assert len({*ids, final.id}) == 4
    assert len(upstream.calls) == 2


async def test_the_synchronous_client_reads_the_same(served: Served, answered: Upstream) -> None:
    def ask() -> tuple[Response, Response]:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0) as client:
            whole = client.responses.parse(**ASK)
            with client.responses.stream(**ASK) as stream:
                return whole, stream.get_final_response()

    whole, final = await asyncio.to_thread(ask)
    assert whole == final
    assert len(answered.calls) == 1
