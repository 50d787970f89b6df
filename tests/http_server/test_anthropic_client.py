"""The official Anthropic client, unchanged, before the gateway: all answers and errors are of the SDK's own types."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.anthropic_upstream import events_of, message, message_to, refusal, stream
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Call, Upstream

QUESTION = "Which ports does it listen on?"
ANSWER = f"claude answers: {QUESTION}"


def ask(question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"model": "claude-1", "max_tokens": 64, "messages": [{"role": "user", "content": question}], **fields}


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"name": name, "description": "weather", "input_schema": schema}


def client_of(served: Served, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=served.url, **{"api_key": "sk-ant-test", "max_retries": 0, "timeout": 120.0, **options}
    )


@pytest.fixture
def claude(upstream: Upstream) -> Upstream:
    return speaking_anthropic(upstream)


@pytest.fixture
async def served(claude: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": claude.url}})
    async with gateway_of(config) as gateway:
        yield gateway


@pytest.fixture
async def client(served: Served) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(served) as client:
        yield client


async def streamed(client: anthropic.AsyncAnthropic, **fields: Any) -> tuple[str, anthropic.types.Message]:
    async with client.messages.stream(**fields) as events:
        text = "".join([piece async for piece in events.text_stream])
        return text, await events.get_final_message()


async def test_a_message_arrives_with_its_usage(client: anthropic.AsyncAnthropic, claude: Upstream) -> None:
    answer = await client.messages.create(**ask())
    assert (answer.content[0].type, answer.content[0].text) == ("text", ANSWER)
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 4, 5)
    (call,) = claude.calls
    assert headers_of(call)["authorization"] == "Bearer sk-ant-test"  # as this SDK sends it
    assert "x-api-key" not in headers_of(call)
    assert call.json == ask()


@pytest.mark.parametrize("question", [QUESTION, "do think about the ports"])
@pytest.mark.parametrize("stored_by", ["whole", "stream"])
async def test_stream_and_whole_share_one_entry(
    client: anthropic.AsyncAnthropic, claude: Upstream, stored_by: str, question: str
) -> None:
    """Twice each: by all steps, and by the fast path."""
    if stored_by == "whole":
        first = await client.messages.create(**ask(question))
    else:
        _, first = await streamed(client, **ask(question))
    for _ in range(3):
        text, final = await streamed(client, **ask(question))
        whole = await client.messages.create(**ask(question))
        assert told(whole) == told(final) == told(first)
        assert text == f"claude answers: {question}"
    assert len(claude.calls) == 1


def told(given: anthropic.types.Message) -> dict[str, Any]:
    """The SDK's accumulator of streams adds fields of its own, which are null."""
    return given.model_dump(exclude_none=True)


def headers_of(call: Call) -> dict[str, str]:
    return {name.lower(): value for name, value in call.headers.items()}


def by_sync(url: str, question: str) -> tuple[Any, str, list[str], Any]:
    with anthropic.Anthropic(base_url=url, api_key="sk-ant-test", max_retries=0) as client:
        whole = client.messages.create(**ask(question))
        with client.messages.stream(**ask(question)) as events:
            text = "".join(events.text_stream)
            final = events.get_final_message()
        kinds = [event.type for event in client.messages.create(**ask(question), stream=True)]
        return whole, text, kinds, final


async def test_the_synchronous_client_reads_the_same(client: anthropic.AsyncAnthropic, served: Served) -> None:
    first = await client.messages.create(**ask())
    whole, text, kinds, final = await asyncio.to_thread(by_sync, served.url, QUESTION)
    assert whole == first
    assert text == ANSWER == final.content[0].text
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("content_block_delta") > 1


async def test_a_hit_on_a_stream_is_byte_for_byte_what_came(served: Served, claude: Upstream) -> None:
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    miss, *hits = [await served.post("/v1/messages", ask(stream=True), headers) for _ in range(3)]
    assert miss.body.startswith(b"event: message_start\ndata: {")
    assert b"event: ping\n" in miss.body
    assert [(hit.cache_status.split("; ttl")[0], hit.body) for hit in hits] == [
        ("nearhit; hit; detail=exact", miss.body)
    ] * 2
    assert len(claude.calls) == 1


