"""The Open Inference Protocol over HTTP (KServe's version 2) with Triton's extensions: tensor and text inference.

See https://github.com/kserve/open-inference-protocol, and Triton's extension_binary_data and extension_generate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.calls import Call, ClientForm, Decisive, Inspection, Outgoing, TextAnswer, Token
from gateway.dialect_traits import Endpoint
from gateway.dialects.conversation import is_blank
from gateway.dialects.equal_forms import number
from gateway.dialects.json_body import dump_json, parse_numbers
from gateway.dialects.known import path_of
from gateway.dialects.open_inference.message import (
    InferenceRequest,
    format_answer,
    pack,
    read_answer,
    read_inference,
    unpack,
    write_inference,
)
from gateway.dialects.open_inference.paths import model_of_path, with_model_name
from gateway.dialects.open_inference.tensors import Tensor, TensorInvalid, elements, to_json
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission, Bypass

# Set for gRPC clients that accept several responses. No HTTP header can have this name.
STREAM = ":stream"

JSON_LENGTH = "Inference-Header-Content-Length"

OCTETS, JSON = ("Content-Type", "application/octet-stream"), ("Content-Type", "application/json")

# the names that Triton's LLM backends use
TEXT_INPUT, TEXT_OUTPUT, MAX_TOKENS = "text_input", "text_output", "max_tokens"

MAX_QUESTION = 64 * 1024  # bytes; no embedding model reads that much


class KServe(Unstreamed):
    """`KServe` gives requests of equal content one key, whether their tensors came as JSON or as bytes.

    Each tensor is converted to bytes and compared by SHA-256. Responses are stored as bytes, and written in the form
    that each client requests.
    """

    name = "kserve"
    endpoint = Endpoint(paths_name_models=True)
    reforms = True
    path = path_of("kserve")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        model, version, operation = self.claimed(path).groups()
        if operation != "infer":
            return self._generate(model, version, operation, parse_numbers(body))
        inference = read_inference(body, _json_length(headers))
        return self._infer(model, version, inference, stream=STREAM in headers)

    def _infer(self, model: str, version: str | None, inference: InferenceRequest, *, stream: bool) -> Call:
        question = _question(inference)
        canonical = (
            inference.decisive(model, version)
            if inference.raw is None
            else orjson.dumps([model, version, hashlib.sha256(inference.raw).hexdigest()])
        )
        uncached = _bypass_reason(inference)
        text = None if question is None or uncached is not None else _text(question)
        context = canonical if question is None else inference.decisive(model, version, without=question.name)
        return Call(
            dialect=self,
            operation="infer",
            body={"inference": inference},
            model=model,
            stream=stream,
            decisive_source=Decisive(canonical, context, text, Bypass.NO_TEXT if text is None else None),
            prompt_source=text or " ".join(_texts(inference)),
            max_tokens=_max_tokens(inference),
            user=None,
            uncached=uncached,
        )

    def _generate(self, model: str, version: str | None, operation: str, value: dict[str, Any]) -> Call:
        """Parse a text request. `generate` and `generate_stream` have different keys.

        A streaming model may send pieces, or repeat the growing text, or respond in another way.
        """
        fields = _generate_form({key: given for key, given in value.items() if key != "id"})
        text = fields.get(TEXT_INPUT)
        prompt = text if isinstance(text, str) and text else None
        parameters = fields.get("parameters")
        settings = {**(parameters if isinstance(parameters, dict) else {}), **fields}
        limit = settings.get(MAX_TOKENS)
        return Call(
            dialect=self,
            operation=operation,
            body=value,
            model=model,
            stream=operation == "generate_stream",
            decisive_source=Decisive(
                dump_json([model, version, fields], canonical=True),
                dump_json([model, version, {**fields, TEXT_INPUT: None}], canonical=True),
                prompt,
                None if prompt else Bypass.NO_TEXT,
            ),
            prompt_source=prompt or "",
            max_tokens=limit if type(limit) is int and limit > 0 else None,
            user=None,
            uncached=Bypass.SEQUENCE if _is_in_sequence(settings) else None,
        )

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        target = with_model_name(path, model)
        if call.operation != "infer":
            return Outgoing(target, dump_json(call.body), (JSON,))
        body, length = write_inference(call.body["inference"])
        # The client's own length header must not go with another body. A length equal to the whole body means: no tail.
        form = JSON if length is None else OCTETS
        return Outgoing(target, body, (form, (JSON_LENGTH, str(len(body) if length is None else length))))

    def renamed_path(self, path: str, rename: Callable[[str], str | None]) -> str:
        model = model_of_path(path)
        return path if model is None else with_model_name(path, rename(model))

    def stored_form(self, call: Call, data: bytes, headers: Mapping[str, str]) -> bytes:
        if call.operation == "infer":
            return data if call.body["inference"].raw is not None else pack(read_answer(data, _json_length(headers)))
        value = _object(data)
        return data if value is None or "id" not in value else dump_json({k: v for k, v in value.items() if k != "id"})

    def client_form(self, call: Call, data: bytes) -> ClientForm | None:
        if call.operation != "infer":
            identity, value = call.body.get("id"), _object(data)
            if identity is None or value is None or call.stream:
                return None
            return ClientForm(dump_json({"id": identity, **value}), (JSON,))
        inference: InferenceRequest = call.body["inference"]
        if inference.raw is not None:
            return None
        body, length = format_answer(inference, data)
        return ClientForm(body, (JSON,) if length is None else (OCTETS, (JSON_LENGTH, str(length))))

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        if not payload:
            return Inspection(Admission.INCOMPLETE, 0, 0)
        if call.operation == "infer":
            try:
                answers = [unpack(data) for data in payload]
            except MalformedResponse:
                return Inspection(Admission.MALFORMED, 0, 0)
            has_outputs = any(answer.outputs for answer in answers)
            return Inspection(Admission.STORED if has_outputs else Admission.INCOMPLETE, 0, 0)
        values = [_object(data) for data in payload]
        if None in values:
            return Inspection(Admission.MALFORMED, 0, 0)
        # Triton reports model errors with status 200 for streams, and for unexpected additional responses.
        failed = any(value is not None and "error" in value for value in values)
        if failed:
            return Inspection(Admission.ERROR_STATUS, 0, 0)
        texts = [value.get(TEXT_OUTPUT) for value in values if value is not None and TEXT_OUTPUT in value]
        empty = bool(texts) and all(is_blank(text) for text in texts if not isinstance(text, list))
        empty = empty and all(is_blank(part) for text in texts if isinstance(text, list) for part in text)
        return Inspection(Admission.EMPTY if empty else Admission.STORED, 0, 0)

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        """Join the pieces of a text model. Other models get the form of request that the client sent."""
        if call.operation == "infer" and len(payload) == 1:
            return payload[0]
        if call.operation == "infer":
            raise MalformedResponse("the model sent several responses: expected one, as the request does not stream")
        values = [value for data in payload if (value := _object(data)) is not None]
        if not values:
            raise MalformedResponse("the response is empty")
        return dump_json({**values[-1], TEXT_OUTPUT: "".join(str(value.get(TEXT_OUTPUT, "")) for value in values)})

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        return (Event(whole),)

    def answer_text(self, call: Call, payload: Sequence[bytes], streamed: bool) -> str | None:
        if call.operation == "infer":
            return _answer_text(payload[0]) if payload else None
        texts = [None if (value := _object(data)) is None else value.get(TEXT_OUTPUT) for data in payload]
        return "".join(text for text in texts if isinstance(text, str)) or None

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer:
        if call.operation == "infer":
            return super().text_answer(call, answer_id=answer_id, created=created, model=model)
        return _GenerateAnswer(model)


@dataclass(frozen=True, slots=True)
class _GenerateAnswer:
    """Builds text in the form of `generate` responses."""

    model: str

    def start(self) -> Sequence[Event]:
        return ()

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        return Event(orjson.dumps({"model_name": self.model, "model_version": "", TEXT_OUTPUT: text}))

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        return ()


def _generate_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a request of Triton's generate extension: the model's configuration gives each number a type,
    and "parameters" are optional."""
    plain = {name: number(value) for name, value in body.items()}
    parameters = plain.get("parameters")
    if isinstance(parameters, dict):
        plain["parameters"] = {name: number(value) for name, value in parameters.items()}
        if not parameters:
            del plain["parameters"]
    return plain


