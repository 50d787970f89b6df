"""OpenAI's responses: judged, put together from their events, put under another id. Pure.

`payload` is the data of a stream's events in order, or one element: a whole body. The event that ends a stream carries
the whole response, so that nothing has to be put together from deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.dialects.openai_answers import reading
from gateway.dialects.openai_merge import DONE
from gateway.errors import Malformed
from gateway.messages import Admission, Inspection

PREFIX = "resp_"
ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})
# Who asks and bookkeeping: it does not decide the answer, and the answer repeats it.
ECHOED = ("user", "metadata", "safety_identifier", "prompt_cache_key")
SAID = frozenset({"message", "reasoning"})  # items that are the model's own words; all others are of tools


def inspect(payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Whether the answer is complete enough to be stored, and the tokens that it cost."""
    try:
        if streamed and (end := _end(payload)) is None:
            return Inspection(Admission.CUT, 0, 0)
        if streamed and end is not None and end["type"] == "error":
            return Inspection(Admission.ERROR_STATUS, 0, 0)
        body = _response(payload) if streamed else orjson.loads(payload[0])
        usage = body.get("usage") or {}
        tokens = int(usage.get("input_tokens") or 0), int(usage.get("output_tokens") or 0)
        return Inspection(_judge(body), *tokens)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):  # orjson's are ValueErrors
        return Inspection(Admission.MALFORMED, 0, 0)


def _judge(body: Mapping[str, Any]) -> Admission:
    """Raises `TypeError` or `KeyError` on what could not be said as a stream."""
    status = body.get("status")
    if body.get("error") is not None or status in ("failed", "cancelled"):
        return Admission.ERROR_STATUS
    if status != "completed":
        return Admission.INCOMPLETE
    items = body["output"]
    if not isinstance(body["id"], str) or not isinstance(items, list):
        raise TypeError("a response without an id or without items")
    kinds = [_kind(item) for item in items]
    for item, kind in zip(items, kinds, strict=True):
        if item.get("status", "completed") not in ("completed", None):
            return Admission.INCOMPLETE
        if kind == "message":
            _check_message(item)
    if all(kind == "reasoning" for kind in kinds):
        return Admission.INCOMPLETE  # nothing is said
    return Admission.STORED if SAID.issuperset(kinds) else Admission.TOOLS


def _kind(thing: Mapping[str, Any]) -> str:
    kind = thing["type"]
    if not isinstance(kind, str):
        raise TypeError("an item or a part of no type")
    return kind


def _check_message(item: Mapping[str, Any]) -> None:
    if not isinstance(item["content"], list):
        raise TypeError("a message without parts")
    for part in item["content"]:
        if _kind(part) == "output_text" and not isinstance(part["text"], str):
            raise TypeError("a text that is none")


def _end(payload: Sequence[bytes]) -> dict[str, Any] | None:
    """The event that ends the stream, an error among them; None where there is none."""
    data = next((data for data in reversed(payload) if data != DONE), None)  # some servers end with it
    if data is None:
        return None
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    if event.get("type") == "error" or (event.get("error") is not None and "response" not in event):
        return {**event, "type": "error"}
    return event if event.get("type") in ENDINGS else None


def _response(payload: Sequence[bytes]) -> dict[str, Any]:
    """The response that the events tell. Some servers leave its items out at the end: then they are those that were
    done. Raises what reading a malformed answer raises."""
    end = _end(payload)
    if end is None:
        raise ValueError("the stream has no end")
    if end["type"] == "error":
        raise Malformed(f"the answer is an error: {_sentence(end)}")
    response = end["response"]
    if not isinstance(response, dict):
        raise TypeError("an end without a response")
    return response if response.get("output") else {**response, "output": _done(payload)}


def _done(payload: Iterable[bytes]) -> list[Any]:
    done: dict[int, Any] = {}
    for data in payload:
        if b"response.output_item.done" in data:
            event = orjson.loads(data)
            if event.get("type") == "response.output_item.done":
                done[event["output_index"]] = event["item"]
    return [done[index] for index in sorted(done)]


def _sentence(event: Mapping[str, Any]) -> str:
    error = event.get("error")
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or event.get("message"))[:300]


def assemble(payload: Sequence[bytes]) -> bytes:
    """The events of a stream -> the body that the same request without `stream` gets. Raises `Malformed`."""
    with reading():
        return orjson.dumps(_response(payload))


def text(whole: bytes) -> str | None:
    """What a whole body says, its texts joined as the SDK's `output_text` does; None where it says anything in another
    way (a call of a tool, a refusal). Thoughts are no part of it. Raises `Malformed`."""
    with reading():
        items = [item for item in orjson.loads(whole)["output"] if item["type"] != "reasoning"]
        if any(item["type"] != "message" for item in items):
            return None
        parts = [part for item in items for part in item["content"]]
        if any(part["type"] != "output_text" for part in parts):
            return None
        return "".join(part["text"] for part in parts) or None


def renewed(data: bytes, answer_id: str, created: int, *, kept: bool) -> bytes:
    """A whole body, or the data of an event that carries one, under another id and time; as it is where it is stored
    upstream. `kept`: whether one is that does not say so."""

    def anew(response: dict[str, Any]) -> dict[str, Any]:
        stored = response.get("store")
        if (kept if stored is None else stored is not False) or "id" not in response:
            return response
        times = {key: created for key in ("created_at", "completed_at") if response.get(key) is not None}
        return {**response, "id": answer_id, **times}

    return _changed(data, anew)


def owned(fields: Mapping[str, Any], data: bytes) -> bytes:
    """A whole body, or the data of an event that carries one, that was made for another request, with what this one
    said in `fields`. What the answer does not repeat is not added."""

    def own(response: dict[str, Any]) -> dict[str, Any]:
        said = {key: fields[key] for key in fields.keys() & response.keys()}
        if isinstance(response.get("metadata"), dict):
            said["metadata"] = fields["metadata"] or {}  # none is an empty one
        return response if all(response[key] == value for key, value in said.items()) else {**response, **said}

    return _changed(data, own)


def _changed(data: bytes, change: Any) -> bytes:
    """`change` gets a response and returns it, changed or as it is; then the bytes stay."""
    if b'"output"' not in data:  # no response is in it
        return data
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(value, dict):
        return data
    inner = value.get("response")
    if isinstance(inner, dict):
        changed = change(inner)
        return data if changed is inner else orjson.dumps({**value, "response": changed})
    changed = change(value) if value.get("object") == "response" or "output" in value else value
    return data if changed is value else orjson.dumps(changed)
