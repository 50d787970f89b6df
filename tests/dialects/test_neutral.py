"""Translation over the neutral form: a dialect that translates to it and from it reaches backends of all that do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from gateway.calls import Call, Decisive, Outgoing
from gateway.dialects.anthropic import answers
from gateway.dialects.known import DIALECTS
from gateway.dialects.openai.answers import CHAT, DONE, split
from gateway.dialects.openai.dialect import CHAT as CHAT_PATH
from gateway.dialects.translation.neutral import translation_between
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest
from gateway.messages import Event
from gateway.outcomes import Bypass


class Asks:
    """A call of `Notes` in the neutral form."""

    def __init__(self, call: Call, *, model: str | None, created: int, **_: object) -> None:
        said = {"model": model or call.model, "max_tokens": 9, "stream": call.stream}
        messages = [{"role": "user", "content": call.body["ask"]}]
        self.outgoing = Outgoing(CHAT_PATH, orjson.dumps({**said, "messages": messages}))

    def whole(self, data: bytes) -> bytes:
        return orjson.dumps({"note": orjson.loads(data)["choices"][0]["message"]["content"]})

    def events(self, event: Event) -> Sequence[Event]:
        if event.data == DONE:
            return [Event(b"end")]
        choices = orjson.loads(event.data)["choices"]
        text = choices[0]["delta"].get("content") if choices else None
        return [Event(orjson.dumps({"note": text}))] if text else []

    def error(self, status: int, data: bytes) -> bytes:
        return orjson.dumps({"refused": orjson.loads(data)["error"]["message"]})


class Noted:
    """A call in the neutral form for a backend of `Notes`."""

    def __init__(self, call: Call, *, model: str | None, created: int, **_: object) -> None:
        (message,) = call.body["messages"]
        if message["role"] != "user":
            raise BadRequest("a note is of the user")
        self.model = model or call.model
        self.outgoing = Outgoing("/notes", orjson.dumps({"ask": message["content"], "model": self.model}))

    def whole(self, data: bytes) -> bytes:
        message = {"role": "assistant", "content": orjson.loads(data)["note"]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return orjson.dumps({"id": "n", "object": CHAT, "created": 5, "model": self.model, "choices": [choice]})

    def events(self, event: Event) -> Sequence[Event]:
        return split(CHAT, self.whole(event.data))

    def error(self, status: int, data: bytes) -> bytes:
        return orjson.dumps({"error": {"message": orjson.loads(data)["refused"], "type": "api_error"}})


class Notes(Unstreamed):
    """A protocol of notes, which translates to the neutral form and from it."""

    name = "notes"
    to_neutral = Asks
    from_neutral = Noted

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        given: dict[str, Any] = orjson.loads(body)
        return Call(
            dialect=self, operation="note", body=given, model="m", stream=given.get("stream", False),
            decisive_source=Decisive(body, body, None, Bypass.NO_TEXT), prompt_source="", max_tokens=None, user=None,
        )  # fmt: skip

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        return Outgoing(path, orjson.dumps(call.body))


NOTES = Notes()
MESSAGE = answers.message_of("msg_1", "claude", content=[{"type": "text", "text": "hello"}], stop_reason="end_turn")


def test_a_dialect_reaches_the_backends_of_another_over_the_neutral_form() -> None:
    translation = translation_between(NOTES, DIALECTS["anthropic"])
    assert translation is not None
    translated = translation(NOTES.parse("/notes", b'{"ask": "hi"}', {}), model="claude", created=5)
    sent = json.loads(translated.outgoing.body)
    assert (translated.outgoing.path, sent["model"], sent["max_tokens"]) == ("/v1/messages", "claude", 9)
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert json.loads(translated.whole(orjson.dumps(MESSAGE))) == {"note": "hello"}
    refusal = b'{"type":"error","error":{"type":"api_error","message":"not today"}}'
    assert json.loads(translated.error(500, refusal)) == {"refused": "not today"}
    streamed = [each for event in answers.split(orjson.dumps(MESSAGE)) for each in translated.events(event)]
    assert "".join(json.loads(event.data)["note"] for event in streamed[:-1]) == "hello"
    assert streamed[-1].data == b"end"


def test_the_backends_of_a_dialect_are_reached_by_the_clients_of_another() -> None:
    translation = translation_between(DIALECTS["anthropic"], NOTES)
    assert translation is not None
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    call = DIALECTS["anthropic"].parse("/v1/messages", orjson.dumps(body), {})
    translated = translation(call, model="note-1", created=5)
    assert translated.outgoing.path == "/notes"
    assert json.loads(translated.outgoing.body) == {"ask": "hi", "model": "note-1"}
    whole = json.loads(translated.whole(b'{"note": "hello"}'))
    assert whole["content"] == [{"type": "text", "text": "hello"}]
    events = translated.events(Event(b'{"note": "hello"}'))
    assert json.loads(answers.assemble([event.data for event in events]))["content"] == whole["content"]
    assert json.loads(translated.error(500, b'{"refused": "not today"}'))["error"]["message"] == "not today"


@pytest.mark.parametrize(
    ("client", "backend"), [("anthropic", "tfserving"), ("kserve", "anthropic"), ("mcp", "openai")]
)
def test_a_dialect_without_a_neutral_form_has_no_translation(client: str, backend: str) -> None:
    assert translation_between(DIALECTS[client], DIALECTS[backend]) is None
