"""OpenAI's Responses API: `POST /v1/responses`, complete and as typed events.

Later operations on a response pass through (reading, deleting, cancelling, its input items, compaction, counting).
Shapes follow OpenAI's API reference (https://developers.openai.com/api/reference/resources/responses). Unknown fields,
items and parts are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from gateway.calls import Call, Decisive, Inspection, TextAnswer
from gateway.dialect_traits import AnswerParts, DemandedForm, Tunable
from gateway.dialects.conversation import Conversational, split_content, transcript
from gateway.dialects.json_body import (
    ABSENT,
    check_limit,
    check_model,
    check_temperature,
    invalid_field,
    limit_of,
    parse_object,
)
from gateway.dialects.known import RESPONSES
from gateway.dialects.openai import responses_answers as answers
from gateway.dialects.openai.dialect import openai_error_answer, user_of
from gateway.dialects.openai.equal_responses import responses_form
from gateway.dialects.openai.responses_answers import ResponsesTextAnswer, events_of
from gateway.dialects.openai.structured_responses import demanded_form, read_parts_of_response
from gateway.dialects.sse import with_event_name, with_names
from gateway.dialects.structured_answers import as_dict, read_parts
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission, Bypass

OPERATION = "responses"

# Fields that do not decide the response. `store` does: a stored response has an id that later requests may name.
# Codex names its session, its thread and its turn in `client_metadata`.
NON_DECISIVE = frozenset({"stream", "stream_options", "client_metadata", *answers.ECHOED})
# Fields that name an item, its turn and its time. Codex sends the second one to OpenAI itself.
ITEM_NAMES = frozenset({"id", "internal_chat_message_metadata_passthrough"})
# Items whose `id` only names them, since they are complete without it. Clients such as Codex make a new one for each
# request. A reference is its id, and a reasoning item may be looked up by it.
COMPLETE_ITEMS = frozenset(
    {
        "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
        "apply_patch_call", "apply_patch_call_output",
    }
)  # fmt: skip
TEXT_KEYS = frozenset({"type", "text", "prompt_cache_breakpoint"})  # keys of a part that is only text


def _set_effort(body: dict[str, Any], lower: Callable[[Any], Any]) -> None:
    given = as_dict(body.get("reasoning"))
    body["reasoning"] = {**given, "effort": lower(given.get("effort"))}


class OpenAIResponses(Conversational):
    """`OpenAIResponses` is the dialect of `POST /v1/responses`."""

    name = "openai-responses"
    accepted_by = frozenset({"openai"})
    chains_answers = True

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and path == RESPONSES

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        given = parse_object(body)
        _check(given)
        bypass = _bypass(given)
        return Call(
            dialect=self,
            operation=OPERATION,
            body=given,
            model=given.get("model") or "",
            stream=given.get("stream") is True,
            decisive_source=partial(_decisive, given, bypass),
            prompt_source=_prompt,
            max_tokens=limit_of(given.get("max_output_tokens")),
            user=user_of(given),
            uncached=bypass,
            stored=given.get("store") is not False,
            own=_field_restorer(given),
        )

    def continued(self, call: Call) -> str | None:
        value = call.body.get("previous_response_id") or call.body.get("conversation")
        if isinstance(value, Mapping):
            value = value.get("id")
        return value if isinstance(value, str) and value else None

    def tunable(self, call: Call) -> Tunable | None:
        return Tunable("max_output_tokens", _set_effort)

    def demanded_form(self, call: Call) -> DemandedForm:
        return demanded_form(call.body)

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        return read_parts(call, payload, streamed, read_parts_of_response)

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        inspection = answers.inspect(payload, streamed)
        if not streamed and inspection.admission in (Admission.STORED, Admission.TOOLS):
            try:
                self.events(call, payload[0])  # an entry serves both forms, so each must be possible
            except MalformedResponse:
                return Inspection(Admission.MALFORMED, 0, 0)
        return inspection

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        return answers.assemble(payload)

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        return events_of(whole)

    def renew(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        """Renew the id, but not of a response that is stored upstream, where later requests name it."""
        return answers.renew(data, answers.PREFIX + answer_id, created, kept=call.stored)

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        return with_names(events)

    def _answer_text(self, call: Call, whole: bytes) -> str | None:
        return answers.text(whole)

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer:
        for field in ("previous_response_id", "conversation", "prompt"):
            if call.body.get(field) is not None:
                raise BadRequest(
                    f"'{field}' is not supported: this backend stores no responses, conversations or prompts",
                    param=field,
                )
        return ResponsesTextAnswer(call.body, answers.PREFIX + answer_id, created, model)

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        raise BadRequest("the Responses API has no embeddings")

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return orjson.dumps({"error": _error(kind, message, param)})

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        return openai_error_answer(event)

    def is_end(self, event: Event) -> bool:
        return (event.name or with_event_name(event.data).name) in answers.LAST_EVENTS

    def is_finished(self, last: Sequence[Event]) -> bool:
        return False

    def is_over(self, last: Sequence[Event]) -> bool:
        return any(with_event_name(event.data).name in answers.LAST_EVENTS for event in last)

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        """Return an error event with both shapes: the API reference's (top-level fields) and OpenAI's actual one
        (`error`).

        Some clients read the first one, and the official SDK raises on the second. The event's real sequence number is
        not known here.
        """
        fields = {"type": "error", "sequence_number": 0, "code": kind, "message": message, "param": None}
        return (Event(orjson.dumps({**fields, "error": _error(kind, message)}), "error"),)


def _error(kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": None}


def _field_restorer(body: Mapping[str, Any]) -> Callable[[bytes], bytes]:
    return partial(answers.restore_request_fields, {key: body.get(key) for key in answers.ECHOED})


def _bypass(body: Mapping[str, Any]) -> Bypass | None:
    """Return why the response may not be cached.

    A background response is polled until it is ready. A conversation grows with each call, so the same words
    have another meaning the next time. A turn served from the cache would also be missing upstream.
    """
    if body.get("background") is True:
        return Bypass.BACKGROUND
    return Bypass.CONVERSATION if body.get("conversation") is not None else None


FIELDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("model", str, "a non-empty string"),
    ("input", (str, list), "a string or an array of items"),
    ("instructions", str, "a string"),
    ("previous_response_id", str, "a string"),
    ("conversation", (str, dict), "a string or an object"),
    ("stream", bool, "true or false"),
    ("background", bool, "true or false"),
    ("store", bool, "true or false"),
    ("stream_options", dict, "an object"),
    ("metadata", dict, "an object"),
    ("user", str, "a string"),
    ("safety_identifier", str, "a string"),
)


def _decisive(body: dict[str, Any], bypass: Bypass | None) -> Decisive:
    decisive = {key: value for key, value in body.items() if key not in NON_DECISIVE}
    if isinstance(given := decisive.get("input"), list):
        decisive["input"] = [_without_names(item) for item in given]
    decisive = responses_form(decisive)
    question, context, no_question = (None, decisive, bypass) if bypass else _question(decisive)
    canonical = orjson.dumps(decisive, option=orjson.OPT_SORT_KEYS)
    return Decisive(canonical, orjson.dumps(context, option=orjson.OPT_SORT_KEYS), question, no_question)


def _without_names(item: dict[str, Any]) -> dict[str, Any]:
    if ITEM_NAMES.isdisjoint(item) or item.get("type", "message") not in COMPLETE_ITEMS:
        return item
    return {key: value for key, value in item.items() if key not in ITEM_NAMES}


def _check(body: Mapping[str, Any]) -> None:
    """Check the fields that the gateway itself relies on. The backend judges the rest.

    With a `prompt` that is stored there, a request is complete even without an input.
    """
    for field, types, expected in FIELDS:
        if (value := body.get(field)) is not None and not isinstance(value, types):
            raise invalid_field(field, expected, value)
    check_model(body)
    check_limit(body, "max_output_tokens")
    check_temperature(body)
    given = body.get("input")
    for i, item in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(item, dict):
            raise invalid_field(f"input[{i}]", "an object", item)
        if not isinstance(item.get("role"), str | None):
            raise invalid_field(f"input[{i}].role", "a string", item["role"])
        if _is_message(item):
            _check_content(item.get("content"), f"input[{i}].content")


def _check_content(content: Any, where: str) -> None:
    if not isinstance(content, str | list | None):
        raise invalid_field(where, "a string or an array of parts", content)
    for i, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict):
            raise invalid_field(f"{where}[{i}]", "an object", part)
        if _is_text(part) and not isinstance(part.get("text"), str):
            raise invalid_field(f"{where}[{i}].text", "a string", part.get("text", ABSENT))


def _is_message(item: Mapping[str, Any]) -> bool:
    kind: object = item.get("type", "message")
    return kind == "message"


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type") in ("input_text", "output_text", "text")


def _question(body: Mapping[str, Any]) -> tuple[str | None, Any, Bypass | None]:
    """Return (the text to match by similarity, the parts that must be equal, the reason if there is no text)."""
    given = body.get("input")
    if isinstance(given, str) and given.strip():
        return given, {**body, "input": None}, None
    if isinstance(given, list) and given and _is_message(given[-1]) and given[-1].get("role") == "user":
        *earlier, last = given
        text, rest = split_text(last.get("content"))
        if text.strip():
            return text, {**body, "input": [*earlier, {**last, "content": rest}]}, None
    return None, body, Bypass.NO_TEXT


def split_text(content: Any) -> tuple[str, Any]:
    """Split content as `conversation.split_content` does."""
    if not isinstance(content, list):
        return content or "", None
    return split_content(content, _is_text, TEXT_KEYS)


def _prompt(body: Mapping[str, Any]) -> str:
    given = body.get("input")
    turns = [("system", body["instructions"])] if body.get("instructions") else []
    if isinstance(given, str):
        turns.append(("user", given))
    else:
        messages = [item for item in given or () if _is_message(item)]
        turns += [(item.get("role") or "user", split_text(item.get("content"))[0]) for item in messages]
    return transcript(turns)
