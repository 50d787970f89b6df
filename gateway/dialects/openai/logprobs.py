"""Log probabilities of a response's tokens, by dialect. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.calls import Call
from gateway.dialects.json_body import escape_line_ends, json_writer, load_json
from gateway.dialects.openai.answers import CHAT, DONE, assemble_body, reading
from gateway.errors import MalformedResponse


class OpenAILogprobs:
    """`OpenAILogprobs` handles `logprobs` of chat completions and of completions."""

    def with_logprobs(self, call: Call) -> Call:
        if call.operation == CHAT:
            return call if call.body.get("logprobs") else _set_logprobs(call, True)
        given = call.body.get("logprobs")
        # 1 is the smallest value that all servers accept.
        return call if given is not None and given is not False else _set_logprobs(call, 1)

    def read(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Sequence[float]:
        try:
            with reading():
                body = assemble_body(call.operation, payload) if streamed else load_json(payload[0])
                logprobs = body["choices"][0].get("logprobs") or {}
                if call.operation != CHAT:
                    return [float(value) for value in logprobs.get("token_logprobs") or () if value is not None]
                return [float(token["logprob"]) for token in logprobs.get("content") or ()]
        except MalformedResponse:
            return ()

    def strip_logprobs(self, call: Call, data: bytes) -> bytes:
        if data == DONE or b'"logprobs"' not in data:
            return data
        try:
            body = load_json(data)
        except orjson.JSONDecodeError:
            return data
        choices = body.get("choices") if isinstance(body, dict) else None
        if not isinstance(choices, list):
            return data
        shown = [_clear_logprobs(choice) if isinstance(choice, dict) else choice for choice in choices]
        return escape_line_ends(json_writer((data,))({**body, "choices": shown}))


def _set_logprobs(call: Call, logprobs: Any) -> Call:
    return replace(call, body={**call.body, "logprobs": logprobs})


def _clear_logprobs(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Set logprobs to null, as in a response to a client that did not request them."""
    return {key: None if key == "logprobs" else value for key, value in choice.items()}
