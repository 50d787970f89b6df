"""Pictures that are generated or edited (https://platform.openai.com/docs/api-reference/images).

A picture is made by chance, and clients want another one each time. With a `seed` they ask for the same one. Servers of
open models read it, in JSON and in forms. So only calls with a seed are cached, and only pictures that are in the
answer: a link to one expires. Streams pass through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.calls import Call
from gateway.dialects.equal_forms import NUMBER, ONE, Table
from gateway.dialects.forms import is_form
from gateway.dialects.json_body import invalid_field
from gateway.dialects.known import path_of
from gateway.dialects.usage import AnswerUsage
from gateway.errors import BadRequest
from gateway.features.exact_calls.dialect import JsonCalls
from gateway.features.exact_calls.forms import read_form
from gateway.outcomes import Admission
from gateway.prices import Unit

TABLE: Table = {"n": ONE, "seed": NUMBER}
FORM_DEFAULTS = {"n": "1"}
LINK = "url"
DATA = "data:"


class Images(JsonCalls):
    """`Images` is the dialect of calls for pictures with a seed."""

    name = operation = "images"
    path = path_of("images")
    unit = Unit.IMAGE
    table = TABLE
    links_everywhere = True  # some servers take one in a prompt for a picture, too

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        if not is_form(headers.get("content-type", "")):
            return super().parse(path, body, headers)
        self.check_accept(headers)
        form = read_form(body, headers)
        seed = form.value("seed") or ""
        if not (seed.isascii() and seed.isdecimal()):
            raise BadRequest("the form has no seed", param="seed")
        if form.is_on("stream") or form.value("response_format") == LINK:
            raise BadRequest("a stream, or a link, passes through")
        return self.call_of_form(path, form, FORM_DEFAULTS)

    def check(self, fields: Mapping[str, Any]) -> None:
        seed = fields.get("seed")
        if type(seed) is not int or seed < 0:  # -1 asks for any seed
            raise invalid_field("seed", "an integer of at least 0", seed)
        if fields.get("response_format") == LINK:
            raise invalid_field("response_format", "b64_json", LINK)

    def prompt(self, fields: Mapping[str, Any]) -> str:
        prompt = fields.get("prompt")
        return prompt if isinstance(prompt, str) else ""

    def admission_of(self, call: Call, answer: Any) -> Admission:
        pictures = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(pictures, list) or not pictures:
            return Admission.MALFORMED
        if any(_links(picture) for picture in pictures):
            return Admission.LINK
        return Admission.STORED if all(_is_whole(picture) for picture in pictures) else Admission.MALFORMED

    def billed_units(self, call: Call, usage: AnswerUsage) -> float | None:
        return usage.images


def _links(picture: Any) -> bool:
    url = picture.get(LINK) if isinstance(picture, Mapping) else None
    return isinstance(url, str) and not url.startswith(DATA)


def _is_whole(picture: Any) -> bool:
    return isinstance(picture, Mapping) and bool(picture.get("b64_json") or picture.get(LINK))
