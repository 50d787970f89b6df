"""Moderation (https://platform.openai.com/docs/api-reference/moderations/create).

The judgement of a text or a picture depends on nothing but the request, so its answer may be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.calls import Call
from gateway.dialects.equal_forms import NULLABLE, Table
from gateway.dialects.json_body import ABSENT, invalid_field
from gateway.dialects.known import path_of
from gateway.features.exact_calls.dialect import JsonCalls
from gateway.outcomes import Admission

TABLE: Table = {"model": NULLABLE}


class Moderation(JsonCalls):
    """`Moderation` is the dialect of calls that judge texts and pictures."""

    name = operation = "moderation"
    path = path_of("moderation")
    table = TABLE

    def check(self, fields: Mapping[str, Any]) -> None:
        given = fields.get("input", ABSENT)
        if not isinstance(given, str | list):
            raise invalid_field("input", "a string or an array", given)

    def prompt(self, fields: Mapping[str, Any]) -> str:
        given = fields["input"]
        parts = [given] if isinstance(given, str) else given
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
        return "\n".join(text for text in texts if isinstance(text, str))

    def admission_of(self, call: Call, answer: Any) -> Admission:
        results = answer.get("results") if isinstance(answer, Mapping) else None
        return Admission.STORED if isinstance(results, list) and results else Admission.MALFORMED