def _json_length(headers: Mapping[str, str]) -> int | None:
    given = headers.get(JSON_LENGTH)
    if given is None:
        return None
    if any(value != given for name, value in headers.items() if name.lower() == JSON_LENGTH.lower()):
        raise BadRequest(f"{JSON_LENGTH} comes with two values: expected one")
    if not given.isascii() or not given.isdigit() or len(given) > 12:
        raise BadRequest(f"{JSON_LENGTH} is {given[:40]!r}: expected a whole number of bytes")
    return int(given)


def _bypass_reason(inference: InferenceRequest) -> Bypass | None:
    """Return why the response may not be stored: it depends on state outside the request, or goes to shared memory."""
    if inference.raw is not None:
        return Bypass.RAW
    parameters = [inference.parameters, *(t.parameters for t in inference.inputs)]
    parameters += [wanted.parameters for wanted in inference.outputs or ()]
    if _is_in_sequence(inference.parameters):
        return Bypass.SEQUENCE
    return Bypass.SHARED_MEMORY if any("shared_memory_region" in each for each in parameters) else None


def _is_in_sequence(parameters: Mapping[str, Any]) -> bool:
    return parameters.get("sequence_id", 0) not in (0, "", None)


def _question(inference: InferenceRequest) -> Tensor | None:
    """Return the input with the question: the only BYTES input, or the one named `text_input`, if it is one text."""
    texts = [tensor for tensor in inference.inputs if tensor.datatype == "BYTES"]
    if len(texts) > 1:
        texts = [tensor for tensor in texts if tensor.name == TEXT_INPUT]
    return texts[0] if len(texts) == 1 and texts[0].size == 1 and _text(texts[0]) is not None else None


