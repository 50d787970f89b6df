"""What goes wrong in reading a request or an error for a translation. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from gateway.dialects.anthropic_errors import sentence_of
from gateway.errors import BadRequest


@contextmanager
def translating() -> Iterator[None]:
    """Whatever of a request cannot be read is the request's fault: a backend of its own dialect would say so."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f": {error} is missing" if isinstance(error, KeyError) else ""
        raise BadRequest(f"the request cannot be read, as its backend speaks another protocol{missing}") from None


def said_in(status: int, data: bytes) -> str:
    """What the body of an error says, in either shape; a body in none is not passed on."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict) and body.get("error"):
        return sentence_of(body)
    return f"the backend answered with status {status}"
