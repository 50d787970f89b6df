"""Plain text as the typed events of a response, for backends that know nothing but text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.named_events import written
from gateway.messages import Event, Token

# What a response repeats of its request, and what it says where the request said nothing.
REPEATED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": None, "user": None,
}  # fmt: skip


class ResponsesTextAnswer:
    """One message of one text. Such a response is stored nowhere, and says so. Remembers what it has said: each answer
    takes its own."""

    def __init__(self, body: Mapping[str, Any], answer_id: str, created: int, model: str) -> None:
        given = {key: default if body.get(key) is None else body[key] for key, default in REPEATED.items()}
        head = {"id": answer_id, "object": "response", "created_at": created, "model": model}
        self._response = {**head, **given, "previous_response_id": None, "background": False, "store": False}
        self._created = created
        self._item_id = "msg_" + answer_id.removeprefix("resp_")
        self._said: list[str] = []
        self._at = 0

    def start(self) -> Sequence[Event]:
        begun = self._as("in_progress", [], None)
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._event("response.content_part.added", **self._place(), part=_part("")),
        ]

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        self._said.append(text)
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        text, status = "".join(self._said), "incomplete" if reason == "length" else "completed"
        item = self._item(status, [_part(text)])
        usage = {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        }
        return [
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place(), part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=self._as(status, [item], usage)),
        ]

    def _event(self, kind: str, **fields: Any) -> Event:
        event = written({"type": kind, "sequence_number": self._at, **fields})
        self._at += 1
        return event

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _as(self, status: str, output: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ended = {"completed_at": self._created} if status == "completed" else {}
        state = {"status": status, "error": None, "incomplete_details": details, **ended}
        return {**self._response, **state, "output": output, "usage": usage}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
