"""A question to a guard and its verdict, in the form of LiteLLM's Generic Guardrail API. Pure.

https://docs.litellm.ai/docs/adding_provider/generic_guardrail_api
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from gateway.dialects.json_body import dump_json, load_json

MAX_REASON = 1_000  # characters of a guard's reason that the client gets


class Side(StrEnum):
    """The side of a call that a guard judges; `input_type` on the wire."""

    REQUEST = "request"
    RESPONSE = "response"


class Outcome(StrEnum):
    """The outcome of a question, a label of the metric."""

    ALLOW = "allow"
    BLOCK = "block"
    REPLACE = "replace"
    LATE = "late"  # no verdict within `guard.timeout`
    FAILED = "failed"  # no connection, or another status than 200
    INVALID = "invalid"  # not a verdict: no JSON, an unknown action, other texts than were sent, too large
    PAUSED = "paused"  # not asked, because it failed several times in a row
    BUSY = "busy"  # not asked, because it has as many questions as it may have at once
    UNREAD = "unread"  # not asked, because the gateway cannot read the request or the answer


class GuardFailed(Exception):
    """A guard gave no verdict. The message names no text of the request."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(slots=True)
class Content:
    """The content of a request or of an answer, as a guard reads it."""

    texts: Sequence[str] = ()
    images: Sequence[str] = ()  # URLs, data URLs among them, or base64
    tool_calls: Sequence[Mapping[str, Any]] = ()  # in OpenAI's form
    tools: Sequence[Any] = ()  # definitions, as the client sent them
    messages: Sequence[Any] = ()  # in OpenAI's form

    def __bool__(self) -> bool:
        return bool(self.texts or self.images or self.tool_calls)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one side of a call. `asker` names the client, in LiteLLM's fields."""

    side: Side
    content: Content
    model: str
    asker: Mapping[str, str]
    params: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return the fields that decide the verdict."""
        content = self.content
        return {
            "input_type": self.side,
            "texts": content.texts,
            "images": content.images or None,
            "tools": content.tools or None,
            "tool_calls": content.tool_calls or None,
            "structured_messages": content.messages or None,
            "model": self.model or None,
            "request_data": self.asker,
            "additional_provider_specific_params": self.params,
        }

    def body(self, call_id: str, trace_id: str | None) -> bytes:
        """Return the body of the POST request. `call_id` is the id of the request."""
        return dump_json({**self.fields(), "litellm_call_id": call_id, "litellm_trace_id": trace_id})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a guard. `texts` and `images` replace those of the question, one by one."""

    outcome: Outcome
    reason: str = ""
    texts: tuple[str, ...] | None = None
    images: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Its size in characters, for a memory bound."""
        return 256 + sum(map(len, self.texts or ())) + sum(map(len, self.images or ()))


ALLOWED = Verdict(Outcome.ALLOW)


def read_verdict(body: bytes, content: Content) -> Verdict:
    """Return the verdict in a guard's answer about `content`. Raise `GuardFailed`."""
    try:
        answer = load_json(body)
    except orjson.JSONDecodeError:
        raise GuardFailed(Outcome.INVALID, "its answer is not JSON") from None
    action = answer.get("action") if isinstance(answer, dict) else None
    if action == "NONE":
        return ALLOWED
    if action == "BLOCKED":
        reason = answer.get("blocked_reason")
        return Verdict(Outcome.BLOCK, reason[:MAX_REASON] if isinstance(reason, str) and reason else "no reason given")
    if action != "GUARDRAIL_INTERVENED":
        raise GuardFailed(Outcome.INVALID, "its answer has no 'action' of BLOCKED, NONE and GUARDRAIL_INTERVENED")
    texts, images = _replacements(answer, "texts", content.texts), _replacements(answer, "images", content.images)
    if texts is None and images is None:
        return ALLOWED
    return Verdict(Outcome.REPLACE, texts=texts, images=images)


def _replacements(answer: Mapping[str, Any], name: str, sent: Sequence[str]) -> tuple[str, ...] | None:
    """Return what replaces the texts that were sent, or None if nothing does."""
    given = answer.get(name)
    if not given:
        return None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given) or len(given) != len(sent):
        raise GuardFailed(Outcome.INVALID, f"its answer replaces '{name}', expected {len(sent)} of them")
    return None if given == [*sent] else tuple(given)
