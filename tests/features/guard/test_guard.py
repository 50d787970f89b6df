"""The guard of a route: requests and answers are judged, changed, refused, and counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from gateway.config.policy.load import policy_from_text
from tests.features.guard.conftest import Guarded, policy_at
from tests.fixtures.several import counted
from tests.fixtures.upstream import completion

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_request_is_judged_in_the_form_of_litellm(guarded: Guarded) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ]
    body = {"model": "m", "user": "eve", "messages": messages, "tools": tools}
    assert (await guarded.post("/v1/chat/completions", body, "requests")).status == 200
    (question,) = guarded.questions()
    assert question["texts"] == ["Be kind.", "What is it?", "a cat"]
    assert question["images"] == ["data:image/png;base64,AAAA"]
    assert question["tools"] == tools
    assert question["tool_calls"] == [called]
    assert question["structured_messages"] == messages
    assert question["request_data"]["user_api_key_end_user_id"] == "eve"
    assert (question["input_type"], question["model"]) == ("request", "m")
    assert question["litellm_call_id"]


async def test_a_blocked_request_is_an_error_that_clients_do_not_repeat(guarded: Guarded) -> None:
    answer = await guarded.chat("a forbidden question")
    assert answer.status == 400
    assert answer.json["error"]["type"] == "content_blocked"
    assert answer.json["error"]["message"] == "the guard of this route blocked the request: it says the word"
    assert not guarded.upstream.calls


ANTHROPIC = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "forbidden"}]}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", ANTHROPIC),
    ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
                      "system": [{"type": "text", "text": "forbidden"}]}),
    ("/v1/messages", {**ANTHROPIC, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "forbidden"}]}]}]}),
    ("/v1/responses", {"model": "m", "input": "forbidden"}),
    ("/v1/responses", {"model": "m", "input": "x", "instructions": "forbidden"}),
    ("/v1/responses", {"model": "m", "input": [
        {"type": "function_call_output", "call_id": "c", "output": "forbidden"}]}),
    ("/v1/completions", {"model": "m", "prompt": ["a", "forbidden"]}),
    ("/v1/embeddings", {"model": "m", "input": ["a", "forbidden"]}),
    ("/v1/chat/completions", {"model": "m", "documents": ["forbidden"],
                              "messages": [{"role": "user", "content": "x"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), OTHERS)
async def test_a_block_has_the_error_form_of_each_dialect(guarded: Guarded, path: str, body: dict[str, Any]) -> None:
    answer = await guarded.post(path, body, "requests")
    assert answer.status == 400
    expected = "invalid_request_error" if path == "/v1/messages" else "content_blocked"
    assert answer.json["error"]["type"] == expected
    assert "it says the word" in answer.json["error"]["message"]
    assert not guarded.upstream.calls


async def test_a_changed_request_reaches_the_backend_and_the_caches_as_if_it_was_sent_so(guarded: Guarded) -> None:
    first = await guarded.chat("my secret is out", "requests")
    assert first.text == "main answers: my [gone] is out"
    second = await guarded.chat("my [gone] is out", "requests")
    assert second.cache_status.startswith("nearhit; hit; detail=exact")
    assert len(guarded.upstream.calls) == 1


async def test_a_changed_request_of_an_azure_client_goes_on(guarded: Guarded) -> None:
    body = {"messages": [{"role": "user", "content": "azure secret"}]}
    answer = await guarded.post("/openai/deployments/m/chat/completions?api-version=2024-10-21", body, "requests")
    assert answer.text == "main answers: azure [gone]"


async def test_a_change_reaches_every_place_of_a_request(guarded: Guarded) -> None:
    body = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a secret"}]},
                                    {"type": "function_call_output", "call_id": "c", "output": "secret"}]}  # fmt: skip
    await guarded.post("/v1/responses", body, "requests")
    sent = guarded.upstream.calls[0].json["input"]
    assert sent[0]["content"][0]["text"] == "a [gone]"
    assert sent[1]["output"] == "[gone]"


async def test_a_hit_does_not_bypass_the_verdict_on_its_request(guarded: Guarded) -> None:
    for _ in range(3):  # the third one would take the fast path
        assert (await guarded.chat("harmless, today", "requests")).status == 200
    assert len(guarded.questions("request")) == 3
    assert len(guarded.upstream.calls) == 1

    async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"action": "BLOCKED"})

    guarded.guard.answer = refuse
    answer = await guarded.chat("harmless, today", "requests")
    assert (answer.status, answer.json["error"]["message"][-15:]) == (400, "no reason given")


async def test_a_remembered_verdict_counts_for_equal_requests_of_the_same_user(guarded: Guarded) -> None:
    for user in ("ann", "ann", "bob"):
        assert (await guarded.chat("again and again", "remember", user=user)).status == 200
    assert [each["request_data"]["user_api_key_end_user_id"] for each in guarded.questions()] == ["ann", "bob"]
    assert (await guarded.chat("a forbidden word", "remember")).status == 400
    assert (await guarded.chat("a forbidden word", "remember")).status == 400
    assert len(guarded.questions()) == 3


async def test_an_answer_is_judged_before_it_is_stored(guarded: Guarded) -> None:
    blocked = await guarded.chat("say forbidden", "answers")
    assert blocked.status == 400
    assert blocked.json["error"]["message"] == "the guard of this route blocked the response: it says the word"
    assert (await guarded.chat("say forbidden", "answers")).status == 400
    assert len(guarded.upstream.calls) == 2, "nothing was stored"
    changed = await guarded.chat("say secret", "answers")
    assert changed.text == "main answers: say [gone]"
    again = await guarded.chat("say secret", "answers")
    assert again.cache_status.startswith("nearhit; hit")
    assert again.text == changed.text
    assert len(guarded.questions("response")) == 3, "a stored answer is judged already"


async def test_a_stored_answer_serves_only_under_the_version_that_judged_it(guarded: Guarded) -> None:
    gateway, before = guarded.served.gateway, guarded.served.gateway.policy
    for version, verdict in (("2", "fwd=miss"), ("2", "hit"), ("3", "fwd=miss"), ("2", "hit")):
        gateway.apply(policy_from_text(policy_at(guarded.url, version), "policy.yaml", gateway.config))
        assert verdict in (await guarded.chat("which version", "answers")).cache_status
    gateway.apply(before)
    assert len(guarded.questions("response")) == 2


async def test_a_changed_answer_loses_the_tokens_that_repeat_it(guarded: Guarded) -> None:
    async def with_tokens(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        answer = completion(call, "a secret", reasoning_content="think of the secret")
        answer["choices"][0]["logprobs"] = {"content": [{"token": "secret", "logprob": -0.1}]}
        return web.json_response(answer)

    guarded.upstream.answer = with_tokens
    answer = await guarded.chat("with tokens", "answers", logprobs=True)
    assert b"secret" not in answer.body
    assert answer.json["choices"][0]["message"]["reasoning_content"] == "think of the [gone]"


async def test_a_tool_call_of_an_answer_is_judged(guarded: Guarded) -> None:
    async def call_tool(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        function = {"name": "rm", "arguments": '{"path": "forbidden"}'}
        tool_calls = [{"id": "c1", "type": "function", "function": function}]
        return web.json_response(completion(call, "", "tool_calls", tool_calls=tool_calls))

    guarded.upstream.answer = call_tool
    assert (await guarded.chat("remove it", "answers")).status == 400
    assert guarded.questions()[0]["tool_calls"][0]["function"]["name"] == "rm"


def failing(status: int = 200, body: bytes = b"") -> Any:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type="application/json")

    return answer


FAILURES = {
    "server error": failing(500, b'{"action": "NONE"}'),
    "unauthorised": failing(401, b'{"detail": "Invalid API key"}'),
    "redirect": failing(302, b"{}"),
    "no JSON": failing(200, b"<html>welcome</html>"),
    "not an object": failing(200, b'["NONE"]'),
    "empty": failing(200, b""),
    "no action": failing(200, b'{"status": "ok"}'),
    "unknown action": failing(200, b'{"action": "ALLOW"}'),
    "fewer texts": failing(200, b'{"action": "GUARDRAIL_INTERVENED", "texts": []}'.replace(b"[]", b'["a", "b"]')),
    "other images": failing(200, b'{"action": "GUARDRAIL_INTERVENED", "images": ["a"]}'),
    "no text": failing(200, b'{"action": "GUARDRAIL_INTERVENED", "texts": [1]}'),
    "too large": failing(200, b'{"action": "NONE", "why": "' + b"x" * 100_000 + b'"}'),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_guard_that_fails_lets_pass_what_the_policy_says(guarded: Guarded, name: str) -> None:
    guarded.guard.answer = failing(200, b'{"action": "NONE"}')
    assert (await guarded.chat(f"working before {name}", "both")).status == 200  # ends the failures in a row
    guarded.guard.answer = FAILURES[name]
    closed = await guarded.chat(f"a question before {name}", "both")
    assert closed.status == 503
    assert closed.json["error"]["type"] == "guard_unavailable"
    assert closed.headers["Retry-After"] == "1"
    assert len(guarded.upstream.calls) == 1
    passed = await guarded.chat(f"a question before {name}", "open")
    assert passed.status == 200
    assert "stored" not in passed.cache_status, "an answer without a verdict is not stored"


async def test_a_hung_guard_costs_its_timeout_and_then_nothing(guarded: Guarded) -> None:
    before = counted(guarded.served, "guard_verdicts")
    guarded.guard.gate.clear()
    try:
        for _ in range(7):
            answer = await guarded.chat("anybody there?", "hasty")
            assert answer.status == 503
        assert "it is paused after 5 failures in a row" in answer.json["error"]["message"]
        assert len(guarded.guard.calls) <= 5
    finally:
        guarded.guard.gate.set()
    after = counted(guarded.served, "guard_verdicts")
    assert [after[name] - before.get(name, 0) for name in ("late", "paused")] == [5, 2]


@pytest.mark.parametrize("route", ["both", "open"])
async def test_a_request_that_the_guard_cannot_read_passes_only_if_it_is_open(guarded: Guarded, route: str) -> None:
    tensors = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}
    unread = [
        ("/v2/models/m/infer", tensors),
        ("/v1/images/generations", {"model": "m", "prompt": "a cat"}),
        ("/v1/completions", {"model": "m", "prompt": [1, 2, 3]}),
        ("/v1/responses", {"model": "m", "input": "later", "background": True}),
    ]
    for path, body in unread:
        answer = await guarded.post(path, body, route)
        if route == "both":
            assert answer.status == 403, path
            assert "cannot read" in json.dumps(answer.json)
    assert len(guarded.upstream.calls) == (0 if route == "both" else 3), "this backend takes no tensors"
    async with guarded.served.session.get(guarded.served.url + "/v1/responses/r1", headers={"x-route": route}) as got:
        assert got.status == (403 if route == "both" else 200)
    async with guarded.served.session.get(guarded.served.url + "/v1/models", headers={"x-route": route}) as got:
        assert got.status == 200


async def test_embeddings_are_judged_by_their_inputs(guarded: Guarded) -> None:
    answer = await guarded.post("/v1/embeddings", {"model": "m", "input": ["a secret", "b"]})
    assert answer.status == 200
    assert guarded.upstream.calls[0].json["input"] == ["a [gone]", "b"]
    assert not guarded.questions("response")


async def test_nothing_of_a_prompt_reaches_the_log(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    guarded.guard.answer = failing(500)
    for _ in range(6):
        await guarded.chat("the private matter", "doomed")
    assert "private matter" not in caplog.text
    assert "a guard is paused" in caplog.text