async def test_in_other_words_it_is_a_hit_by_similarity_and_can_be_judged(
    client: anthropic.AsyncAnthropic, served: Served, claude: Upstream
) -> None:
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    await client.messages.create(**ask("which ports does it listen on", system=system))
    raw = await client.messages.with_raw_response.create(**ask("Which ports does it listen on?", system="Be long."))
    assert raw.headers["cache-status"].startswith("nearhit; fwd=miss")  # another system prompt, another scope
    for form in ("Be brief.", system):  # two forms of one prompt
        raw = await client.messages.with_raw_response.create(**ask("which ports does it listen on ?", system=form))
        assert raw.headers["cache-status"].startswith("nearhit; hit; detail=semantic")
    assert (await raw.parse()).content[0].text == "claude answers: which ports does it listen on"
    word = {"request_id": raw.headers["x-request-id"], "verdict": "wrong"}
    judged = await served.post("/v1/feedback", word, {"x-api-key": "sk-ant-test"})
    assert (judged.status, judged.json["stored"]) == (200, True)
    again = await client.messages.with_raw_response.create(**ask("which ports does it listen on ?", system=system))
    assert "fwd=miss" in again.headers["cache-status"]


async def test_tools_are_called_and_their_results_told(client: anthropic.AsyncAnthropic, claude: Upstream) -> None:
    tools = [tool("weather"), tool("time")]
    asked = ask("do call them", tools=tools, tool_choice={"type": "any"})
    for _ in range(2):  # not stored
        whole = await client.messages.create(**asked)
        _, final = await streamed(client, **asked)
        for answer in (whole, final):
            assert answer.stop_reason == "tool_use"
            uses = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
            assert uses == [("weather", {"city": "C0"}), ("time", {"city": "C1"})]
    assert len(claude.calls) == 4
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "42"}
        for block in whole.content
        if block.type == "tool_use"
    ]
    turns = [
        *asked["messages"],
        {"role": "assistant", "content": [block.to_dict() for block in whole.content]},
        {"role": "user", "content": results},
    ]
    last = await client.messages.create(**{**asked, "messages": turns})
    assert last.content[0].text == "claude answers: [tool_result] [tool_result]"


async def test_with_tools_admitted_both_forms_serve_one_call(claude: Upstream, tmp_path: Path) -> None:
    policy = BOTH_CACHES.replace("cache: {", "cache: {admit: {tools: on}, ")
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": claude.url}})
    async with gateway_of(config, policy) as served, client_of(served) as client:
        asked = ask("do call them", tools=[tool("weather")])
        whole = await client.messages.create(**asked)
        for _ in range(2):
            _, final = await streamed(client, **asked)
            assert told(final) == told(whole)
    assert len(claude.calls) == 1


async def test_the_beta_client_is_served_by_the_betas_it_names(
    client: anthropic.AsyncAnthropic, claude: Upstream
) -> None:
    for betas in (["a-1", "b-2"], ["b-2", "a-1"], ["b-2"]):
        answer = await client.beta.messages.create(**ask(), betas=betas)
        assert answer.content[0].text == ANSWER
    assert [headers_of(call)["anthropic-beta"] for call in claude.calls] == ["a-1,b-2", "b-2"]