def _text(tensor: Tensor) -> str | None:
    """Return the text of a tensor; None if the bytes are not text (an image, say)."""
    if tensor.data is None or len(tensor.data) > MAX_QUESTION:
        return None
    try:
        text = next(elements(tensor.data)).decode()
    except (UnicodeDecodeError, StopIteration):
        return None
    return text if text.strip() and "".join(text.split()).isprintable() else None


def _texts(inference: InferenceRequest) -> list[str]:
    """Return all texts, to judge complexity if there is no single question."""
    tensors = [t.data for t in inference.inputs if t.datatype == "BYTES" and t.data is not None]
    return [text.decode(errors="replace") for data in tensors if len(data) <= MAX_QUESTION for text in elements(data)]


def _max_tokens(inference: InferenceRequest) -> int | None:
    for tensor in inference.inputs:
        if tensor.name == MAX_TOKENS and tensor.size == 1 and tensor.data is not None:
            try:
                value = to_json(tensor.data, tensor.datatype)[0]
            except TensorInvalid:
                return None
            return value if type(value) is int and value > 0 else None
    return None


def _answer_text(data: bytes) -> str | None:
    try:
        texts = [t for t in unpack(data).outputs if t.datatype == "BYTES" and t.size == 1 and t.data is not None]
    except MalformedResponse:
        return None
    return _text(texts[0]) if len(texts) == 1 else None


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        return parse_numbers(data)
    except BadRequest:
        return None
