"""The dialect of Amazon Bedrock's Converse, for backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from urllib.parse import quote

from gateway.calls import Call, Outgoing, StreamForm, TranslatedCall, Translation
from gateway.dialect_traits import Endpoint
from gateway.dialects.anthropic import answers as messages
from gateway.dialects.anthropic import errors
from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.anthropic.thinking import fit_thinking
from gateway.dialects.anthropic.translation.message_as_chat import MessageAnswer
from gateway.dialects.base import BaseDialect
from gateway.dialects.json_body import dump_json, limit_of, load_json, sent_model
from gateway.dialects.known import MESSAGES
from gateway.dialects.openai.answers import CHAT, reading
from gateway.dialects.sse import encode_event
from gateway.dialects.translation.limits import fitting
from gateway.dialects.translation.neutral import ChainedCall
from gateway.dialects.translation.reading import bad_request_if_unreadable
from gateway.errors import BadRequest
from gateway.features.bedrock.answers import MessageEvents, is_whole, message, status_of
from gateway.features.bedrock.frames import EXCEPTION, MEDIA_TYPE, FrameParser
from gateway.features.bedrock.requests import LIMITS, OWN_FIELDS, PROTOCOL, converse_request, untranslatable
from gateway.messages import Event

METADATA = Event(b'{"type":"metadata"}', "metadata")
_ANTHROPIC = Anthropic()


class ConverseAnswer:
    """`ConverseAnswer` implements `TranslatedCall` for Anthropic's clients, and its class implements `Translation`."""

    def __init__(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = False,
        reasoning_content: bool = False,
    ) -> None:
        if call.operation != messages.MESSAGES:
            raise untranslatable(call.operation, "model")
        fit = fitting(LIMITS)
        name = sent_model(model, call.body)
        with bad_request_if_unreadable():
            body = converse_request(fit_thinking(call.body), name, fit, marks=cache_control)
        # An ARN has slashes. botocore encodes them, too, and a signature covers the path as it is sent.
        operation = "converse-stream" if call.stream else "converse"
        accepted = MEDIA_TYPE if call.stream else "application/json"
        headers = (("Content-Type", "application/json"), ("Accept", accepted))
        data = dump_json(body)
        self.outgoing = Outgoing(f"/model/{quote(name, safe='')}/{operation}", data, headers)
        # Converse gives no id. Clients tell answers apart by it.
        self._head = f"{messages.PREFIX}{created}{sha256(data).hexdigest()[:16]}", call.model
        self._original = fit.original
        self._events = MessageEvents(*self._head, fit.original)

    def whole(self, data: bytes) -> bytes:
        with reading():
            return dump_json(message(load_json(data), *self._head, self._original))

    def events(self, event: Event) -> Sequence[Event]:
        with reading():
            return [encode_event(each) for each in self._events.of(load_json(event.data))]

    def error(self, status: int, data: bytes) -> bytes:
        return errors.error(errors.kind_for_status(status), errors.sentence_of(status, data))


class Bedrock(BaseDialect):
    """`Bedrock` is the part of a `Dialect` that backends need: no client's request belongs to it."""

    name = "bedrock"
    endpoint = Endpoint(embeds=False)
    stream_form = StreamForm(MEDIA_TYPE, FrameParser)

    def from_neutral(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = False,
        reasoning_content: bool = False,
    ) -> TranslatedCall:
        """Translate a chat over Anthropic's messages, as `Translation` does."""
        if call.operation != CHAT:
            raise untranslatable(call.operation, "model")
        try:
            to_client = MessageAnswer(call, model=model, created=created)
        except BadRequest as fault:
            raise BadRequest(str(fault).replace("Anthropic's protocol", PROTOCOL), param=fault.param) from None
        asked, given = load_json(to_client.outgoing.body), call.body
        if not limit_of(given.get("max_completion_tokens"), given.get("max_tokens")) and not asked.get("thinking"):
            del asked["max_tokens"]  # Anthropic wants one. Bedrock's default is the most that the model can.
        asked |= {key: given[key] for key in OWN_FIELDS if given.get(key) is not None}
        message_call = _ANTHROPIC.parse(MESSAGES, dump_json(asked), {})
        return ChainedCall(
            to_client, ConverseAnswer(message_call, model=None, created=created, cache_control=cache_control)
        )

    def translation_from(self, client: str) -> Translation | None:
        return ConverseAnswer if client == _ANTHROPIC.name else None

    def claims(self, method: str, path: str) -> bool:
        return False

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        if event.name != EXCEPTION:
            return None
        body: Mapping[str, str] = load_json(event.data)
        return status_of(body["kind"]), dump_json({"message": body["message"]})

    def is_end(self, event: Event) -> bool:
        return event.name in ("metadata", EXCEPTION)

    def is_finished(self, last: Sequence[Event]) -> bool:
        return any(event.name == "messageStop" for event in last)

    def is_over(self, last: Sequence[Event]) -> bool:
        return is_whole([event.name for event in last])

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        """Return the usage, without which a stream has its end all the same."""
        return () if any(self.is_end(event) for event in last) else (METADATA,)
