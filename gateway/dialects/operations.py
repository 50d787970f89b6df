"""Tell by method and path what a request may spend: calls that no dialect reads, and those that spend nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from gateway.calls import Call
from gateway.prices import Unit

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "DELETE"})

# Bytes of a second of sound at 32 kbit/s, which few recordings go below: for answers that do not state the duration.
BYTES_A_SECOND = 4_000

DOCUMENTS_OF_A_SEARCH = 100  # of one search unit (https://cohere.com/pricing)

# Before the name of an operation: Azure's prefixes, and the version.
_VERSION = r"(?:/openai(?:/deployments/[A-Za-z0-9_.-]+)?)?(?:/v\d+(?:alpha|beta)?\d*)?"

# An id may not hide another path, which a server might find after decoding.
_ID = r"[A-Za-z0-9_-]+"

# POST requests that make no model work: they count tokens, store or name things, or end work.
_FREE = re.compile(
    _VERSION
    + r"/(?:messages/count_tokens|responses/input_tokens|tokenize|detokenize|files"
    + rf"|uploads(?:/{_ID}(?:/parts|/complete)?)?|conversations(?:/{_ID}(?:/items)?)?|chat/completions/{_ID}"
    + rf"|(?:projects/{_ID}/locations/{_ID}/)?(?:publishers/google/)?models/[A-Za-z0-9_.:/-]+:countTokens"
    + rf"|(?:{_ID}/)+cancel)"
)


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of call with the ways in which it can be metered.

    If it `reports`, its answers usually report their tokens. If it `reads_text`, its tokens are about those of the text
    that it is given. If it `writes_text`, so are those of its answer. Providers bill it by the `unit`. If it
    `makes_calls`, it starts an unknown number of calls, whose answers come elsewhere.
    """

    name: str
    reports: bool = False
    reads_text: bool = False
    writes_text: bool = False
    unit: Unit | None = None
    makes_calls: bool = False
    is_free: bool = False


FREE = Operation("free", is_free=True)
CALL = Operation("call", reports=True, reads_text=True, writes_text=True)  # of a dialect whose answers report usage
TEXT = Operation("text", reads_text=True, writes_text=True)  # of another dialect, with a text
OTHER = Operation("other", writes_text=True)
REPORTING_SOCKET = Operation("websocket", reports=True, unit=Unit.MINUTE)
OTHER_SOCKET = Operation("websocket", unit=Unit.MINUTE)
_REPORTING_SOCKETS = re.compile(_VERSION + r"/(?:realtime|responses)(?:/.*)?|.*BidiGenerateContent")

_KNOWN = tuple(
    (re.compile(_VERSION + pattern), operation)
    for pattern, operation in (
        (r"/images/(?:generations|edits)", Operation("images", reports=True, unit=Unit.IMAGE)),
        (r"/images/variations", Operation("images", unit=Unit.IMAGE)),
        (r"/audio/speech", Operation("speech", unit=Unit.CHARACTERS)),
        (r"/audio/(?:transcriptions|translations)", Operation("transcription", reports=True, unit=Unit.MINUTE)),
        (rf"/videos(?:/{_ID}/remix)?", Operation("video", unit=Unit.SECOND)),
        (r"/rerank", Operation("rerank", reports=True, reads_text=True, unit=Unit.SEARCH)),
        (r"/(?:score|pooling|classify)", Operation("rerank", reports=True, reads_text=True)),
        (r"/moderations", Operation("moderation", reads_text=True)),
        (r"/embed(?:dings?)?", Operation("embeddings", reports=True, reads_text=True)),
        (r"/responses/compact", Operation("compaction", reports=True, reads_text=True, writes_text=True)),
        (r"/fim/completions", Operation("completion", reports=True, reads_text=True, writes_text=True)),
        (r"/ocr", Operation("ocr", writes_text=True)),
        (r"/(?:messages/)?batches", Operation("batch", makes_calls=True)),
        (r"/fine_tuning/.*", Operation("fine-tuning", makes_calls=True)),
        (r"/realtime/.+", Operation("realtime", makes_calls=True)),  # secrets, with which clients call the provider
    )
)


def operation_of(method: str, path: str, call: Call | None, *, upgrades: bool) -> Operation:
    """Return the operation of a request, which opens a WebSocket if it `upgrades`."""
    if call is not None and not call.passes:
        return _operation_of_call(call)
    if upgrades:
        return REPORTING_SOCKET if _REPORTING_SOCKETS.fullmatch(path) else OTHER_SOCKET
    if method in SAFE_METHODS or (method == "POST" and _FREE.fullmatch(path)):
        return FREE
    return next((operation for known, operation in _KNOWN if known.fullmatch(path)), OTHER)


def seconds_of_upload(size: int) -> float:
    """Estimate the seconds of a recording by the bytes of its upload."""
    return size / BYTES_A_SECOND


def search_units(fields: Mapping[str, Any]) -> float:
    """Return the search units of a call that sorts documents: one for each 100 of them, at least one."""
    documents = fields.get("texts", fields.get("documents"))
    return float(max(1, ceil(len(documents) / DOCUMENTS_OF_A_SEARCH))) if isinstance(documents, list) else 1.0


def _operation_of_call(call: Call) -> Operation:
    dialect = call.dialect
    if dialect.reports_usage:
        return CALL
    if dialect.is_free(call):
        return FREE
    return TEXT if dialect.has_text(call) else OTHER
