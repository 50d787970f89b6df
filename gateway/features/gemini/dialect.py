"""The dialect of Gemini's native protocol: `:generateContent`, `:streamGenerateContent` and embeddings.

`:countTokens`, files, caches and other operations pass through. Unknown fields and parts are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import orjson

from gateway.calls import EMBEDDINGS, Call, ClientForm, Decisive, Inspection, Outgoing, TextAnswer
from gateway.dialect_traits import AnswerParts, DemandedForm, Endpoint, ModelObjects, OpenParts
from gateway.dialects.conversation import Conversational
from gateway.dialects.json_body import dump_json, limit_of, load_json, read_object
from gateway.dialects.known import DECLARED, path_of
from gateway.dialects.reported_errors import read_error
from gateway.dialects.structured_answers import read_parts
from gateway.errors import MalformedResponse
from gateway.features.gemini import answers, embeddings, errors
from gateway.features.gemini.answers import GENERATE
from gateway.features.gemini.models import gemini_model, gemini_page, neutral_model
from gateway.features.gemini.requests import (
    SETTINGS,
    check_content_request,
    decisive_of,
    plain_body,
    prompt_of,
    settings_of,
)
from gateway.features.gemini.schemas import demanded_form, read_parts_of_answer
from gateway.features.gemini.token_counts import estimate_tokens
from gateway.features.gemini.translation.chat_as_content import ContentAnswer
from gateway.features.gemini.translation.content_as_chat import ChatOfContent
from gateway.messages import Event
from gateway.outcomes import Admission

PATH = path_of("gemini")
_NAMES_MODEL = re.compile(r"(/v\d+[a-z0-9]*(?:/.+?)?/models/)([^:]+)(:[A-Za-z]+)?")
FIELD_MASK = "x-goog-fieldmask"  # names the fields of the answer that the client wants
STREAM = "streamGenerateContent"
KEY = "key"
ALT = frozenset({"alt", "$alt"})  # the parameter with the form of an answer
FORMS = ("json", "sse")  # answers in other forms are no JSON, and share no entry with these
FRAMING = ALT | {"prettyprint", "$prettyprint"}  # parameters that decide nothing else
JSON = (("Content-Type", "application/json; charset=UTF-8"),)
ENDPOINT = Endpoint(
    key_header="x-goog-api-key",
    key_parameter=KEY,
    own_headers=frozenset({"x-goog-api-client", "x-goog-request-params", "x-goog-user-project", "x-server-timeout"}),
    paths_name_models=True,
    base_url="gateway.features.gemini.base_url:GeminiUrl",
    models=ModelObjects(gemini_model, gemini_page, query="pageSize=1000", key="models", read=neutral_model),
)


class Gemini(Conversational):
    """`Gemini` is the dialect of content, whole and as events."""

    name = "gemini"
    client_header = "x-goog-api-key"
    token_count_path = DECLARED["gemini"].token_count_path
    endpoint = ENDPOINT
    settings_field = SETTINGS
    to_neutral = ContentAnswer
    from_neutral = ChatOfContent
    keep_alive = Event(b'{"candidates":[]}')
    reads_comments = False  # the official client takes them for a part of the answer

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and PATH.fullmatch(path) is not None

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        match = PATH.fullmatch(path)
        assert match is not None
        model, operation = unquote(match[1]), match[2]
        value, written = read_object(body)
        value = plain_body(written, value)
        if operation in (embeddings.ONE, embeddings.BATCH):
            embeddings.check_embedding_request(value, operation)
            return _embedding_call(model, value)
        check_content_request(value)
        return Call(
            dialect=ARRAY if operation == STREAM else self,
            operation=GENERATE,
            body=value,
            model=model,
            stream=False,
            decisive_source=partial(decisive_of, model, value, headers.get(FIELD_MASK)),
            prompt_source=prompt_of,
            max_tokens=limit_of(settings_of(value).get("maxOutputTokens")),
            user=None,
        )

    def with_query(self, call: Call, query: str) -> Call:
        """Return the call as the query changes it: without `alt=sse`, a stream is an array of JSON."""
        deciding, form = [], ""
        for part in query.split("&"):
            name, _, value = part.partition("=")
            name, value = unquote(name).lower(), unquote(value).lower()
            if name not in FRAMING or (name in ALT and value not in FORMS):
                deciding.append(part)
            elif name in ALT:
                form = value
        call = replace(call, query="&".join(deciding))
        return replace(call, dialect=self, stream=True) if call.dialect is ARRAY and form == "sse" else call

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        body = call.body if model is None or not call.embeds else embeddings.renamed_body(call.body, model)
        return Outgoing(path_at_backend(path, call, model), dump_json(body))

    def renamed_path(self, path: str, rename: Callable[[str], str | None]) -> str:
        match = _NAMES_MODEL.fullmatch(path)
        name = None if match is None else rename(unquote(match[2]))
        return path if match is None or name is None else f"{match[1]}{quote(name, safe='/:')}{match[3] or ''}"

    def estimate_tokens(self, body: Mapping[str, Any]) -> int | None:
        return estimate_tokens(body)

    def token_count(self, tokens: int) -> bytes:
        return orjson.dumps({"totalTokens": tokens})

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        return answers.inspect(payload, streamed)

    def open_parts(self, call: Call) -> OpenParts | None:
        count = settings_of(call.body).get("candidateCount")
        return None if count in (None, 0, 1) else answers.OpenCandidates()

    def demanded_form(self, call: Call) -> DemandedForm:
        return demanded_form(call.body)

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        return read_parts(call, payload, streamed, read_parts_of_answer)

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        return answers.assemble(payload)

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        return answers.split(whole)

    def event(self, call: Call, data: bytes) -> Event:
        return Event(data)

    def renew(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        return answers.renew(data, answer_id)

    def _answer_text(self, call: Call, whole: bytes) -> str | None:
        return answers.text(whole)

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer:
        return answers.GeminiTextAnswer(answer_id, model)

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        operation = embeddings.BATCH if "requests" in call.body else embeddings.ONE
        return embeddings.answer_of(vectors, operation)

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return errors.error(kind, message)

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        reported = read_error(event)
        if reported is None:
            return None
        error = reported.body.get("error")
        if isinstance(error, dict) and "status" in error:
            return reported.status, dump_json(reported.body)
        return reported.status, errors.error_of_status(reported.status, reported.message)

    def is_end(self, event: Event) -> bool:
        return False

    def is_finished(self, last: Sequence[Event]) -> bool:
        return False

    def is_over(self, last: Sequence[Event]) -> bool:
        """Return whether the last events have a finish reason, or an error."""
        return any(answers.is_finished(event.data) or read_error(event) is not None for event in last)

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        return (answers.END,)

    def shown(self, call: Call, event: Event) -> bool:
        return event.data != answers.END.data

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        hides = bool(events) and not self.shown(call, events[-1])
        return [event for event in events if self.shown(call, event)] if hides else events

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        return (Event(self.error(kind, message)),)


class GeminiArray(Gemini):
    """`GeminiArray` is `Gemini` for clients that read a stream as an array of JSON. They get one element."""

    reforms = True

    def with_query(self, call: Call, query: str) -> Call:
        return SSE.with_query(call, query)

    def client_form(self, call: Call, data: bytes) -> ClientForm | None:
        return ClientForm(b"[" + data + b"]", JSON)


class GeminiEmbeddings(Gemini):
    """`GeminiEmbeddings` is `Gemini` for calls whose answers are vectors."""

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        tokens = answers.inspect(payload, streamed)
        try:
            complete = embeddings.has_vectors(load_json(payload[0]))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return replace(tokens, admission=Admission.MALFORMED)
        return replace(tokens, admission=Admission.STORED if complete else Admission.INCOMPLETE)

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        return AnswerParts()

    def demanded_form(self, call: Call) -> DemandedForm:
        return DemandedForm(None, {})

    def _answer_text(self, call: Call, whole: bytes) -> str | None:
        raise MalformedResponse("vectors have no text")


SSE, ARRAY, VECTORS = Gemini(), GeminiArray(), GeminiEmbeddings()


def _embedding_call(model: str, body: dict[str, Any]) -> Call:
    requests = [
        {key: value for key, value in request.items() if key != "model"} for request in embeddings.requests_of(body)
    ]
    form = {**body, "requests": requests} if "requests" in body else requests[0]
    canonical = orjson.dumps([model, form], option=orjson.OPT_SORT_KEYS)
    return Call(
        dialect=VECTORS,
        operation=EMBEDDINGS,
        body=body,
        model=model,
        stream=False,
        decisive_source=Decisive(canonical, canonical, None),
        prompt_source="",
        max_tokens=None,
        user=None,
        embeds=True,
        questions=embeddings.inputs_of(body),
        batch=embeddings.BatchInputs(partial(_embedding_call, model)) if "requests" in body else None,
    )


def path_at_backend(path: str, call: Call, model: str | None) -> str:
    """Return the path of a call, with the backend's name of the model. Its operation is that of the call, which a step
    may have changed into one without a stream."""
    match = PATH.fullmatch(path)
    assert match is not None
    operation = match[2] if call.embeds else STREAM if call.stream else GENERATE
    name = match[1] if model is None else quote(model, safe="/:")
    return f"{path[: match.start(1)]}{name}:{operation}"
