"""A whole OpenAI answer taken apart into the chunks of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.dialects.openai_merge import CHAT, REPLACED
from gateway.dialects.pieces import pieces_of

STREAMED = {CHAT: "chat.completion.chunk", "completions": "text_completion"}
REPEATED = ("id", "object", "created", "model", "system_fingerprint", "service_tier")  # in every chunk; others once


def chunks_of(operation: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The last one carries the usage, where there is any. Raises what reading a malformed answer raises."""
    head = {key: body[key] for key in REPEATED if key in body} | {"object": STREAMED[operation]}
    usage = body.get("usage")
    once = {
        key: value
        for key, value in body.items()
        if key not in head and key != "choices" and not (key == "usage" and usage is not None)
    }
    choices = body["choices"]
    parts = _chat_parts if operation == CHAT else _text_parts
    for index, choice in zip(_indices(choices), choices, strict=True):
        for part in parts(index, choice):
            yield {**head, **once, "choices": [part]}
            once = {}
    if once:
        yield {**head, **once, "choices": []}
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}


def _indices(choices: list[dict[str, Any]]) -> list[int]:
    """The choices' own numbers; their places where these do not tell them apart."""
    own = [choice.get("index") for choice in choices]
    numbers = [index for index in own if type(index) is int]
    return numbers if len(set(numbers)) == len(own) else list(range(len(own)))


def _chat_parts(index: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Role first, then every text field in pieces, then what is no text in one piece, then the finish."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise TypeError("a choice without a message")

    def part(delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    said = {key: value for key, value in message.items() if key != "role"}
    empty = {key: value for key, value in said.items() if value is None or value in ("", [])}
    begun = {"content": ""} if isinstance(message.get("content"), str) else {}
    yield part({"role": message.get("role") or "assistant", **begun, **empty})
    # Models think before they speak, and speak before they act: other text fields (reasoning, refusal) go first.
    order = {"content": 1, "tool_calls": 2, "function_call": 2}
    for key in sorted((key for key in said if key not in empty), key=lambda key: order.get(key, 0)):
        value = said[key]
        if isinstance(value, str) and key not in REPLACED:
            yield from (part({key: piece}) for piece in pieces_of(value))
        elif key == "tool_calls" and isinstance(value, list) and all(isinstance(call, dict) for call in value):
            for place, call in enumerate(value):
                for delta in _function_parts(call, "function", {"index": place}):
                    yield part({"tool_calls": [delta]})
        elif key == "function_call" and isinstance(value, dict):
            yield from (part(delta) for delta in _function_parts({key: value}, key, {}))
        else:
            yield part({key: value})
    if choice.get("logprobs") is not None:
        yield {**part({}), "logprobs": choice["logprobs"]}
    # `delta` would be read as what the model said.
    rest = {key: value for key, value in choice.items() if key not in ("index", "message", "logprobs", "delta")}
    yield {**part({}), **rest}


def _function_parts(call: Mapping[str, Any], key: str, framing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A call with its name first, then its arguments in pieces."""
    function = call.get(key)
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        yield {**call, **framing}
        return
    yield {**call, **framing, key: {**function, "arguments": ""}}
    yield from ({**framing, key: {"arguments": piece}} for piece in pieces_of(arguments))


def _text_parts(index: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
    yield from ({**empty, "text": piece} for piece in pieces_of(choice.get("text") or ""))
    yield {**empty, **{key: value for key, value in choice.items() if key not in ("index", "text")}}
