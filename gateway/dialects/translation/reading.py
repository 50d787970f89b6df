"""Parts that translations share: data URLs, arguments of tool calls, marks for prompt caches, errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from gateway.dialects.json_body import load_json
from gateway.errors import BadRequest


# Images and documents in a URL (RFC 2397), in the form that model endpoints accept: base64. Pure.
def parse_data_url(url: str) -> tuple[str, str]:
    """Return (media type, base64 data). Raise `BadRequest`."""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, _, encoding = head.rpartition(";")
    if not comma or encoding != "base64" or not media_type:
        raise BadRequest(
            "a data URL is invalid: expected data:MEDIA/TYPE;base64,..., as the backend's protocol requires"
        )
    return media_type.partition(";")[0], data


def data_url(media_type: str, data: str) -> str:
    """Return a data URL; `data` is base64."""
    return f"data:{media_type};base64,{data}"


def call_arguments(text: Any) -> dict[str, Any]:
    """Return the arguments of a tool call as the object that other protocols require. Raise `BadRequest`."""
    try:
        value = load_json(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        problem = "the arguments of a tool call are invalid: expected a JSON object, as the backend's protocol requires"
        raise BadRequest(problem, param="messages")
    return value


def cache_mark(marked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mark for Anthropic's prompt cache that a part, tool or message has, as a field; else no field."""
    mark = marked.get("cache_control")
    return {"cache_control": mark} if isinstance(mark, Mapping) else {}


def messages_last(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with `messages` behind all other fields.

    Some prompt caches read the raw text of a request, as Anthropic's on Vertex AI does. They find only what stands
    before the part that grows from turn to turn.
    """
    return {**{key: value for key, value in request.items() if key != "messages"}, "messages": request["messages"]}


@contextmanager
def bad_request_if_unreadable() -> Iterator[None]:
    """Convert errors of reading within the block to `BadRequest`, as a backend of the client's dialect would."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f": {error} is missing" if isinstance(error, KeyError) else ""
        raise BadRequest(f"the request cannot be translated to the backend's protocol{missing}") from None


def error_message(status: int, data: bytes) -> str:
    """Return the message of an error body, cut to 300 characters. Bodies in unknown shapes are not passed on.

    Besides the two shapes of `error`, servers send `message` (vLLM, Bedrock) or `detail` (FastAPI) at the top. Gemini's
    compatible endpoint puts the whole body into a list.
    """
    body = _error_body(data)
    error = body.get("error")
    inner = error.get("message") if isinstance(error, dict) else error
    for text in (inner, body.get("message"), body.get("detail")):
        if isinstance(text, str) and text:
            return text[:300]
    return f"the backend answered with status {status}"


# Words for a conversation that does not fit into the context of its model: of OpenAI, vLLM, SGLang, llama.cpp, xAI,
# Mistral, TGI, LM Studio, Anthropic, Gemini, Bedrock.
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|prompt is too long|maximum (?:context|prompt|model) length"
    r"|exceeds the maximum number of tokens"
    r"|exceeds? (?:the )?(?:available |model's )?context|longer than the (?:maximum )?model|greater than the context"
    r"|max_new_tokens` must be|input is too long",
    re.IGNORECASE,
)


def is_context_overflow(data: bytes) -> bool:
    """Return whether an error body says that the conversation does not fit into the context of its model."""
    error = _error_body(data).get("error")
    named = [error.get("code"), error.get("type")] if isinstance(error, dict) else []
    return any(isinstance(text, str) and _OVERFLOW.search(text) for text in (error_message(0, data), *named))


def _error_body(data: bytes) -> Mapping[str, Any]:
    try:
        body = load_json(data)
    except orjson.JSONDecodeError:
        return {}
    first = body[0] if isinstance(body, list) and body else body
    return first if isinstance(first, dict) else {}
