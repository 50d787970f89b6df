"""Translate an OpenAI chat request into Anthropic's messages request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from gateway.dialects.anthropic.requests import DEFAULT_MAX_TOKENS, LIMITS
from gateway.dialects.anthropic.thinking import EFFORTS, fit_settings, fit_thinking
from gateway.dialects.anthropic.translation.call_ids import PairedIds
from gateway.dialects.json_body import limit_of, sent_model
from gateway.dialects.translation.limits import Fitting, fitting, object_schema
from gateway.dialects.translation.reading import cache_mark, call_arguments, messages_last, parse_data_url
from gateway.errors import BadRequest

SYSTEM = ("system", "developer")
# Fields that would change the response. Other fields that Anthropic does not know are left out.
UNSUPPORTED_FIELDS = ("logprobs", "top_logprobs", "audio", "functions", "function_call", "web_search_options")


def messages_request(body: Mapping[str, Any], model: str | None, *, fit: Fitting | None = None) -> Mapping[str, Any]:
    """Return the translated request. Raise `BadRequest` for fields that Anthropic's protocol cannot express. `fit`
    learns the names of tools that do not fit.

    The marks for the prompt cache stay. A `prompt_cache_key` without any mark marks the end of the conversation,
    because Anthropic caches only what is marked.
    """
    _check(body)
    fit = fit or fitting(LIMITS)
    request: dict[str, Any] = {
        "model": sent_model(model, body),
        "max_tokens": limit_of(body.get("max_completion_tokens"), body.get("max_tokens")) or DEFAULT_MAX_TOKENS,
        "messages": _turns(body["messages"], fit),
    }
    system = [block for message in body["messages"] if message["role"] in SYSTEM for block in _texts(message)]
    if system and request["messages"]:
        request["system"] = system
    elif system:  # Anthropic requires a turn of the user
        request["messages"] = [{"role": "user", "content": system}]
    if (temperature := body.get("temperature")) is not None:
        request["temperature"] = min(temperature, 1)
    for key in ("top_p", "top_k", "thinking", "stream"):
        if body.get(key) is not None:
            request[key] = body[key]
    if stop := [each for each in _stops(body) if each.strip()]:
        request["stop_sequences"] = stop
    if user := body.get("user") or body.get("safety_identifier"):
        request["metadata"] = {"user_id": fit.user(user)}
    request |= _tools(body, fit) | _output(body) | cache_mark(body)
    if body.get("prompt_cache_key") and not _is_marked(request):
        _mark_end(request["messages"], "1h" if body.get("prompt_cache_retention") == "24h" else "5m")
    return messages_last(fit_settings(fit_thinking(request)))


def own_stops(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the stop sequences that the gateway has to look for itself: those of white space alone."""
    return [each for each in _stops(body) if each and not each.strip()]


def _stops(body: Mapping[str, Any]) -> Sequence[str]:
    stop = body.get("stop") or ()
    return [stop] if isinstance(stop, str) else stop


def _is_marked(request: Mapping[str, Any]) -> bool:
    blocks = chain(
        request.get("system", ()), request.get("tools", ()), *(turn["content"] for turn in request["messages"])
    )
    return "cache_control" in request or any("cache_control" in block for block in blocks)


def _mark_end(turns: Sequence[Mapping[str, Any]], ttl: str) -> None:
    """Mark the last block of a conversation, so that its next turn finds all of it in the prompt cache."""
    if turns:
        turns[-1]["content"][-1]["cache_control"] = {"type": "ephemeral", "ttl": ttl}


def _check(body: Mapping[str, Any]) -> None:
    for key in UNSUPPORTED_FIELDS:
        if body.get(key):
            raise _untranslatable(f"'{key}'", key)
    if (body.get("n") or 1) > 1:
        raise _untranslatable("'n' above 1", "n")
    if body.get("modalities") not in (None, ["text"]):
        raise _untranslatable("'modalities' other than text", "modalities")


def _untranslatable(what: str, param: str) -> BadRequest:
    return BadRequest(f"{what} cannot be translated to Anthropic's protocol, which the backend speaks", param=param)


