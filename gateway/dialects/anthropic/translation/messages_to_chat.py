"""Translate an Anthropic messages request into OpenAI's chat request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from gateway.dialects.anthropic.requests import without_cache_marks
from gateway.dialects.anthropic.translation.sealed_calls import is_sealed, reads_extra_content, unsealed
from gateway.dialects.json_body import limit_of, sent_model
from gateway.dialects.translation.limits import OPENAI, Fitting, fitting, object_schema
from gateway.dialects.translation.reading import cache_mark, data_url, messages_last
from gateway.dialects.translation.stops import MAX_OPENAI
from gateway.errors import BadRequest

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
EFFORTS = {"max": "xhigh"}  # the other names are the same
UNSUPPORTED_FIELDS = ("container", "mcp_servers", "prefill")
# Earlier thinking is signed for its model, and OpenAI's own protocol has no field for it.
DROPPED_BLOCKS = ("thinking", "redacted_thinking")
ENCRYPTED_BLOCKS = ("redacted_thinking",)  # dropped also where a server has a field for earlier thinking
ROLES = ("user", "assistant", "system")
PARAGRAPH = {"type": "text", "text": "\n\n"}  # between the texts of two turns of the model that become one


def chat_request(
    body: Mapping[str, Any],
    model: str | None,
    *,
    cache_control: bool = False,
    reasoning_content: bool = False,
    fit: Fitting | None = None,
) -> dict[str, Any]:
    """Return the translated request. Raise `BadRequest` for fields that OpenAI's protocol cannot express.

    With `cache_control` the marks for the prompt cache stay, in the form that OpenRouter and LiteLLM read. With
    `reasoning_content` earlier thinking stays, in the field of that name. `fit` learns the names of tools that do not
    fit. Stop sequences beyond `MAX_OPENAI` are left to `own_stops`.
    """
    fit = fit or fitting(OPENAI)
    for key in UNSUPPORTED_FIELDS:
        if body.get(key):
            raise _untranslatable(f"'{key}'")
    if not cache_control:
        body = {key: value for key, value in without_cache_marks(body).items() if key != "cache_control"}
    sent = sent_model(model, body)
    dropped = ENCRYPTED_BLOCKS if reasoning_content else DROPPED_BLOCKS
    messages = _messages(body, fit, partial(_is_kept, dropped=dropped, unseals=reads_extra_content(sent)))
    request: dict[str, Any] = {"model": sent, "messages": messages, **cache_mark(body)}
    if limit := limit_of(body.get("max_tokens")):
        request["max_completion_tokens"] = limit
    for key in ("temperature", "top_p", "prompt_cache_retention"):
        if body.get(key) is not None:
            request[key] = body[key]
    if stop := body.get("stop_sequences"):
        request["stop"] = stop[:MAX_OPENAI]
    # Claude Code's id has 159 to 191 characters. OpenAI accepts as many in a user's id as in a key of its prompt cache.
    named = {"prompt_cache_key": body.get("prompt_cache_key"), "user": (body.get("metadata") or {}).get("user_id")}
    request |= {key: fit.user(value) for key, value in named.items() if value}
    if body.get("stream"):
        # Anthropic's streams always report the usage.
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    return messages_last(request | _tools(body, fit) | _output(body.get("output_config") or {}))


def own_stops(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the stop sequences that the gateway has to look for itself."""
    return list((body.get("stop_sequences") or ())[MAX_OPENAI:])


def _untranslatable(what: str) -> BadRequest:
    return BadRequest(f"{what} cannot be translated to OpenAI's protocol, which the backend speaks")


