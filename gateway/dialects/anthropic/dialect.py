"""The Anthropic wire protocol: messages, complete and streamed. Token counts, batches and files pass through.

Shapes follow Anthropic's API reference (https://platform.claude.com/docs/en/api/messages). Unknown fields, block types
and delta types are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from gateway.calls import Call, Decisive, Inspection, TextAnswer
from gateway.dialect_traits import AnswerParts, Budgets, DemandedForm, Endpoint, ModelObjects, Tunable
from gateway.dialects.anthropic import answers, errors
from gateway.dialects.anthropic.budgets import cap_budget, set_budget
from gateway.dialects.anthropic.equal_forms import messages_form
from gateway.dialects.anthropic.models import anthropic_model, anthropic_page
from gateway.dialects.anthropic.requests import without_cache_marks
from gateway.dialects.anthropic.structured_answers import demanded_form, read_parts_of_message
from gateway.dialects.anthropic.thinking import INTERLEAVED, fit_thinking, set_effort
from gateway.dialects.anthropic.token_counts import COUNT_TOKENS, estimate_tokens
from gateway.dialects.anthropic.translation.chat_as_message import ChatAnswer
from gateway.dialects.anthropic.translation.message_as_chat import MessageAnswer
from gateway.dialects.conversation import Conversational, split_content, transcript
from gateway.dialects.json_body import (
    ABSENT,
    check_limit,
    check_model,
    check_temperature,
    dump_json,
    invalid_field,
    limit_of,
    parse_object,
)
from gateway.dialects.known import MESSAGES
from gateway.dialects.reported_errors import read_error
from gateway.dialects.sse import with_event_name, with_names
from gateway.dialects.structured_answers import read_parts
from gateway.errors import BadRequest
from gateway.messages import Event
from gateway.outcomes import Bypass

VERSION, BETA = "anthropic-version", "anthropic-beta"

# Fields that do not decide the response: its framing, and the user (part of the scope).
NON_DECISIVE = frozenset({"stream", "metadata", "cache_control"})
ENDS = frozenset({"message_stop", "error"})  # the last events of a stream
MESSAGE_STOP = Event(b'{"type":"message_stop"}', "message_stop")
TEXT_KEYS = frozenset({"type", "text"})  # keys of a block that is only text


class Anthropic(Conversational):
    """`Anthropic` is the dialect of `POST /v1/messages`."""

    name = "anthropic"
    id_header = "request-id"
    client_header = VERSION
    endpoint = Endpoint(
        key_header="x-api-key",
        own_headers=frozenset({VERSION, BETA, "anthropic-dangerous-direct-browser-access"}),
        required_headers=((VERSION, "2023-06-01"),),  # the only supported version besides an older one
        embeds=False,
        budgets=Budgets(set_budget, cap_budget),
        models=ModelObjects(anthropic_model, anthropic_page, query="limit=1000"),  # a page has at most this many
    )
    token_count_path = COUNT_TOKENS
    to_neutral = ChatAnswer
    from_neutral = MessageAnswer
    keep_alive = Event(b'{"type":"ping"}', "ping")

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and path == MESSAGES

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        given = parse_object(body)
        _check(given)
        return Call(
            dialect=self,
            operation=answers.MESSAGES,
            body=given,
            model=given.get("model") or "",
            stream=given.get("stream") is True,
            decisive_source=partial(_decisive, given, marked=b'"cache_control"' in body),
            prompt_source=_prompt,
            max_tokens=limit_of(given.get("max_tokens")),
            user=(given.get("metadata") or {}).get("user_id"),
        )

    def fitted(self, call: Call, headers: Mapping[str, str]) -> Call:
        """Return the call without thinking that Anthropic would refuse."""
        if call.operation != answers.MESSAGES:
            return call
        body = fit_thinking(call.body, interleaved=INTERLEAVED in headers.get(BETA, ""))
        return call if body is call.body else replace(call, body=body)

    def tunable(self, call: Call) -> Tunable | None:
        return Tunable("max_completion_tokens" if call.body.get("max_completion_tokens") else "max_tokens", set_effort)

    def demanded_form(self, call: Call) -> DemandedForm:
        return demanded_form(call.body)

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        return read_parts(call, payload, streamed, read_parts_of_message)

    def estimate_tokens(self, body: Mapping[str, Any]) -> int | None:
        return estimate_tokens(body) if isinstance(body.get("messages"), list) else None

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        return answers.inspect(payload, streamed)

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        return answers.assemble(payload)

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        return answers.split(whole)

    def renew(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        return answers.renew(data, answers.PREFIX + answer_id)

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        return with_names(events)

    def _answer_text(self, call: Call, whole: bytes) -> str | None:
        return answers.text(whole)

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer:
        return answers.AnthropicTextAnswer(answer_id, model)

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        raise BadRequest("Anthropic's protocol has no embeddings")

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return errors.error(kind, message)

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        reported = read_error(event)
        if reported is None:
            return None
        if reported.body.get("type") == "error" and isinstance(reported.body.get("error"), dict):
            return reported.status, dump_json(reported.body)
        return reported.status, errors.error(errors.kind_for_status(reported.status), reported.message)

    def is_end(self, event: Event) -> bool:
        return (event.name or with_event_name(event.data).name) in ENDS

    def is_finished(self, last: Sequence[Event]) -> bool:
        return False

    def is_over(self, last: Sequence[Event]) -> bool:
        return not self.missing_end(last) or any(answers.is_finished(event.data) for event in last)

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        """Return `message_stop`, unless the stream has it or ended with an error."""
        return () if any(with_event_name(event.data).name in ENDS for event in last) else (MESSAGE_STOP,)

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        return (Event(self.error(kind, message), "error"),)


def _decisive(body: dict[str, Any], *, marked: bool) -> Decisive:
    """Return what decides the response. A `marked` body may have prompt-cache marks, which do not decide it."""
    decisive = {key: value for key, value in body.items() if key not in NON_DECISIVE}
    if marked:
        decisive = without_cache_marks(decisive)
    decisive = messages_form(decisive)
    question, context, no_question = _question(decisive)
    return Decisive(
        orjson.dumps(decisive, option=orjson.OPT_SORT_KEYS),
        orjson.dumps(context, option=orjson.OPT_SORT_KEYS),
        question,
        no_question,
    )


def _check(body: Mapping[str, Any]) -> None:
    """Check the fields that the gateway itself relies on. The backend judges the rest."""
    check_model(body)
    if (stream := body.get("stream")) is not None and not isinstance(stream, bool):
        raise invalid_field("stream", "true or false", stream)
    check_limit(body, "max_tokens")
    check_temperature(body)  # Anthropic's own models accept at most 1, which they check themselves
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise invalid_field("metadata", "an object", metadata)
    if not isinstance(user := (metadata or {}).get("user_id"), str | None):
        raise invalid_field("metadata.user_id", "a string", user)
    if (system := body.get("system")) is not None:
        _check_content(system, "system")
    messages = body.get("messages", ABSENT)
    if not isinstance(messages, list) or not messages:
        raise invalid_field("messages", "a non-empty array", messages)
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid_field(f"messages[{i}]", "an object", message)
        if not isinstance(message.get("role"), str):
            raise invalid_field(f"messages[{i}].role", "a string", message.get("role", ABSENT))
        _check_content(message.get("content", ABSENT), f"messages[{i}].content")


def _check_content(content: Any, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid_field(where, "a string or an array of blocks", content)
    for i, block in enumerate(content):
        if not isinstance(block, dict):
            raise invalid_field(f"{where}[{i}]", "an object", block)
        if not isinstance(block.get("type"), str):
            raise invalid_field(f"{where}[{i}].type", "a string", block.get("type", ABSENT))
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise invalid_field(f"{where}[{i}].text", "a string", block.get("text", ABSENT))


def _question(body: Mapping[str, Any]) -> tuple[str | None, Any, Bypass | None]:
    """Return (the text to match by similarity, the parts that must be equal, the reason if there is no text)."""
    *earlier, last = body["messages"]
    if last["role"] == "user":
        text, rest = split_text(last["content"])
        if text.strip():
            return text, {**body, "messages": [*earlier, {**last, "content": rest}]}, None
    return None, body, Bypass.NO_TEXT


def split_text(content: str | list[Any]) -> tuple[str, Any]:
    """Split content as `conversation.split_content` does."""
    return (content, []) if isinstance(content, str) else split_content(content, _is_text, TEXT_KEYS)


def _is_text(block: Mapping[str, Any]) -> bool:
    return bool(block["type"] == "text")


def _prompt(body: Mapping[str, Any]) -> str:
    turns = [("system", body["system"])] if body.get("system") else []
    turns += [(message["role"], message["content"]) for message in body["messages"]]
    return transcript([(role, split_text(content)[0]) for role, content in turns])
