"""One scripted endpoint for all clients: OpenAI's chat, responses and embeddings, and Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import orjson
from aiohttp import web

from gateway.dialects.openai.answers import split
from tests.fixtures.anthropic_upstream import anthropic
from tests.fixtures.responses import answering
from tests.fixtures.upstream import Upstream, completion, question_of


def scripted(upstream: Upstream) -> Upstream:
    """Make an endpoint answer with a tool call where the question asks for one, and with the tool's result after it."""
    messages, responses = anthropic(Upstream()).answer, answering()
    assert messages is not None

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path.startswith("/v1/messages"):
            return await messages(request, call)
        if request.path == "/v1/responses":
            return await responses(request, call)
        if request.path == "/v1/chat/completions":
            return chat(call)
        if request.path in ("/v1/rerank", "/v2/rerank"):
            return web.json_response(ranked(call))
        return await Upstream()._default(request, json.dumps(call).encode())

    upstream.answer = answer
    return upstream


def ranked(call: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of Cohere's API: the last document is the best one."""
    best = len(call["documents"]) - 1
    document = {"document": {"text": call["documents"][best]}} if call.get("return_documents") else {}
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1.0}}
    return {"id": "r-1", "results": [{"index": best, "relevance_score": 0.98, **document}], "meta": meta}


def chat(call: dict[str, Any]) -> web.Response:
    last = call["messages"][-1]
    if last["role"] == "tool":
        whole = completion(call, f"The tool says: {last['content']}")
    elif call.get("response_format"):
        whole = completion(call, '{"city": "Paris", "celsius": 21}')
    elif call.get("tools") and ("call" in question_of(call) or "Weather" in question_of(call)):
        name = call["tools"][0]["function"]["name"]
        function = {"name": name, "arguments": '{"city": "Oslo"}'}
        tool_call = {"id": "call_1", "type": "function", "function": function}
        whole = completion(call, "", "tool_calls", tool_calls=[tool_call])
    else:
        whole = completion(call, f"upstream answers: {question_of(call)}")
    if not call.get("stream"):
        return web.json_response(whole)
    frames = b"".join(event.frame() for event in split("chat.completions", orjson.dumps(whole)))
    return web.Response(body=frames, content_type="text/event-stream")
