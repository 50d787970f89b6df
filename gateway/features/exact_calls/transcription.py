"""Transcription and translation of sound (https://platform.openai.com/docs/api-reference/audio).

The text of a recording depends on its bytes and the fields of the request. So the same bytes with the same fields share
an answer, in the format that was asked for. A stream of events passes through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.calls import Call, Inspection
from gateway.dialects.known import path_of
from gateway.dialects.operations import seconds_of_upload
from gateway.dialects.usage import AnswerUsage, UsageReader
from gateway.errors import BadRequest
from gateway.features.exact_calls.dialect import JSON, ExactCalls
from gateway.features.exact_calls.forms import FORM, read_form
from gateway.outcomes import Admission
from gateway.prices import Unit

TEXT_FORMATS = frozenset({"text", "srt", "vtt"})
DEFAULTS = {"response_format": "json"}  # "defaults to json"
PAGES = (b"<!doctype", b"<html")


class Transcription(ExactCalls):
    """`Transcription` is the dialect of calls that turn sound into text."""

    name = operation = "transcription"
    path = path_of("transcription")
    unit = Unit.MINUTE
    forms = (*JSON, "text/")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        self.check_accept(headers)
        form = read_form(body, headers)
        if not form.files:
            raise BadRequest("the form has no file: expected a recording", param="file")
        if form.is_on("stream"):
            raise BadRequest("a stream passes through", param="stream")
        return self.call_of_form(path, form, DEFAULTS)

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        """Judge an answer. Plain text may look like JSON."""
        as_text = call.body[FORM].value("response_format") in TEXT_FORMATS
        if as_text and not streamed and len(payload) == 1 and not payload[0].lstrip().startswith(b"{"):
            reader = UsageReader("text/plain")
            reader.feed(payload[0])
            return self.inspected(call, _admission_of_text(payload[0]), reader.result())
        return super().inspect(call, payload, streamed)

    def admission_of(self, call: Call, answer: Any) -> Admission:
        text = answer.get("text") if isinstance(answer, Mapping) else None
        if not isinstance(text, str):
            return Admission.MALFORMED
        return Admission.STORED if text.strip() else Admission.EMPTY

    def billed_units(self, call: Call, usage: AnswerUsage) -> float | None:
        return seconds_of_upload(len(call.body_bytes or b"")) if usage.seconds is None else usage.seconds


def _admission_of_text(data: bytes) -> Admission:
    if not data.strip():
        return Admission.EMPTY
    return Admission.MALFORMED if data.lstrip()[:9].lower().startswith(PAGES) else Admission.STORED