def _output(body: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    more: dict[str, Any] = {}
    effort = body.get("reasoning_effort")
    if effort == "none":
        more["thinking"] = {"type": "disabled"}
    elif effort is not None:
        config["effort"] = EFFORTS.get(effort, effort)
    kind = (body.get("response_format") or {}).get("type", "text")
    if kind == "json_schema":
        config["format"] = {"type": "json_schema", "schema": body["response_format"]["json_schema"].get("schema") or {}}
    elif kind != "text":
        raise _untranslatable(f"'response_format' of the type {str(kind)[:40]!r}", "response_format")
    return more | ({"output_config": config} if config else {})


def _tools(body: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    given = body.get("tools")
    if not given:
        return {}
    choice = _choice(body.get("tool_choice"), fit)
    if body.get("parallel_tool_calls") is False and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    has_choice = body.get("tool_choice") is not None or len(choice) > 1
    return {"tools": [_tool(tool, fit) for tool in given]} | ({"tool_choice": choice} if has_choice else {})


def _tool(tool: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _untranslatable(f"a tool of the type {str(tool.get('type'))[:40]!r}", "tools")
    function = tool["function"]
    fields = {key: function[key] for key in ("description", "strict") if function.get(key)}
    schema = object_schema(function.get("parameters") or {})
    mark = cache_mark(tool) or cache_mark(function)
    return {"name": fit.name(function["name"]), **fields, "input_schema": schema, **mark}


def _choice(choice: Any, fit: Fitting) -> dict[str, Any]:
    kinds = {None: "auto", "auto": "auto", "required": "any", "none": "none"}
    if choice is None or isinstance(choice, str):
        if choice in kinds:
            return {"type": kinds[choice]}
    elif isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "tool", "name": fit.name(choice["function"]["name"])}
    raise _untranslatable("this 'tool_choice'", "tool_choice")


def _turns(messages: list[Any], fit: Fitting) -> list[dict[str, Any]]:
    """Merge consecutive messages of one side into one turn.

    Anthropic requires it for tool results and the user's text about them, and wants the results first. It refuses
    white space at the end of an answer that it is to go on with.
    """
    turns: list[dict[str, Any]] = []
    ids = PairedIds()
    for message in messages:
        if message["role"] in SYSTEM:
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = list(_blocks(message, fit, ids))
        if blocks:
            blocks[-1] |= cache_mark(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    if turns and turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        last = turns[-1]["content"][-1]
        last["text"] = last["text"].rstrip()
    return turns


def _blocks(message: Mapping[str, Any], fit: Fitting, ids: PairedIds) -> Iterator[dict[str, Any]]:
    role = message["role"]
    if role == "tool":
        parts = list(_parts(message.get("content")))
        marks = [part.pop("cache_control") for part in parts if "cache_control" in part]
        yield {
            "type": "tool_result",
            "tool_use_id": ids.result(fit.call_id(message.get("tool_call_id"))),
            "content": parts,
            **({"cache_control": marks[-1]} if marks else {}),  # Anthropic refuses marks within a result
        }
    elif role == "user":
        yield from _parts(message.get("content"))
    elif role == "assistant":
        yield from _parts(message.get("content") or message.get("refusal"))
        ids.begin_message()
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield {
                "type": "tool_use",
                "id": ids.call(fit.call_id(call["id"])),
                "name": fit.name(function["name"]),
                "input": call_arguments(function.get("arguments")),
                **cache_mark(call),
            }
    else:
        raise _untranslatable(f"a message of the role {role[:40]!r}", "messages")


def _texts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    blocks = list(_parts(message.get("content")))
    if any(block["type"] != "text" for block in blocks):
        raise _untranslatable("a system prompt that is not text", "messages")
    if blocks:
        blocks[-1] |= cache_mark(message)
    yield from blocks


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a message's content, without texts of white space alone, which Anthropic refuses."""
    parts: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    for part in parts:
        kind = part.get("type")
        if kind in ("text", "refusal"):
            text = part.get("text") or part.get("refusal") or ""
            if text.strip():
                yield {"type": "text", "text": text, **cache_mark(part)}
        elif kind == "image_url":
            yield {"type": "image", "source": _source(part["image_url"]["url"]), **cache_mark(part)}
        elif kind == "file" and isinstance(part["file"].get("file_data"), str):
            title = {"title": part["file"]["filename"]} if part["file"].get("filename") else {}
            yield {"type": "document", "source": _source(part["file"]["file_data"]), **title, **cache_mark(part)}
        else:
            raise _untranslatable(f"a part of the type {str(kind)[:40]!r}", "messages")


def _source(url: str) -> dict[str, Any]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media_type, data = parse_data_url(url)
    return {"type": "base64", "media_type": media_type, "data": data}
