"""How sure a model was of each token, where its answer tells: by dialect. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import orjson

from gateway.dialects.openai_answers import CHAT, DONE, assemble_body, reading
from gateway.errors import MalformedResponse
from gateway.messages import Call


class TokenLogprobs(Protocol):
    """What a dialect has for the log probabilities of an answer's tokens."""

    def with_logprobs(self, call: Call) -> Call:
        """The same call, asking for them beside the answer; `call` itself where its client asks for them already."""

    def read(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Sequence[float]:
        """Natural logarithms, one a token of the first choice; empty where the answer has none."""

    def strip_logprobs(self, call: Call, data: bytes) -> bytes:
        """A whole body, or one event's data, as if they had not been asked for."""


class OpenAILogprobs:
    """`logprobs`, of chat completions and of completions."""

    def with_logprobs(self, call: Call) -> Call:
        if call.operation == CHAT:
            return call if call.body.get("logprobs") else _set_logprobs(call, True)
        given = call.body.get("logprobs")
        return (
            call if given is not None and given is not False else _set_logprobs(call, 1)
        )  # the least that all servers heed

    def read(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Sequence[float]:
        try:
            with reading():
                body = assemble_body(call.operation, payload) if streamed else orjson.loads(payload[0])
                told = body["choices"][0].get("logprobs") or {}
                if call.operation != CHAT:
                    return [float(value) for value in told.get("token_logprobs") or () if value is not None]
                return [float(token["logprob"]) for token in told.get("content") or ()]
        except MalformedResponse:
            return ()

    def strip_logprobs(self, call: Call, data: bytes) -> bytes:
        if data == DONE or b'"logprobs"' not in data:
            return data
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data
        choices = body.get("choices") if isinstance(body, dict) else None
        if not isinstance(choices, list):
            return data
        shown = [_clear_logprobs(choice) if isinstance(choice, dict) else choice for choice in choices]
        return orjson.dumps({**body, "choices": shown})


def logprobs_reader(dialect: str) -> TokenLogprobs | None:
    """None where a dialect has no place for them."""
    return OpenAILogprobs() if dialect == "openai" else None


def _set_logprobs(call: Call, logprobs: Any) -> Call:
    return replace(call, body={**call.body, "logprobs": logprobs})


def _clear_logprobs(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Null, as in the answer to whom does not ask."""
    return {key: None if key == "logprobs" else value for key, value in choice.items()}
