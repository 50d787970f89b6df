"""The heads of answers that lie in memory, as formats of which little is left to be put in: what `answer_headers`,
`explaining` and `head_of` make of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.data_port.wire import STATUS_LINES, Headers, fields_of
from gateway.observing.repeated import as_written

_OURS = b"x-request-id: %b\r\nServer: nearhit\r\n"
_END = b"Content-Length: %d\r\nDate: %b\r\n\r\n%b"


def hidden_form(headers: Headers) -> bytes:
    """Of what the policy does not explain. To be put in: the request's id, the body's length, the date, the body.
    Raises `ValueError` on a header that would end its line."""
    return _start(headers) + _END


def exact_form(headers: Headers, route: str) -> bytes:
    """As above, and behind the id: seconds of freshness left, age, milliseconds of the lookup."""
    status = b"Cache-Status: nearhit; hit; detail=exact; ttl=%d\r\nAge: %d\r\n"
    return _start(headers) + status + _route(route) + b"Server-Timing: exact;dur=%.1f\r\n" + _END


def semantic_form(headers: Headers, route: str, steps: Sequence[str]) -> bytes:
    """As above, and behind the id: age, similarity, milliseconds of each of the `steps`, and before those of the last
    one, its verification, what it came to."""
    *before, verified = steps
    timing = ", ".join([*(f"{step};dur=%.1f" for step in before), f'{verified};desc="p=%.3f";dur=%.1f'])
    status = b"Cache-Status: nearhit; hit; detail=semantic\r\nAge: %d\r\nx-nearhit-similarity: %b\r\n"
    return _start(headers) + status + _route(route) + f"Server-Timing: {timing}\r\n".encode() + _END


def _start(headers: Headers) -> bytes:
    return STATUS_LINES[200] + as_written(fields_of(headers)) + _OURS


def _route(name: str) -> bytes:
    return as_written(f"x-nearhit-route: {name}\r\n".encode()) if name else b""
