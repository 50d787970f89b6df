"""The chunks of an OpenAI stream put together: what the same request without `stream` gets. Pure.

Servers add fields at every level, and say the same thing once, in every chunk, or a piece at a time. What kind a field
is shows where it stands: what a model says (`delta`, `text`) comes in pieces that are joined; what is said about it
(the chunk, the choice) is repeated or completed, and an empty value never takes back what was said before, as in the
chunks that some servers send around an answer for what their filters found.
"""

from __future__ import annotations

import base64 as b64
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

DONE = b"[DONE]"
CHAT = "chat.completions"
WHOLE = {CHAT: "chat.completion", "completions": "text_completion"}
REPLACED = frozenset({"role", "id", "type", "format"})  # texts of a delta that a later one repeats, not continues


def assembled(operation: str, payload: Iterable[bytes]) -> dict[str, Any]:
    """Of the data of all events. Fields that the protocol requires and no chunk has are null, or empty. Raises what
    reading a malformed answer raises: `ValueError`, `TypeError`, `AttributeError`, `KeyError`."""
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for data in payload:
        if data == DONE:
            continue
        chunk = orjson.loads(data)
        for choice in chunk.pop("choices", None) or ():
            _add(operation, choices.setdefault(choice.get("index") or 0, {}), choice)
        _unite(body, chunk)
    body["object"] = WHOLE[operation]
    body["choices"] = [_finished(operation, index, choices[index]) for index in sorted(choices)]
    return body


def _add(operation: str, merged: dict[str, Any], choice: dict[str, Any]) -> None:
    if operation == CHAT:
        if delta := choice.pop("delta", None):
            merge_delta(merged.setdefault("delta", {}), delta)
    elif "text" in choice:
        merged["text"] = merged.get("text", "") + (choice.pop("text") or "")
    _unite(merged, choice, grow=True)


def _finished(operation: str, index: int, choice: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": index, "logprobs": None, "finish_reason": None, **choice}
    if operation != CHAT:
        if "text" not in choice:
            raise ValueError("a choice without a text")
        return choice
    if "message" in choice:
        raise ValueError("a chunk with a whole message")
    delta = choice.pop("delta", {})
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            call.pop("index", None)  # the place in the list says it
    choice["message"] = {"role": "assistant", "content": None, **delta}
    return choice


def _unite(merged: dict[str, Any], given: Mapping[str, Any], *, grow: bool = False) -> None:
    """The last value that says something counts; objects are united; with `grow`, lists are joined."""
    for key, value in given.items():
        before = merged.get(key)
        if before is None or (value and isinstance(value, str)):
            merged[key] = value
        elif isinstance(before, dict) and isinstance(value, dict):
            _unite(before, value, grow=grow and key == "logprobs")
        elif grow and isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif not (value is None or value in ("", [], {}) or (key == "created" and value == 0)):
            merged[key] = value


def merge_delta(merged: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Adds one delta to what came before it: text is appended, lists are joined (by `index` where their elements
    have one), objects are merged, everything else is replaced. Unknown fields follow the same rule."""
    for key, value in delta.items():
        before = merged.get(key)
        if before is None or value is None:
            merged[key] = before if value is None else value
        elif isinstance(before, str) and isinstance(value, str):
            merged[key] = (value or before) if key in REPLACED else before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            sound = before.get("data") if key == "audio" else None
            merge_delta(before, value)
            if isinstance(sound, str) and sound.endswith("=") and isinstance(more := value.get("data"), str):
                before["data"] = _joined_base64(sound, more)
        elif isinstance(before, list) and isinstance(value, list):
            _merge_list(before, value)
        else:
            merged[key] = value


def _joined_base64(before: str, more: str) -> str:
    """Each piece of a sound is encoded by itself: its padding may stand nowhere but at the end."""
    return b64.b64encode(b64.b64decode(before) + b64.b64decode(more)).decode()


def _merge_list(before: list[Any], value: list[Any]) -> None:
    for element in value:
        index = element.get("index") if isinstance(element, dict) else None
        same = None if index is None else next((e for e in before if _index(e) == index), None)
        if same is None:
            before.append(element)
        else:
            merge_delta(same, element)


def _index(element: Any) -> Any:
    return element.get("index") if isinstance(element, dict) else None