async def test_counting_tokens_and_models_pass_through(client: anthropic.AsyncAnthropic, claude: Upstream) -> None:
    counted = await client.messages.count_tokens(model="claude-1", messages=ask()["messages"])
    assert counted.input_tokens == 14
    assert [model.id async for model in client.models.list()] == ["claude-1"]
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.retrieve("msgbatch_1")
    assert [call.path for call in claude.calls] == [
        "/v1/messages/count_tokens", "/v1/models", "/v1/messages/batches/msgbatch_1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.APIStatusError),
    ],
)
@pytest.mark.parametrize("as_stream", [False, True])
async def test_an_error_of_the_upstream_arrives_as_the_sdks_own(
    claude: Upstream, tmp_path: Path, status: int, kind: str, error: type[anthropic.APIStatusError], as_stream: bool
) -> None:
    """Status, body and headers as the upstream sent them; and nothing of it is stored."""
    well = claude.answer

    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return refusal(status, kind, "no", {"Retry-After": "7", "anthropic-ratelimit-requests-limit": "9"})

    claude.answer = answer
    backend = {"adapter": "anthropic", "url": claude.url, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as served, client_of(served) as client:
        with pytest.raises(error) as caught:
            await client.messages.create(**ask(), stream=as_stream)
        assert caught.value.status_code == status
        assert caught.value.body["error"] == {"type": kind, "message": "no"}
        assert caught.value.response.headers["retry-after"] == "7"
        assert caught.value.response.headers["anthropic-ratelimit-requests-limit"] == "9"
    claude.answer = well


async def test_what_the_gateway_itself_refuses_is_of_anthropics_shape(
    client: anthropic.AsyncAnthropic, claude: Upstream
) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as caught:
        await client.messages.create(**ask(), extra_body={"max_tokens": "many"})
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert claude.calls == []


async def test_a_key_that_the_gateway_does_not_know_is_an_authentication_error(
    claude: Upstream, tmp_path: Path
) -> None:
    """With keys of its own the gateway judges them, and sends its own upstream, where Anthropic looks for it."""
    auth = {"mode": "keys", "keys": {"acme": [hashlib.sha256(b"sk-acme").hexdigest()]}}
    backends = {"main": {"adapter": "anthropic", "url": claude.url, "api_key_env": "OURS"}}
    config = config_of(tmp_path, backends, auth=auth)
    async with gateway_of(config, environ={"OURS": "sk-ours"}) as served:
        async with client_of(served) as stranger:
            for refused in (stranger.messages.create(**ask()), stranger.messages.count_tokens(**ask_tokens())):
                with pytest.raises(anthropic.AuthenticationError) as caught:
                    await refused
                assert caught.value.body["error"]["type"] == "authentication_error"
        assert claude.calls == []
        async with client_of(served, api_key="sk-acme") as known:
            await known.messages.create(**ask())
        async with client_of(served, api_key=None, auth_token="sk-acme") as known:
            await known.messages.create(**ask())
    (call,) = claude.calls  # the second is a hit: one tenant
    assert headers_of(call)["x-api-key"] == "sk-ours"
    assert "authorization" not in headers_of(call)


def ask_tokens() -> dict[str, Any]:
    return {"model": "claude-1", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_key_goes_on_in_the_header_in_which_it_came_and_is_one_tenant_in_either(
    served: Served, claude: Upstream
) -> None:
    version = {"anthropic-version": "2023-06-01"}
    for key in ({"x-api-key": "sk-one"}, {"Authorization": "Bearer sk-one"}, {"x-api-key": "sk-two"}):
        assert (await served.post("/v1/messages", ask(), {**version, **key})).status == 200
    assert [headers_of(call)["x-api-key"] for call in claude.calls] == ["sk-one", "sk-two"]


async def test_two_keys_are_two_tenants_and_users_are_parted_where_the_policy_says_so(
    claude: Upstream, tmp_path: Path
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": claude.url}})
    policy = BOTH_CACHES.replace("cache: {", "cache: {share: user, ")
    async with gateway_of(config, policy) as served:
        for key in ("one", "two"):
            async with client_of(served, api_key=key) as client:
                for user in ("a", "b", "a"):
                    await client.messages.create(**ask(), metadata={"user_id": user})
    assert len(claude.calls) == 4


async def test_a_stream_that_breaks_ends_with_an_error_event(
    client: anthropic.AsyncAnthropic, claude: Upstream
) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, events_of(message([{"type": "text", "text": "one two"}]))[:4], cut=True)

    claude.answer = answer
    with pytest.raises(anthropic.APIStatusError) as caught:
        await streamed(client, **ask())
    assert caught.value.body["error"]["type"] == "api_error"


async def test_a_stream_without_its_stop_reason_ends_with_an_error_event_and_is_not_stored(
    client: anthropic.AsyncAnthropic, claude: Upstream
) -> None:
    """Its framing is whole: only `message_delta` and `message_stop` are missing."""
    well = claude.answer

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, events_of(message([{"type": "text", "text": "one two"}]))[:-2])

    claude.answer = answer
    with pytest.raises(anthropic.APIStatusError) as caught:
        await streamed(client, **ask())
    assert caught.value.body["error"]["type"] == "api_error"
    claude.answer = well
    assert (await streamed(client, **ask()))[0] == ANSWER
    assert len(claude.calls) == 2


async def test_an_error_event_of_the_upstream_reaches_the_client_and_is_not_stored(
    client: anthropic.AsyncAnthropic, claude: Upstream
) -> None:
    well = claude.answer

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return await stream(request, [*events_of(message([{"type": "text", "text": "one two"}]))[:4], error])

    claude.answer = answer
    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        await streamed(client, **ask())
    claude.answer = well
    assert (await streamed(client, **ask()))[0] == ANSWER
    assert len(claude.calls) == 2


async def test_hits_may_come_under_an_id_of_their_own(claude: Upstream, tmp_path: Path) -> None:
    policy = BOTH_CACHES.replace("cache: {", "cache: {fresh_ids: on, ")
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": claude.url}})
    async with gateway_of(config, policy) as served, client_of(served) as client:
        ids = {(await client.messages.create(**ask())).id for _ in range(3)}
        ids |= {(await streamed(client, **ask()))[1].id for _ in range(2)}
    assert len(ids) == 5
    assert all(each.startswith("msg_") for each in ids)


async def test_stored_conversations_are_exported_to_train_with(
    client: anthropic.AsyncAnthropic, served: Served
) -> None:
    await client.messages.create(**ask())
    async with served.session.get(f"{served.admin_url}/admin/cache/export?format=chat") as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    assert lines == [{"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]}]


async def test_the_sdk_finds_the_id_of_each_answer(
    client: anthropic.AsyncAnthropic, served: Served, claude: Upstream
) -> None:
    """In `request-id`: of a miss, of hits of all steps and of the fast path, of streams and errors."""
    answers = [await client.messages.with_raw_response.create(**ask()) for _ in range(3)]
    for answer in answers:
        assert answer.headers.get_list("request-id") == [answer.headers["x-request-id"]]
        assert (await answer.parse())._request_id == answer.headers["x-request-id"]
    assert ["fwd" in answer.headers["cache-status"] for answer in answers] == [True, False, False]
    first, second = [[name for name, _ in answer.headers.multi_items()] for answer in answers[1:]]
    assert first == second, "nobody can tell but by the time"
    async with client.messages.stream(**ask()) as events:
        await events.until_done()
        assert events.request_id == events.response.headers["x-request-id"]
    claude.calls.clear()
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(**ask(stream="yes"))
    assert raised.value.request_id == raised.value.response.headers["x-request-id"]
    assert claude.calls == []


async def test_an_id_of_the_upstreams_own_is_the_one_its_client_gets(served: Served, claude: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(message_to(call), headers={"Request-Id": "req_theirs"})

    claude.answer = answer
    async with client_of(served) as client:
        miss = await client.messages.with_raw_response.create(**ask())
        hit = await client.messages.with_raw_response.create(**ask())
    assert miss.headers.get_list("request-id") == ["req_theirs"]
    assert hit.headers.get_list("request-id") == [hit.headers["x-request-id"]], "another answer, another id"


async def test_openais_clients_are_told_no_other_id(served: Served) -> None:
    assert "request-id" not in (await served.chat("hi")).headers
