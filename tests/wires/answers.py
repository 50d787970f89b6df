"""The plain answer of the server to a client's form, in the dialect and form in which it was asked."""

from __future__ import annotations

import json
from typing import Any

from tests.fixtures.wire import Message
from tests.wires.forms import Reply, compact, event_bytes

TEXT = "Fine, thanks."
CHAT_USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
USAGE = {"input_tokens": 7, "output_tokens": 5}


def plain_answer(request: Message) -> Reply:
    """Return the answer to a request as the server received it."""
    path = request.start.split(" ")[1].partition("?")[0]
    body = json.loads(request.body)
    operation = path.removeprefix("/v1/")
    build = {
        "chat/completions": _chat,
        "completions": _completion,
        "messages": _message,
        "responses": _response,
        "embeddings": _embeddings,
    }.get(operation, _unknown)
    return build(bool(body.get("stream")))


def _whole(body: Any, status: int = 200) -> Reply:
    content = compact(body).encode()
    return Reply(status, (("Content-Type", "application/json"),), (content,), False, "length", False, content)


def _stream(dialect: str, *events: Any) -> Reply:
    pieces = tuple(event_bytes(dialect, event, {}) for event in events)
    return Reply(200, (("Content-Type", "text/event-stream"),), pieces, True, "chunked", False, b"".join(pieces))


def _unknown(_: bool) -> Reply:
    return _whole({"error": {"message": "no such path", "type": "not_found", "param": None, "code": None}}, 404)


def _chat(stream: bool) -> Reply:
    head = {"id": "chatcmpl-1", "created": 1790000000, "model": "m"}
    if not stream:
        choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        return _whole({**head, "object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE})
    head["object"] = "chat.completion.chunk"
    said = {"index": 0, "delta": {"role": "assistant", "content": TEXT}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = [{**head, "choices": [said]}, {**head, "choices": [end]}]
    return _stream("chat", *chunks, {**head, "choices": [], "usage": CHAT_USAGE}, "[DONE]")


def _completion(stream: bool) -> Reply:
    choice = {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1790000000, "model": "m", "choices": [choice]}
    usage = {"usage": CHAT_USAGE}
    return _stream("completions", {**body, **usage}, "[DONE]") if stream else _whole({**body, **usage})


def _message(stream: bool) -> Reply:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    empty = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": {**USAGE, "output_tokens": 1}}
    text, ending = {"type": "text", "text": TEXT}, {"stop_reason": "end_turn", "stop_sequence": None}
    if not stream:
        return _whole({**head, "content": [text], **ending, "usage": USAGE})
    return _stream(
        "messages",
        {"type": "message_start", "message": {**head, **empty}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    )


def _response(stream: bool) -> Reply:
    part = {"type": "output_text", "text": TEXT, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    head = {"id": "resp_1", "object": "response", "created_at": 1790000000, "model": "m", "error": None}
    head |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    whole = {**head, "status": "completed", "output": [item], "usage": {**USAGE, "total_tokens": 12}}
    if not stream:
        return _whole(whole)
    begun = {**head, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": TEXT},
        {"type": "response.output_text.done", **place, "text": TEXT},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return _stream("responses", *({**event, "sequence_number": at} for at, event in enumerate(events)))


def _embeddings(_: bool) -> Reply:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return _whole({"object": "list", "data": data, "model": "m", "usage": usage})
