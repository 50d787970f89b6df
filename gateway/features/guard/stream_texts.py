"""Find the texts in one event of a stream. Pure.

A channel is what the pieces of one text have in common, such as the index of a choice. Some events repeat the whole
text of a channel, such as the last ones of the Responses API.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.features.guard.texts import TOOL_ITEMS, TOOL_KEYS, UNREAD_KEYS, kind_of, slots_in, tool_calls_of

TOOL_DELTAS = ("arguments.delta", "input.delta", "code.delta")  # ends of names of events of the Responses API
WHOLE_FIELDS = ("text", "refusal", "part", "item", "annotation")  # of its events that are no deltas
TOOL_FIELDS = ("arguments", "input", "code")  # of these, too
QUOTATIONS = frozenset({"annotations", "citations"})  # of a chat, each with texts of its own


class Role(Enum):
    """The meaning of a text in an event."""

    DELTA = "the next piece of its channel"
    WHOLE = "a whole text, which most likely repeats a channel"
    TOOL = "a part of a tool call"


@dataclass(slots=True)
class Piece:
    """A text in an event, and its place."""

    role: Role
    channel: Hashable
    container: Any
    key: Any

    @property
    def text(self) -> str:
        text: str = self.container[self.key]
        return text

    @text.setter
    def text(self, text: str) -> None:
        self.container[self.key] = text


def pieces_of(event: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the pieces in an event of one of the dialects that a guard reads: chat, completions, messages, responses.
    The form of the event tells which."""
    kind = kind_of(event)
    if isinstance(event.get("choices"), list):
        for choice in event["choices"]:
            if isinstance(choice, dict):
                yield from _of_choice(choice)
    elif kind.startswith("content_block_"):
        yield from _of_block(event)
    elif kind == "message_start" and isinstance(event.get("message"), dict) and "content" in event["message"]:
        yield from _slots(Role.WHOLE, kind, event["message"], "content")
    elif kind.startswith("response."):
        yield from _of_response(event, kind)


def _of_choice(choice: dict[str, Any]) -> Iterator[Piece]:
    index = choice.get("index")
    if isinstance(choice.get("text"), str) and choice["text"]:
        yield Piece(Role.DELTA, (index, "text"), choice, "text")
    delta = choice.get("delta")
    if isinstance(delta, dict):
        for key, value in delta.items():
            if key in TOOL_KEYS and value:
                yield Piece(Role.TOOL, index, delta, key)
            elif key in QUOTATIONS:
                yield from _slots(Role.WHOLE, index, delta, key)
            elif key not in UNREAD_KEYS and key not in TOOL_KEYS:
                yield from _slots(Role.DELTA, (index, key), delta, key)
    if isinstance(choice.get("message"), dict):
        yield from _slots(Role.WHOLE, index, choice, "message")


def _of_block(event: Mapping[str, Any]) -> Iterator[Piece]:
    index = event.get("index")
    block, delta = event.get("content_block"), event.get("delta")
    if isinstance(block, dict):
        if kind_of(block) in TOOL_ITEMS:
            yield from _slots(Role.WHOLE, index, event, "content_block")
        else:
            yield from _of_part(block, index)
    if isinstance(delta, dict):
        if isinstance(delta.get("partial_json"), str):
            yield Piece(Role.TOOL, index, delta, "partial_json")
        else:
            yield from _of_part(delta, index)


def _of_part(part: dict[str, Any], index: Any) -> Iterator[Piece]:
    """Yield the pieces of a block or of its delta. Its own texts are the next pieces of the block. Those in objects,
    such as a quotation or a result of a search, are whole."""
    for key, value in part.items():
        if key not in UNREAD_KEYS:
            yield from _slots(Role.DELTA if isinstance(value, str) else Role.WHOLE, index, part, key)


def _of_response(event: Mapping[str, Any], kind: str) -> Iterator[Piece]:
    if isinstance(event.get("delta"), str) and kind.endswith(".delta"):
        if kind.endswith(TOOL_DELTAS):
            yield Piece(Role.TOOL, kind, event, "delta")
        elif event["delta"]:
            places = (event.get(name) for name in ("output_index", "content_index", "summary_index"))
            yield Piece(Role.DELTA, (kind, *map(str, places)), event, "delta")
        return
    yield from (Piece(Role.TOOL, kind, event, name) for name in TOOL_FIELDS if event.get(name))
    for name in WHOLE_FIELDS:
        if name in event:
            yield from _slots(Role.WHOLE, kind, event, name)
    response = event.get("response")
    if isinstance(response, dict) and "output" in response:
        yield from _slots(Role.WHOLE, kind, response, "output")


def _slots(role: Role, channel: Hashable, container: Any, key: Any) -> Iterator[Piece]:
    for slot in slots_in(container, key):
        if slot.kind == "tool":
            yield Piece(Role.TOOL, channel, slot.container, slot.key)
        elif slot.kind == "text":
            yield Piece(role, channel, slot.container, slot.key)


def pieces_of_calls(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """Return the tool calls of a stream as far as they came, in OpenAI's form. There is one for each channel, with all
    names and arguments in it."""
    names, arguments = dict[Hashable, list[str]](), dict[Hashable, list[str]]()
    for piece in pieces:
        if piece.role is Role.TOOL:
            own = names.setdefault(piece.channel, []), arguments.setdefault(piece.channel, [])
            value = piece.container[piece.key]
            calls = [{"arguments": value}] if isinstance(value, str) else map(_function_of, tool_calls_of(value))
            for call in calls:
                for texts, key in zip(own, ("name", "arguments"), strict=True):
                    text = call.get(key)
                    texts += [text] if isinstance(text, str) and text != "{}" else []  # a call begins so
    return [
        {"id": None, "type": "function", "function": {"name": " ".join(own), "arguments": "".join(arguments[channel])}}
        for channel, own in names.items()
    ]


def _function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    return function if isinstance(function, dict) else {}
