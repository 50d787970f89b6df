"""Find the texts of a request or of a whole answer, and put others in their places. Pure.

Each text is found by exclusion: everything that the model or the client may read, except for names, ids and settings.
So a field that a server adds is judged, too. Files and sounds are not: the guard's form has no place for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence, Set
from typing import Any, Literal, NamedTuple

import orjson

from gateway.calls import Call
from gateway.features.guard.question import Content

DIALECTS = ("openai", "openai-responses", "anthropic")  # whose bodies are read

# Fields of a request that are not its content: names, settings, definitions by the developer.
UNREAD_FIELDS = frozenset(
    {
        *("model", "user", "safety_identifier", "metadata", "client_metadata", "prompt_cache_key", "service_tier"),
        *("tools", "functions", "tool_choice", "function_call", "response_format", "text", "output_config", "include"),
        *("stream", "stream_options", "stop", "stop_sequences", "modalities", "audio", "verbosity", "truncation"),
        *("reasoning", "reasoning_effort", "thinking", "encoding_format", "logit_bias", "previous_response_id"),
        *("conversation", "container", "betas", "cache_control", "prompt_cache_retention", "speed", "store"),
    }
)
FIRST_FIELDS = ("instructions", "system")  # in the order in which a model reads them
# Fields of a request whose objects have the keys of a protocol. Others, such as the variables of a prompt, have
# keys of the client's own.
TURNS = frozenset({*FIRST_FIELDS, "messages", "input"})
# Fields with a prompt that nobody but the backend can read: of vLLM, and of SGLang.
ENCODED_FIELDS = ("prompt_embeds", "prompt_token_ids", "input_ids", "input_embeds")
# Keys within the content whose values are no text.
UNREAD_KEYS = frozenset(
    {
        *("type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "item_id", "name", "status", "detail"),
        *("format", "media_type", "cache_control", "signature", "encrypted_content", "phase", "file_id", "object"),
        *("file_data", "file_url", "encrypted_index", "logprobs", "obfuscation"),
        *("finish_reason", "stop_reason", "matched_stop", "internal_chat_message_metadata_passthrough"),
        *("prompt_cache_breakpoint", "caller", "namespace", "filename"),
    }
)
TOOL_KEYS = ("tool_calls", "function_call")  # of a chat message
TOOL_ITEMS = {"tool_use": "input", "function_call": "arguments", "custom_tool_call": "input"}  # the key of arguments
IMAGES = frozenset({"image_url", "input_image", "image", "image_generation_call", "computer_screenshot"})
SOUNDS = frozenset({"audio", "input_audio"})  # keys; a sound may have a transcript
ANSWER_FIELDS = ("choices", "output", "content")

Container = MutableMapping[str, Any] | MutableSequence[Any]


class Slot(NamedTuple):
    """The place of a text, of an image, or of a tool call."""

    kind: Literal["text", "image", "tool"]
    container: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.container[self.key]


def slots_of_request(body: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield the slots in the body of a request."""
    names = [name for name in FIRST_FIELDS if name in body]
    names += [name for name in body if name not in UNREAD_FIELDS and name not in FIRST_FIELDS]
    for name in names:
        yield from slots_in(body, name, UNREAD_KEYS if name in TURNS else frozenset())


