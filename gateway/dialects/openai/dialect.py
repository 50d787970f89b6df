"""The OpenAI wire protocol: chat completions, completions and embeddings.

Shapes follow OpenAI's API reference. Unknown fields are kept, so that additions of compatible servers reach the client
and take part in the fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from gateway.calls import Call, Decisive, Inspection, Outgoing, TextAnswer
from gateway.dialect_traits import AnswerParts, DemandedForm, Endpoint, ModelObjects, OpenParts, Tunable
from gateway.dialects.conversation import Conversational, split_content, transcript
from gateway.dialects.equal_forms import with_defaults_left_out
from gateway.dialects.json_body import (
    ABSENT,
    check_count,
    check_limit,
    check_model,
    check_temperature,
    count_of,
    dump_json,
    invalid_field,
    json_writer,
    limit_of,
    load_json,
    read_object,
    sent_model,
)
from gateway.dialects.openai import answers
from gateway.dialects.openai.answers import reading, usage_of
from gateway.dialects.openai.equal_forms import COMPLETIONS, chat_form
from gateway.dialects.openai.equal_forms import EMBEDDINGS as EMBEDDING_FIELDS
from gateway.dialects.openai.logprobs import OpenAILogprobs
from gateway.dialects.openai.structured_answers import demanded_form, read_parts_of_chat
from gateway.dialects.openai.vector_format import in_order, with_vector_format
from gateway.dialects.reported_errors import read_error
from gateway.dialects.structured_answers import read_parts
from gateway.messages import Event
from gateway.outcomes import Admission, Bypass

# Each input of an embeddings call is treated as a call. Pure.
Parse = Callable[[dict[str, Any]], Call]


def _set_effort(body: dict[str, Any], lower: Callable[[Any], Any]) -> None:
    body["reasoning_effort"] = lower(body.get("reasoning_effort"))


class EmbeddingInputs:
    """`EmbeddingInputs` implements `InputSplit`. `parse` makes a call from a body that was checked already."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse

    def split(self, call: Call) -> tuple[Call, ...]:
        """Return one call for each input, as if it had been sent alone, so that both forms share stored entries."""
        return tuple(self._parse({**call.body, "input": one}) for one in call.body["input"])

    def merge(self, calls: Sequence[Call]) -> Call:
        return self._parse({**calls[0].body, "input": [call.body["input"] for call in calls]})

    def split_answer(self, calls: Sequence[Call], whole: bytes) -> list[bytes]:
        with reading():
            body = load_json(whole)
            items = in_order(body["data"], len(calls))
            tokens = _token_shares(calls, _tokens(body))
            write = json_writer((whole,))
            return [
                write({**body, "data": [{**item, "index": 0}], "usage": _usage(share)})
                for item, share in zip(items, tokens, strict=True)
            ]

    def join_answers(self, wholes: Sequence[bytes]) -> bytes:
        if len(wholes) == 1:
            return wholes[0]
        with reading():
            bodies = [load_json(whole) for whole in wholes]
            data = [{**in_order(body["data"][:1], 1)[0], "index": i} for i, body in enumerate(bodies)]
            return json_writer(wholes)({**bodies[0], "data": data, "usage": _usage(sum(map(_tokens, bodies)))})


def _tokens(body: Mapping[str, Any]) -> int:
    return count_of(usage_of(body).get("prompt_tokens"))


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _token_shares(calls: Sequence[Call], tokens: int) -> list[int]:
    """Divide the token count of a call among its inputs, because a backend reports only the sum.

    The division is by length: exact for token ids, close for texts. The shares add up to the sum.
    """
    lengths = [max(1, len(call.body["input"])) for call in calls]
    total, given, seen, shares = sum(lengths), 0, 0, []
    for length in lengths:
        seen += length
        share = tokens * seen // total - given
        shares.append(share)
        given += share
    return shares


CHAT = "/v1/chat/completions"

OPERATIONS = {
    CHAT: "chat.completions",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}

# Fields that do not decide the response: its framing, the user (part of the scope), and bookkeeping.
NON_DECISIVE = frozenset({"stream", "stream_options", "user", "metadata", "safety_identifier", "prompt_cache_key"})

