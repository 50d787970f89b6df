"""Ollama's native calls: chats, completions and embeddings (https://docs.ollama.com/api).

They pass through to a server of Ollama. Whole answers may be stored; a stream of lines is not. The defaults of a model
are the server's own, so no option has one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.calls import Call
from gateway.dialects.conversation import is_blank
from gateway.dialects.equal_forms import LIST, MAP, NULLABLE, Table
from gateway.dialects.json_body import ABSENT, check_model, dump_json, invalid_field
from gateway.dialects.known import path_of
from gateway.dialects.structured_answers import as_dict
from gateway.errors import BadRequest
from gateway.features.exact_calls.dialect import JsonCalls
from gateway.outcomes import Admission

# Null counts as absent, as in Go.
TABLE: Table = {
    **dict.fromkeys(("context", "dimensions", "format", "images", "raw", "suffix", "system", "template"), NULLABLE),
    **dict.fromkeys(("think", "truncate"), NULLABLE),
    "options": MAP,
    "tools": LIST,
}
# The field with the input of each kind of call. An empty one only loads the model, or unloads it.
INPUTS = {"chat": "messages", "generate": "prompt", "embed": "input", "embeddings": "prompt"}
STREAMED = frozenset({"chat", "generate"})


class Ollama(JsonCalls):
    """`Ollama` is the dialect of chats, completions and embeddings in Ollama's own form."""

    name = operation = "ollama"
    path = path_of("ollama")
    table = TABLE
    bookkeeping = frozenset({"keep_alive"})  # how long the model stays in memory
    settings_field = "options"
    forms = (*JsonCalls.forms, "ndjson")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        kind = path.rpartition("/")[2]
        call = super().parse(path, body, headers)
        if kind in STREAMED and call.body.get("stream") is not False:  # "default: true"
            raise BadRequest("a stream passes through", param="stream")
        given = call.body.get(INPUTS[kind], ABSENT)
        if not isinstance(given, list if kind == "chat" else str | list if kind == "embed" else str) or not given:
            raise invalid_field(INPUTS[kind], "the input of the model", given)
        return call

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return dump_json({"error": message})

    def check(self, fields: Mapping[str, Any]) -> None:
        check_model(fields)
        if not isinstance(options := fields.get("options"), dict | None):
            raise invalid_field("options", "an object", options)

    def prompt(self, fields: Mapping[str, Any]) -> str:
        turns = fields.get("messages")
        given = fields.get("input", fields.get("prompt"))
        texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        texts += [turn.get("content") for turn in turns if isinstance(turn, Mapping)] if isinstance(turns, list) else []
        return "\n".join(text for text in texts if isinstance(text, str))

    def admission_of(self, call: Call, answer: Any) -> Admission:
        if not isinstance(answer, Mapping):
            return Admission.MALFORMED
        for key in ("embeddings", "embedding"):
            if key in answer:
                vectors = answer[key] if key == "embeddings" else [answer[key]]
                whole = isinstance(vectors, list) and vectors and all(isinstance(v, list) and v for v in vectors)
                return Admission.STORED if whole else Admission.INCOMPLETE
        if answer.get("done") is not True or answer.get("done_reason") not in (None, "stop"):  # older servers say none
            return Admission.INCOMPLETE
        message = as_dict(answer.get("message"))
        if message.get("tool_calls"):
            return Admission.TOOLS
        text = message.get("content") if "message" in answer else answer.get("response")
        return Admission.EMPTY if is_blank(text) else Admission.STORED