def slots_of_answer(body: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield the slots in a whole answer."""
    for name in ANSWER_FIELDS:
        if name in body:
            yield from slots_in(body, name)


def slots_in(container: Any, key: Any, unread: Set[str] = UNREAD_KEYS) -> Iterator[Slot]:
    """Yield the slots in one value, in order. The values of `unread` keys are no text. An object may call itself a tool
    call or an image and have a text nevertheless. Not a recursion: a body may be nested deeply."""
    waiting, images = [(container, key)], set[tuple[int, Any]]()
    while waiting:
        owner, name = waiting.pop()
        value = owner[name]
        if isinstance(value, str):
            if value and name not in SOUNDS and (id(owner), name) not in images:
                yield Slot("text", owner, name)
        elif isinstance(value, list):
            waiting += [(value, i) for i in reversed(range(len(value)))]
        elif isinstance(value, dict):
            skipped = unread
            kind = kind_of(value)
            if kind in TOOL_ITEMS:
                yield Slot("tool", owner, name)
                skipped = skipped | {TOOL_ITEMS[kind]}
            elif kind in IMAGES:
                for image in _images_in(value):
                    images.add((id(image.container), image.key))
                    yield image
            yield from (Slot("tool", value, each) for each in TOOL_KEYS if value.get(each))
            if kind == "base64" or "file_data" in value or name in SOUNDS:
                skipped = skipped | {"data", "url"}
            waiting += [(value, each) for each in reversed(value) if each not in skipped and each not in TOOL_KEYS]


def kind_of(value: Mapping[str, Any]) -> str:
    """Return the type that an object names, or an empty text."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def _images_in(part: dict[str, Any]) -> Iterator[Slot]:
    """Yield the places of the images in a part of a message, in OpenAI's and Anthropic's forms. A picture that a tool
    of the Responses API made is the `result` of its item."""
    source = part.get("source")
    places = [(part.get("image_url"), "url"), (part, "image_url"), (source, "data"), (source, "url")]
    if kind_of(part) == "image_generation_call":
        places.append((part, "result"))
    for owner, key in places:
        if isinstance(owner, dict) and isinstance(owner.get(key), str):
            yield Slot("image", owner, key)


def is_encoded(call: Call) -> bool:
    """Return whether a call has its text as numbers of tokens, or as vectors, which nobody but the backend can read."""
    if any(call.body.get(name) is not None for name in ENCODED_FIELDS):
        return True
    given = call.body.get("prompt" if call.operation == "completions" else "input")
    if call.operation != "completions" and not call.embeds:
        return False
    return isinstance(given, list) and any(isinstance(each, int | list) for each in given)


def content_of_request(call: Call) -> Content:
    """Return the content of a request as a guard reads it."""
    content = _content_of(slots_of_request(call.body))
    content.tools = [*_tools_of(call.body)]
    content.messages = _messages_of(call.body)
    return content


def _tools_of(body: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the definitions of tools as the client wrote them, and those in the older form in that of today."""
    tools, functions = body.get("tools"), body.get("functions")
    yield from tools if isinstance(tools, list) else ()
    yield from ({"type": "function", "function": each} for each in (functions if isinstance(functions, list) else ()))


def content_of_answer(body: Mapping[str, Any]) -> Content:
    """Return the content of a whole answer as a guard reads it."""
    return _content_of(slots_of_answer(body))


def _content_of(slots: Iterator[Slot]) -> Content:
    texts, images, tools = list[str](), list[str](), list[Mapping[str, Any]]()
    for slot in slots:
        if slot.kind == "tool":
            tools += tool_calls_of(slot.value)
        else:
            (texts if slot.kind == "text" else images).append(slot.value)
    return Content(texts, images, tools)


def tool_calls_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tool calls of a message, an item or a block in OpenAI's form."""
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            continue
        if (key := TOOL_ITEMS.get(kind_of(each))) is not None:
            given = each.get(key)
            arguments = given if isinstance(given, str) else orjson.dumps(given, default=str).decode()
            yield _tool_call(each.get("call_id") or each.get("id"), each.get("name"), arguments)
        elif "name" in each:  # the older `function_call` of a message
            yield _tool_call(None, each["name"], each.get("arguments"))
        else:
            yield each


def _tool_call(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _messages_of(body: Mapping[str, Any]) -> list[Any]:
    """Return the turns of a conversation in OpenAI's form: as they are if they have it, otherwise their texts by
    role."""
    turns = body.get("messages")
    if isinstance(turns, list) and "system" not in body:
        return turns
    given = turns if isinstance(turns, list) else body.get("input")
    if not isinstance(given, list) or not all(isinstance(turn, dict) for turn in given):
        return []
    first = [{"role": "system", "content": _joined(body, name)} for name in FIRST_FIELDS if body.get(name)]
    return first + [
        {"role": turn.get("role") or "user", "content": _joined(turn, "content")} for turn in given if "content" in turn
    ]


def _joined(owner: Mapping[str, Any], key: str) -> str:
    return "\n".join(slot.value for slot in slots_in(owner, key) if slot.kind == "text")


def replace_content(slots: Sequence[Slot], texts: Sequence[str] | None, images: Sequence[str] | None) -> None:
    """Put texts and images in the places of those that a guard read, in the same order."""
    for kind, values in (("text", texts), ("image", images)):
        if values is not None:
            places = [slot for slot in slots if slot.kind == kind]
            for place, value in zip(places, values, strict=True):
                place.container[place.key] = value


def drop_logprobs(value: Any) -> None:
    """Remove the tokens of a changed answer, or of an event: they repeat its former text."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("logprobs"):
                each["logprobs"] = [] if isinstance(each["logprobs"], list) else None
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