# For the cache keys: requests that mean the same have one form.
FORMS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "chat.completions": chat_form,
    "completions": partial(with_defaults_left_out, table=COMPLETIONS),
    "embeddings": partial(with_defaults_left_out, table=EMBEDDING_FIELDS),
}
NON_DECISIVE_UNSTORED = NON_DECISIVE | {"store"}


class OpenAI(Conversational):
    """`OpenAI` is the dialect of chat completions, completions and embeddings."""

    name = "openai"
    logprobs = OpenAILogprobs()
    endpoint = Endpoint(
        own_headers=frozenset({"openai-organization", "openai-project", "openai-beta"}),
        is_versioned=True,
        models=ModelObjects(dict, lambda models: {"object": "list", "data": models}),
    )

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and path in OPERATIONS

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        value, written = read_object(body)
        operation = OPERATIONS[path]
        return call_of(EMBEDDINGS if operation == "embeddings" else self, operation, value, written)

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        if model is None and not call.model:
            sent_model(model, call.body)
        completed = call.stream and kept and call.operation != "embeddings"
        if model is None and not completed and call.body_bytes is not None:
            return Outgoing(path, call.body_bytes)
        body: dict[str, Any] = dict(call.body)
        if model is not None:
            body["model"] = model
        if completed:
            # The usage is part of the stored response; `shown` hides it from clients that did not request it.
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return Outgoing(path, orjson.dumps(body))

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        inspection = answers.inspect(call.operation, payload, streamed)
        searched = inspection.admission is Admission.STORED and call.body.get("web_search_options") is not None
        return replace(inspection, admission=Admission.TOOLS) if searched else inspection

    def open_parts(self, call: Call) -> OpenParts | None:
        return answers.OpenChoices() if answers.has_several_choices(call.body) else None

    def tunable(self, call: Call) -> Tunable | None:
        if call.operation == "chat.completions":
            has_old = call.body.get("max_tokens") is not None and not call.body.get("max_completion_tokens")
            return Tunable("max_tokens" if has_old else "max_completion_tokens", _set_effort)
        if call.operation == "completions":
            return Tunable("max_completion_tokens" if call.body.get("max_completion_tokens") else "max_tokens")
        return None

    def demanded_form(self, call: Call) -> DemandedForm:
        return demanded_form(call.body) if call.operation == "chat.completions" else super().demanded_form(call)

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        if call.operation != "chat.completions":
            return super().answer_parts(call, payload, streamed)
        return read_parts(call, payload, streamed, read_parts_of_chat)

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        return answers.assemble(call.operation, payload)

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        return answers.split(call.operation, whole)

    def renew(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        """Renew the id, but not of a completion that is stored upstream, where clients fetch it by its id."""
        if call.stored:
            return data
        return answers.renew(data, answers.PREFIX.get(call.operation, "") + answer_id, created)

    def event(self, call: Call, data: bytes) -> Event:
        return Event(data)

    def shown(self, call: Call, event: Event) -> bool:
        """Return whether the client sees the event. The gateway always requests usage chunks, to count and to cache."""
        if b'"usage"' not in event.data or b'"choices":[{' in event.data or b'"choices": [{' in event.data:
            return True
        options = call.body.get("stream_options")
        return bool(options and options.get("include_usage")) or not answers.is_usage_chunk(event.data)

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        for event in events:
            if event.data.find(b'"usage"') >= 0:  # rare in model output
                return tuple([event for event in events if self.shown(call, event)])
        return events

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer:
        return answers.OpenAITextAnswer(call.operation, answer_id, created, model)

    def _answer_text(self, call: Call, whole: bytes) -> str | None:
        return answers.text(call.operation, whole)

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        return answers.embeddings(vectors, model, base64=call.body.get("encoding_format") == "base64")

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return dump_json({"error": {"message": message, "type": kind, "param": param, "code": None}})

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        return openai_error_answer(event)

    def is_end(self, event: Event) -> bool:
        return event.data == answers.DONE

    def is_finished(self, last: Sequence[Event]) -> bool:
        return self.is_over(last)

    def is_over(self, last: Sequence[Event]) -> bool:
        return answers.is_over([event.data for event in last])

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        """Return `[DONE]` after the last finish reason. An error needs none."""
        has_ended = any(event.data == answers.DONE or answers.is_error(event.data) for event in last)
        return () if has_ended else (Event(answers.DONE),)

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        """Return an error event without [DONE]: the SDKs raise APIError on it."""
        return (Event(self.error(kind, message)),)


class Embeddings(OpenAI):
    """`Embeddings` is `OpenAI` for calls whose answers are vectors, in the form that the client asks for."""

    reforms = True

    def stored_form(self, call: Call, data: bytes, headers: Mapping[str, str]) -> bytes:
        return with_vector_format(data, call.body.get("encoding_format"))


EMBEDDINGS = Embeddings()


def openai_error_answer(event: Event) -> tuple[int, bytes] | None:
    """Implement `Dialect.error_answer` for OpenAI's protocols. An error in their shape stays as it is."""
    reported = read_error(event)
    if reported is None:
        return None
    if reported.body.keys() == {"error"} and isinstance(reported.body["error"], dict):
        return reported.status, dump_json(reported.body)
    error = {"message": reported.message, "type": reported.kind, "param": reported.param, "code": reported.code}
    return reported.status, dump_json({"error": error})


def chat_body(text: str, *, model: str, max_tokens: int) -> bytes:
    """Return a request of the gateway itself: one user message at temperature 0."""
    messages = [{"role": "user", "content": text}]
    return orjson.dumps({"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens})


def call_of(dialect: OpenAI, operation: str, body: dict[str, Any], written: bytes | None = None) -> Call:
    """Check a body and return its call. `written` is `body` as JSON, if available."""
    _check(body, operation)
    embeddings = operation == "embeddings"
    stored = body.get("store") is True and operation == "chat.completions"
    return Call(
        dialect=dialect,
        operation=operation,
        body=body,
        model=body.get("model") or "",
        stream=body.get("stream") is True,
        decisive_source=partial(_decisive, operation, body, stored=stored),
        prompt_source=PROMPTS[operation],
        max_tokens=limit_of(body.get("max_completion_tokens"), body.get("max_tokens")),
        user=user_of(body) if "safety_identifier" in body else body.get("user"),
        embeds=embeddings,
        questions=_inputs(body) if embeddings else (),
        stored=stored,
        batch=EmbeddingInputs(partial(call_of, dialect, operation)) if embeddings and _is_array_input(body) else None,
        body_bytes=written,
    )


def user_of(body: Mapping[str, Any]) -> str | None:
    """Return the end user that a body names in `user` and in its successor `safety_identifier`, or None if it names
    nobody.

    Two different names are one user together, as a list: a client may mean a person by one, and an account by the
    other.
    """
    names = dict.fromkeys(name for name in (body.get("user"), body.get("safety_identifier")) if name)
    return orjson.dumps(list(names)).decode() if len(names) > 1 else next(iter(names), None)


def _decisive(operation: str, body: dict[str, Any], *, stored: bool) -> Decisive:
    """Return what decides the response.

    If it is `stored`, the response is stored upstream under its id, so `store` matters. The protocol's default is
    False.
    """
    form = FORMS[operation](body)
    decisive = form
    if not NON_DECISIVE_UNSTORED.isdisjoint(form):
        dropped = NON_DECISIVE if stored else NON_DECISIVE_UNSTORED
        decisive = {key: value for key, value in form.items() if key not in dropped}
    question, context, no_question = _question(operation, decisive)
    canonical = orjson.dumps(decisive, option=orjson.OPT_SORT_KEYS)
    return Decisive(canonical, orjson.dumps(context, option=orjson.OPT_SORT_KEYS), question, no_question)


def _check(body: Mapping[str, Any], operation: str) -> None:
    """Check the fields that the gateway itself relies on. The backend judges the rest."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        check_model(body)
    if not OPTIONAL_FIELDS.isdisjoint(body):
        for field, types, expected in OPTIONAL:
            if (value := body.get(field)) is not None and not isinstance(value, types):
                raise invalid_field(field, expected, value)
        for field in LIMITS:
            if field in body:
                check_limit(body, field)
        check_count(body, "n")
    if "temperature" in body:
        check_temperature(body)
    if operation == "chat.completions":
        _check_messages(body.get("messages", ABSENT))
    elif operation == "completions":
        if not isinstance(body.get("prompt"), str | list) and (body.get("prompt") or not body.get("prompt_embeds")):
            raise invalid_field("prompt", "a string or an array", body.get("prompt", ABSENT))
    else:
        _check_input(body)


def _check_input(body: Mapping[str, Any]) -> None:
    given = body.get("input")
    if given is None and any(body.get(field) for field in OTHER_INPUTS):
        return
    if not isinstance(given, str | list | dict) or given in ([], {}):
        raise invalid_field("input", "a string or a non-empty array", body.get("input", ABSENT))


LIMITS = ("max_tokens", "max_completion_tokens")
OTHER_INPUTS = ("messages", "items")  # of embeddings, with pictures: of vLLM and llama.cpp, and of oMLX

OPTIONAL: tuple[tuple[str, type, str], ...] = (
    ("stream", bool, "true or false"),
    ("stream_options", dict, "an object"),
    ("user", str, "a string"),
    ("safety_identifier", str, "a string"),
)

OPTIONAL_FIELDS = frozenset({*LIMITS, "n", *(field for field, _, _ in OPTIONAL)})


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise invalid_field("messages", "a non-empty array", messages)
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid_field(f"messages[{i}]", "an object", message)
        if not isinstance(message.get("role"), str):
            raise invalid_field(f"messages[{i}].role", "a string", message.get("role", ABSENT))
        content = message.get("content")
        if isinstance(content, list):
            _check_parts(content, f"messages[{i}].content")
        elif content is not None and not isinstance(content, str):
            raise invalid_field(f"messages[{i}].content", "a string or an array of parts", content)


def _check_parts(parts: list[Any], where: str) -> None:
    for i, part in enumerate(parts):
        if not isinstance(part, dict):
            raise invalid_field(f"{where}[{i}]", "an object", part)
        if part.get("type") == "text" and not isinstance(part.get("text"), str):
            raise invalid_field(f"{where}[{i}].text", "a string", part.get("text", ABSENT))


def _question(operation: str, body: Mapping[str, Any]) -> tuple[str | None, Any, Bypass | None]:
    """Return (the text to match by similarity, the parts that must be equal, the reason if there is no text)."""
    if operation == "chat.completions":
        *earlier, last = body["messages"]
        if last["role"] == "user":
            content = last.get("content")
            text, rest = (content, None) if isinstance(content, str) else _split_text(content)
            if text.strip():
                frame = {**last, "content": rest}
                return text, [operation, {**body, "messages": [*earlier, frame]}], None
    elif operation == "completions":
        prompt = body.get("prompt")
        if isinstance(prompt, str) and prompt.strip():
            return prompt, [operation, {**body, "prompt": None}], None
    return None, [operation, body], Bypass.NO_TEXT


def _split_text(content: Any) -> tuple[str, Any]:
    """Split content as `conversation.split_content` does."""
    if not isinstance(content, list):
        return content or "", None
    return split_content(content, lambda part: part.get("type") == "text")


def _chat_prompt(body: Mapping[str, Any]) -> str:
    turns: list[tuple[str, str]] = []
    for turn in body["messages"]:
        content = turn.get("content")
        turns.append((turn["role"], content if isinstance(content, str) else _split_text(content)[0]))
    return transcript(turns)


def _completion_prompt(body: Mapping[str, Any]) -> str:
    prompt = body.get("prompt") or ""
    return prompt if isinstance(prompt, str) else "\n".join(p for p in prompt if isinstance(p, str))


PROMPTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "chat.completions": _chat_prompt,
    "completions": _completion_prompt,
    "embeddings": lambda _: "",
}


def _is_array_input(body: Mapping[str, Any]) -> bool:
    """Return whether the input is an array of texts or of token-id arrays; one array of token ids is one input."""
    given = body.get("input")
    return isinstance(given, list) and all(isinstance(one, str) or _is_token_ids(one) for one in given)


def _is_token_ids(one: Any) -> bool:
    return isinstance(one, list) and bool(one) and type(one[0]) is int


def _inputs(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts to embed; empty for token ids, which only the backend's tokenizer can decode, and for pictures,
    messages and other objects."""
    given = body.get("input")
    if isinstance(given, str):
        return (given,)
    return tuple(given) if isinstance(given, list) and all(isinstance(text, str) for text in given) else ()
