"""Join the deltas of one choice of a chat stream into its message. Pure.

Servers add fields at every level. Texts come in pieces that are joined; fields about a text are repeated.
"""

from __future__ import annotations

import base64 as b64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.dialects.openai.tool_call_deltas import ToolCallDeltas

# Texts of a delta that a later delta repeats rather than continues.
REPLACED_FIELDS = frozenset({"role", "id", "type", "format", "name"})


# Names of the reasoning field: DeepSeek and older vLLM, OpenRouter and newer vLLM.
THOUGHTS = ("reasoning_content", "reasoning")
TEXTS = ("content", *THOUGHTS)
# Names of servers for OpenAI's reasons to finish: TGI, Together, Mistral.
REASONS = {"eos_token": "stop", "eos": "stop", "model_length": "length"}
FEWEST_GROWING = 3  # deltas that each begin with the one before; fewer may be chance


class _GrowingText:
    """Tells whether the deltas of a text are its pieces, or each the whole text so far, as DashScope's coding models
    send them. Then the last one is the text."""

    def __init__(self) -> None:
        self._count, self._is_growing = 0, True
        self.last = ""

    def add(self, delta: str) -> None:
        if self.is_whole and delta == self.last:
            return  # the last delta may come twice, the second time with the finish
        self._is_growing = self._is_growing and len(delta) > len(self.last) and delta.startswith(self.last)
        self._count, self.last = self._count + 1, delta

    @property
    def is_whole(self) -> bool:
        return self._is_growing and self._count >= FEWEST_GROWING


class ChatMessage:
    """A message under construction."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._growing: dict[str, _GrowingText] = {}
        self._calls: list[dict[str, Any]] = []
        self._deltas = ToolCallDeltas()

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta. Raise `ValueError` for content that cannot be joined with the content before it."""
        rest = dict(delta)
        calls = call_list(rest.get("tool_calls"))
        if isinstance(calls, list) and calls and all(isinstance(call, dict) for call in calls):
            self._fields["tool_calls"] = self._calls
            del rest["tool_calls"]
            for call in calls:
                self._add_call(call)
        for key in TEXTS:
            if isinstance(text := rest.get(key), str) and text:
                self._growing.setdefault(key, _GrowingText()).add(text)
        if rest.get("content") is not None:
            rest["content"] = _join_content(self._fields.pop("content", None), rest["content"])
        merge_delta(self._fields, rest)

    def _add_call(self, delta: dict[str, Any]) -> None:
        place = self._deltas.place(delta)
        if place == len(self._calls):
            self._calls.append(delta)
            return
        call = self._calls[place]
        if call.get("id"):
            delta = {key: value for key, value in delta.items() if key != "id"}
        merge_delta(call, delta)

    def to_message(self) -> dict[str, Any]:
        """Return the message. Raise `ValueError` if its tool calls cannot be told apart."""
        self._deltas.check()
        for call in self._calls:
            call.pop("index", None)  # the position in the list replaces it
        for key, text in self._growing.items():
            if text.is_whole and isinstance(self._fields.get(key), str):
                self._fields[key] = text.last
        return self._fields


def call_list(given: Any) -> Any:
    """Return the tool calls of a delta or message as a list: TGI's servers before 3.2 send one call as an object."""
    return [given] if isinstance(given, dict) and given else given


def merge_delta(merged: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge one delta: texts are appended, objects are merged, everything else is replaced.

    Lists are joined, by `index` if their elements have one. Unknown fields follow the same rules.
    """
    for key, value in delta.items():
        before = merged.get(key)
        if before is None or value is None:
            merged[key] = before if value is None else value
        elif isinstance(before, str) and isinstance(value, str):
            merged[key] = (value or before) if key in REPLACED_FIELDS else before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            sound = before.get("data") if key == "audio" else None
            merge_delta(before, value)
            if isinstance(sound, str) and sound.endswith("=") and isinstance(more := value.get("data"), str):
                before["data"] = _join_base64(sound, more)
        elif isinstance(before, list) and isinstance(value, list):
            _merge_list(before, value)
        else:
            merged[key] = value


def _join_base64(before: str, more: str) -> str:
    """Join audio pieces. Each is encoded separately, and padding may only occur at the end."""
    return b64.b64encode(b64.b64decode(before) + b64.b64decode(more)).decode()


def _merge_list(before: list[Any], value: list[Any]) -> None:
    for element in value:
        index = _index(element)
        same = None if index is None else next((e for e in before if _index(e) == index), None)
        if same is None:
            before.append(element)
        else:
            merge_delta(same, element)


def _index(element: Any) -> Any:
    return element.get("index") if isinstance(element, dict) else None


# Content is a text, or a list of parts. Mistral's servers send lists of parts for the thinking, and then texts.
# https://docs.mistral.ai/capabilities/reasoning
def calls_of(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tool calls of a message or delta. `function_call` is the older field for one call."""
    calls: Sequence[Mapping[str, Any]] = call_list(message.get("tool_calls")) or ()
    return [*calls, {"function": legacy}] if (legacy := message.get("function_call")) else calls


def thought_of(message: Mapping[str, Any]) -> Any:
    """Return the reasoning of a message or delta, under whichever name it has; empty without any."""
    return next((message[key] for key in THOUGHTS if message.get(key)), "")


UNSPOKEN = ("reference",)  # parts that only point to a source


def texts_of(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message's content in order, each with its kind: `text` or `thinking`.

    Raise `ValueError` for other parts.
    """
    for part in _as_parts(content or []):
        kind = "text" if isinstance(part, str) else part.get("type")
        if kind == "thinking":
            yield kind, "".join(text for _, text in texts_of(part.get("thinking")))
        elif kind in ("text", "refusal"):
            yield "text", part if isinstance(part, str) else part.get(kind) or ""
        elif kind not in UNSPOKEN:
            raise ValueError(f"content with a part of the type {str(kind)[:40]!r}")


def _join_content(before: Any, value: Any) -> Any:
    """Return the content so far: a text, or one list of parts in order."""
    if not before or not value:
        return before or value
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    return _join_parts(_as_parts(before), _as_parts(value))


def _as_parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("content that is neither a text nor a list")
    return content


def _join_parts(before: list[Any], value: Sequence[Any]) -> list[Any]:
    """Append parts. The first one may continue the last part so far; the parts of one delta stay apart."""
    first, *others = value
    if _index(first) is not None:
        _merge_list(before, [first])
    elif not (before and _continue_part(before[-1], first)):
        before.append(first)
    _merge_list(before, others)
    return before


def _continue_part(part: Any, more: Any) -> bool:
    """Join `more` to `part` if it continues it; return whether it does."""
    if not isinstance(part, dict) or not isinstance(more, dict) or part.get("type") != more.get("type"):
        return False
    if (
        part.keys() == more.keys() == {"type", "text"}
        and isinstance(part["text"], str)
        and isinstance(more["text"], str)
    ):
        part["text"] += more["text"]
        return True
    if part.get("type") != "thinking" or part.get("closed") is True:
        return False
    thought, rest = more.get("thinking"), {key: value for key, value in more.items() if key != "thinking"}
    if thought:
        part["thinking"] = _join_content(part.get("thinking"), thought)
    merge_delta(part, rest)
    return True