def _output(config: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if effort := config.get("effort"):
        fields["reasoning_effort"] = EFFORTS.get(effort, effort)
    if form := config.get("format"):
        if form.get("type") != "json_schema":
            raise _untranslatable(f"an 'output_config.format' of the type {str(form.get('type'))[:40]!r}")
        schema = {"name": "answer", "schema": form.get("schema") or {}, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _tools(body: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    given = body.get("tools")
    if not given:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(tool, fit) for tool in given]}
    choice = body.get("tool_choice") or {}
    if choice.get("type") == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": fit.name(choice["name"])}}
    elif choice:
        if choice.get("type") not in CHOICES:
            raise _untranslatable("this 'tool_choice'")
        fields["tool_choice"] = CHOICES[choice["type"]]
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise _untranslatable(f"a tool of the type {str(tool['type'])[:40]!r}")
    fields = {key: tool[key] for key in ("description", "strict") if tool.get(key)}
    function = {"name": fit.name(tool["name"]), **fields, "parameters": object_schema(tool["input_schema"])}
    return {"type": "function", "function": function, **cache_mark(tool)}


def _is_kept(block: Mapping[str, Any], *, dropped: Sequence[str], unseals: bool) -> bool:
    """Return whether the translation of a turn of the model needs the block."""
    return unseals if is_sealed(block) else block["type"] not in dropped


def _messages(body: Mapping[str, Any], fit: Fitting, is_kept: Callable[[Any], bool]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := _texts(_spoken(_blocks(body.get("system") or "")), "a system prompt"):
        messages.append({"role": "system", "content": system})
    turns = _turns(body["messages"], is_kept)
    for role, blocks in turns:
        if role == "assistant":
            messages.append(_assistant(blocks, fit))
        elif role == "user":
            messages += _user(blocks, fit)
        else:
            messages.append({"role": "system", "content": _texts(blocks, "a system prompt")})
    return messages if turns else [*messages, {"role": "user", "content": ""}]


def _turns(messages: Sequence[Mapping[str, Any]], is_kept: Callable[[Any], bool]) -> list[tuple[str, list[Any]]]:
    """Return role and blocks of each turn that says something. Thinking alone says nothing.

    Servers refuse a turn of nothing, and many two turns of one side. Anthropic reads those as one, so they become one.
    """
    turns: list[tuple[str, list[Any]]] = []
    for message in messages:
        role, blocks = message["role"], _spoken(_blocks(message["content"]))
        if role not in ROLES:
            raise _untranslatable(f"a message of the role {role[:40]!r}")
        if role == "assistant":
            blocks = [block for block in blocks if is_kept(block)]
        if all(block["type"] == "thinking" for block in blocks):
            continue
        if turns and turns[-1][0] == role:
            earlier = turns[-1][1]
            apart = role == "assistant" and earlier[-1]["type"] == blocks[0]["type"] == "text"
            earlier += [*([PARAGRAPH] if apart else []), *blocks]
        else:
            turns.append((role, blocks))
    return turns


def _spoken(blocks: Sequence[Any]) -> list[Any]:
    """Return the blocks without empty texts."""
    return [block for block in blocks if block["type"] != "text" or block["text"]]


def _blocks(content: str | list[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(blocks: Sequence[Mapping[str, Any]], what: str) -> str | list[dict[str, Any]]:
    """Return texts as one string, each on its own line; as parts if one of them has a mark for the prompt cache."""
    if any(block["type"] != "text" for block in blocks):
        raise _untranslatable(f"{what} that is not text")
    return [_part(block) for block in blocks] if _is_marked(blocks) else "\n".join(block["text"] for block in blocks)


def _is_marked(blocks: Sequence[Mapping[str, Any]]) -> bool:
    return any("cache_control" in block for block in blocks)


def _assistant(blocks: Sequence[Mapping[str, Any]], fit: Fitting) -> dict[str, Any]:
    texts: list[Mapping[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    attached: dict[str, Any] = {}  # to the next call
    for block in blocks:
        if block["type"] == "text":
            texts.append(block)
        elif is_sealed(block):
            attached = unsealed(block)
        elif block["type"] == "thinking":
            thoughts.append(block["thinking"])
        elif block["type"] == "tool_use":
            function = {"name": fit.name(block["name"]), "arguments": orjson.dumps(block.get("input") or {}).decode()}
            call = {"id": fit.call_id(block["id"]), "type": "function", "function": function}
            calls.append(call | cache_mark(block) | attached)
            attached = {}
        else:
            raise _untranslatable(f"a block of the type {block['type'][:40]!r}")
    content = [_part(text) for text in texts] if _is_marked(texts) else "".join(text["text"] for text in texts)
    more = {"reasoning_content": "".join(thoughts), "tool_calls": calls}
    return {"role": "assistant", "content": content or None, **{key: value for key, value in more.items() if value}}


def _user(blocks: Sequence[Mapping[str, Any]], fit: Fitting) -> Iterator[dict[str, Any]]:
    """Yield tool results first, one message each. These cannot contain images, so images move to the user message."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] != "tool_result":
            parts.append(_part(block))
            continue
        inner = _spoken(_blocks(block.get("content") or ""))
        texts = [each for each in inner if each["type"] == "text"]
        parts += [_part(each) for each in inner if each["type"] != "text"]
        if texts and "cache_control" in block:
            texts[-1] = {**texts[-1], **cache_mark(block)}
        tool_call_id = fit.call_id(block.get("tool_use_id"))
        yield {"role": "tool", "tool_call_id": tool_call_id, "content": _texts(texts, "a result")}
    if len(parts) == 1 and parts[0]["type"] == "text" and not _is_marked(parts):
        yield {"role": "user", "content": parts[0]["text"]}
    elif parts:
        yield {"role": "user", "content": parts}


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as a part, with its mark for the prompt cache."""
    return _unmarked_part(block) | cache_mark(block)


def _unmarked_part(block: Mapping[str, Any]) -> dict[str, Any]:
    kind, source = block["type"], block.get("source") or {}
    if kind == "text":
        return {"type": "text", "text": block["text"]}
    if kind == "image" and source.get("type") == "base64":
        return {"type": "image_url", "image_url": {"url": data_url(source["media_type"], source["data"])}}
    if kind == "image" and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": source["data"]}
    if kind == "document" and source.get("type") == "base64":
        named = {"filename": block.get("title") or "document.pdf"}
        return {"type": "file", "file": {**named, "file_data": data_url(source["media_type"], source["data"])}}
    given = f" with a source of the type {str(source['type'])[:40]!r}" if source.get("type") else ""
    raise _untranslatable(f"a block of the type {kind[:40]!r}{given}")
