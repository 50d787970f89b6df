"""A guarded route next to other features, and as the official clients see it."""

from __future__ import annotations

import asyncio
import json
from http.server import ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import ClientTimeout, web

from gateway.config.policy.load import policy_from_text
from tests.docs.recipes import DOCS
from tests.features.guard.conftest import Guarded, policy_at
from tests.features.jobs.asking import over
from tests.features.recorder.test_recording import flushed
from tests.fixtures.upstream import chunk
from tests.fixtures.waiting import until

SOON = ClientTimeout(total=1.0)
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "eA=="}
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_traffic_log_has_only_what_the_guard_let_pass(guarded: Guarded) -> None:
    for question in ("a plain question", "a secret question", "a forbidden question"):
        await guarded.chat(question, "recorded")
    rows = (await flushed(guarded.served, guarded.folder)).requests
    assert [row.prompt for row in rows] == ["a plain question", "a [gone] question"]


async def test_a_job_is_judged_as_its_request_would_be(guarded: Guarded) -> None:
    headers = {"x-route": "both", "prefer": "respond-async"}

    async def job(question: str) -> dict[str, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        accepted = await guarded.post("/v1/chat/completions", body, headers=headers)
        return await over(guarded.served, accepted.json["id"])

    refused = await job("a forbidden job")
    assert "it says the word" in json.dumps(refused)
    assert not guarded.upstream.calls
    done = await job("a secret job")
    assert "a [gone] job" in json.dumps(done["response"])


async def test_the_server_of_the_page_judges(guarded: Guarded) -> None:
    """It takes the place of the guard of the route `requests`, as another policy says."""
    code = (DOCS / "guard.md").read_text().partition("```python\n")[2].partition("```")[0]
    definition, start, _ = code.rpartition("http.server.ThreadingHTTPServer")
    assert start
    names: dict[str, Any] = {}
    exec(definition, names)
    gateway, before = guarded.served.gateway, guarded.served.gateway.policy
    with ThreadingHTTPServer(("127.0.0.1", 0), names["Judge"]) as server:
        running = asyncio.get_running_loop().run_in_executor(None, server.serve_forever)
        policy = policy_at(f"http://127.0.0.1:{server.server_port}")
        try:
            gateway.apply(policy_from_text(policy, "policy.yaml", gateway.config))
            assert (await guarded.chat("write to ann@example.org", "both")).text == "main answers: write to [address]"
            refused = await guarded.chat("Abracadabra!", "both")
            assert (refused.status, "no spells" in refused.json["error"]["message"]) == (400, True)
        finally:
            gateway.apply(before)
            server.shutdown()
            await running


async def speak(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Stream enough for a window, and the last word of the question after the guard has judged it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(100):
        await response.write(chunk(call, {"content": " harmless"}))
    await response.write(chunk(call, {"content": f" {call['messages'][-1]['content']}"}, "stop") + b"data: [DONE]\n\n")
    return response


async def test_openais_client_raises_what_the_guard_blocks(guarded: Guarded) -> None:
    guarded.upstream.answer = speak
    async with openai.AsyncOpenAI(base_url=f"{guarded.served.url}/v1", api_key="k", max_retries=2) as client:

        async def ask(word: str, route: str) -> str:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": word}], stream=True, extra_headers={"x-route": route}
            )
            return "".join([each.choices[0].delta.content or "" async for each in stream])

        assert (await ask("sdk secret", "answers")).endswith("sdk [gone]")
        with pytest.raises(openai.BadRequestError, match="it says the word"):
            await ask("sdk forbidden", "requests")
        asked = len(guarded.guard.calls)
        with pytest.raises(openai.APIError, match="it says the word"):
            await ask("sdk forbidden", "answers")
        assert len(guarded.guard.calls) > asked


async def test_anthropics_client_raises_what_the_guard_blocks(guarded: Guarded) -> None:
    guarded.upstream.answer = speak
    headers = {"x-route": "answers"}
    async with anthropic.AsyncAnthropic(base_url=guarded.served.url, api_key="k", default_headers=headers) as client:

        async def ask(word: str) -> str:
            messages: Any = [{"role": "user", "content": word}]
            async with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
                return await stream.get_final_text()

        assert (await ask("claude secret")).endswith("claude [gone]")
        with pytest.raises(anthropic.APIStatusError, match="it says the word"):
            await ask("claude forbidden")


async def test_a_client_that_leaves_cancels_the_call_that_is_held(guarded: Guarded) -> None:
    async def begin(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(call, {"content": "held"}))
        guarded.guard.arrived.clear()
        await guarded.guard.arrived.wait()
        await response.write(chunk(call, {"content": " on"}))
        await until(lambda: guarded.upstream.left.is_set())
        return response

    guarded.upstream.answer = begin
    guarded.upstream.left.clear()
    guarded.guard.gate.clear()
    body = {"model": "m", "messages": [{"role": "user", "content": "leave"}], "stream": True}
    url, headers = f"{guarded.served.url}/v1/chat/completions", {"x-route": "answers"}
    try:
        with pytest.raises(TimeoutError):
            async with (
                guarded.served.session.post(
                    url, json=body, headers=headers, timeout=ClientTimeout(total=1.0)
                ) as response,
            ):
                await response.read()
        await guarded.upstream.left.wait()
    finally:
        guarded.guard.gate.set()


async def test_each_message_of_a_responses_websocket_is_judged(guarded: Guarded) -> None:
    url, headers = f"{guarded.served.url}/v1/responses", {"x-route": "requests"}
    async with guarded.served.session.ws_connect(url, headers=headers) as socket:
        await socket.send_json({"type": "response.create", "model": "m", "input": "a forbidden word"})
        event = await socket.receive_json()
    assert event["type"] == "error"
    assert "it says the word" in event["error"]["message"]
    async with guarded.served.session.get(f"{guarded.served.url}/v1/realtime", headers=UPGRADE | headers) as response:
        assert response.status == 403
