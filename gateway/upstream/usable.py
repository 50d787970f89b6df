"""Tell whether an answer is of any use to its client. Pure.

An upstream that answers nothing, an error or a page with status 200 is fast. Such answers must not make it attractive.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.calls import Call
from gateway.outcomes import Admission

MAX_DOUBTED_BYTES = 2048  # a longer answer has a text
MAX_SPACE = 4096  # bytes before an answer; some servers keep a connection alive with them
MAX_DOUBTED_EVENTS = 8  # a stream with more has a text

TEXTS = frozenset(
    {"chat.completions", "completions", "messages", "responses", "generateContent"}
)  # operations that answer with text

# Cheap signs in the bytes, before an answer is parsed: a parse costs as much as the rest of the call.
_DOUBTFUL = re.compile(
    rb'"(?:content|text|output_text|choices|output)"\s*:\s*(?:""|null|\[\s*\])|"error"\s*:\s*[{"]|"type"\s*:\s*"error"'
)
_UNUSABLE = frozenset({Admission.MALFORMED, Admission.ERROR_STATUS, Admission.EMPTY})


def is_success(status: int) -> bool:
    return 200 <= status < 300


def is_usable(call: Call, data: bytes) -> bool:
    """Return whether a whole answer with status 200 has something for its client."""
    first = data[:MAX_SPACE].lstrip()[:1]
    if not first:
        return False
    if call.operation not in TEXTS:
        return True
    if first == b"{" and (len(data) > MAX_DOUBTED_BYTES or _DOUBTFUL.search(data) is None):
        return True
    return _says_something(call, (data,), streamed=False)


def is_usable_stream(call: Call, events: Sequence[bytes]) -> bool:
    """Return whether a stream with so few events has something for its client."""
    return call.operation not in TEXTS or _says_something(call, events, streamed=True)


def _says_something(call: Call, payload: Sequence[bytes], *, streamed: bool) -> bool:
    admission = call.dialect.inspect(call, payload, streamed).admission
    if admission in _UNUSABLE:
        return False
    return admission is not Admission.STORED or bool(call.dialect.answer_text(call, payload, streamed))
