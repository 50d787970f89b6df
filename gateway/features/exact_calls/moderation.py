"""Moderation (https://platform.openai.com/docs/api-reference/moderations/create).

The judgement of a text or a picture depends on nothing but the request, so its answer may be stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.calls import Call
from gateway.dialects.equal_forms import NULLABLE, Table
from gateway.dialects.json_body import ABSENT, invalid_field
from gateway.dialects.known import path_of
from gateway.features.exact_calls.dialect import JsonCalls
from gateway.outcomes import Admission

TABLE: Table = {"model": NULLABLE}
REMOTE = ("http://", "https://")


class Moderation(JsonCalls):
    """`Moderation` is the dialect of calls that judge texts and pictures. A picture behind a link may change, so its
    call passes through."""

    name = operation = "moderation"
    path = path_of("moderation")
    table = TABLE

    def check(self, fields: Mapping[str, Any]) -> None:
        given = fields.get("input", ABSENT)
        if not isinstance(given, str | list):
            raise invalid_field("input", "a string or an array", given)
        if any(url.lower().startswith(REMOTE) for url in _urls(given)):
            raise invalid_field("input", "pictures as data URLs", given)

    def prompt(self, fields: Mapping[str, Any]) -> str:
        given = fields["input"]
        parts = [given] if isinstance(given, str) else given
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
        return "\n".join(text for text in texts if isinstance(text, str))

    def admission_of(self, call: Call, answer: Any) -> Admission:
        results = answer.get("results") if isinstance(answer, Mapping) else None
        return Admission.STORED if isinstance(results, list) and results else Admission.MALFORMED


def _urls(value: Any) -> Iterator[str]:
    for part in value if isinstance(value, list) else ():
        picture = part.get("image_url") if isinstance(part, Mapping) else None
        url = picture.get("url") if isinstance(picture, Mapping) else picture
        if isinstance(url, str):
            yield url
