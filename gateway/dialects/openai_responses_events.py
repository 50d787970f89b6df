"""A whole response taken apart into the typed events of a stream. Pure.

https://developers.openai.com/api/reference/resources/responses/streaming-events
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.dialects.named_events import written
from gateway.dialects.openai_answers import reading
from gateway.dialects.pieces import pieces_of
from gateway.errors import Malformed
from gateway.messages import Event

ENDS = {"completed": "response.completed", "incomplete": "response.incomplete", "failed": "response.failed"}
LATE = ("usage", "completed_at", "error", "incomplete_details")  # what only the end tells
# Item -> (its field that comes in pieces, the name of the events that say it).
SAID_IN_PIECES = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
    "mcp_call": ("arguments", "response.mcp_call_arguments"),
    "code_interpreter_call": ("code", "response.code_interpreter_call_code"),
}
# Item -> what a call of a tool that the server runs goes through before and after that field.
PHASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "web_search_call": (("in_progress", "searching"), ("completed",)),
    "file_search_call": (("in_progress", "searching"), ("completed",)),
    "image_generation_call": (("in_progress", "generating"), ("completed",)),
    "code_interpreter_call": (("in_progress",), ("interpreting", "completed")),
    "mcp_call": (("in_progress",), ("completed",)),
    "mcp_list_tools": (("in_progress",), ("completed",)),
}
# Part -> (its field that comes in pieces, the name of the events that say it).
PARTS = {
    "output_text": ("text", "response.output_text"),
    "refusal": ("refusal", "response.refusal"),
    "reasoning_text": ("text", "response.reasoning_text"),
}


def events_of(whole: bytes) -> tuple[Event, ...]:
    """The last one carries all of `whole`. Raises `Malformed`."""
    with reading():
        body = orjson.loads(whole)
        if isinstance(body.get("error"), dict) and "output" not in body:
            raise Malformed(f"the answer is an error: {str(body['error'].get('message'))[:300]}")
        said = enumerate(_events(body))
        return tuple(written({"type": event.pop("type"), "sequence_number": at, **event}) for at, event in said)


def _events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    end = ENDS.get(body.get("status", "completed"))
    if end is None:
        raise Malformed(f"the answer is not finished: its status is {str(body['status'])[:40]!r}")
    begun = {**body, "output": [], **{key: None for key in LATE if key in body}}
    if "status" in body:
        begun["status"] = "in_progress"
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(body["output"]):
        yield from _item(index, item)
    yield {"type": end, "response": body}


def _item(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind, placed = item["type"], {"item_id": item.get("id"), "output_index": index}
    opened, inner = dict(item), list[dict[str, Any]]()
    if "status" in item:
        opened["status"] = "in_progress"
    for key, event in (("summary", _summary), ("content", _content)):
        if kind in ("message", "reasoning") and isinstance(item.get(key), list):
            opened[key] = []
            inner += [each for place, part in enumerate(item[key]) for each in event(place, part)]
    before, after = PHASES.get(kind, ((), ()))
    if kind == "mcp_call" and item.get("error") is not None:
        after = ("failed",)
    inner += [{"type": f"response.{kind}.{phase}"} for phase in before]
    if kind in SAID_IN_PIECES:
        key, name = SAID_IN_PIECES[kind]
        if isinstance(item.get(key), str):
            opened[key] = ""
            inner += _pieces(name, key, item[key])
    inner += [{"type": f"response.{kind}.{phase}"} for phase in after]
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    yield from ({**event, **placed} for event in inner)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _pieces(name: str, key: str, text: str) -> list[dict[str, Any]]:
    deltas = [{"type": f"{name}.delta", "delta": piece} for piece in pieces_of(text)]
    return [*deltas, {"type": f"{name}.done", key: text}]


def _summary(place: int, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    name, placed = "response.reasoning_summary", {"summary_index": place}
    whole = isinstance(part.get("text"), str)
    yield {"type": f"{name}_part.added", **placed, "part": {**part, "text": ""} if whole else part}
    if whole:
        yield from ({**event, **placed} for event in _pieces(f"{name}_text", "text", part["text"]))
    yield {"type": f"{name}_part.done", **placed, "part": part}


def _content(place: int, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A part of a message or of thoughts; of an unknown type it comes whole."""
    placed, opened, inner = {"content_index": place}, dict(part), list[dict[str, Any]]()
    key, name = PARTS.get(part["type"], ("", ""))
    if isinstance(part.get(key), str):
        opened[key] = ""
        *deltas, done = _pieces(name, key, part[key])
        if part["type"] == "output_text":
            deltas, done = _with_logprobs(part, deltas, done)
            opened |= {each: [] for each in ("annotations", "logprobs") if isinstance(part.get(each), list)}
            deltas += [
                {"type": f"{name}.annotation.added", "annotation_index": i, "annotation": annotation}
                for i, annotation in enumerate(part.get("annotations") or ())
            ]
        inner = [*deltas, done]
    yield {"type": "response.content_part.added", **placed, "part": opened}
    yield from ({**event, **placed} for event in inner)
    yield {"type": "response.content_part.done", **placed, "part": part}


def _with_logprobs(
    part: Mapping[str, Any], deltas: list[dict[str, Any]], done: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Token by token where the tokens are told, and are the text; clients rely on a list in any case."""
    told = part.get("logprobs")
    tokens = [each.get("token") for each in told] if isinstance(told, list) else []
    if tokens and all(isinstance(token, str) for token in tokens) and "".join(tokens) == part["text"]:
        kind = f"{PARTS['output_text'][1]}.delta"
        each = [{"type": kind, "delta": t, "logprobs": [lp]} for t, lp in zip(tokens, told or (), strict=True)]
        return each, {**done, "logprobs": told}
    return [{**delta, "logprobs": []} for delta in deltas], {**done, "logprobs": told or []}
