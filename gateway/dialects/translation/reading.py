"""What goes wrong in reading a request or an error for a translation. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from gateway.dialects.anthropic_errors import error_sentence
from gateway.errors import BadRequest


# Images and documents within a URL (RFC 2397), as far as model endpoints take them: base64. Pure.
def parse_data_url(url: str) -> tuple[str, str]:
    """-> (media type, base64). Raises `BadRequest`."""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, _, encoding = head.rpartition(";")
    if not comma or encoding != "base64" or not media_type:
        raise BadRequest("a data URL is not of the form data:MEDIA/TYPE;base64,..., as its backend's protocol requires")
    return media_type.partition(";")[0], data


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


@contextmanager
def bad_request_if_unreadable() -> Iterator[None]:
    """Whatever of a request cannot be read is the request's fault: a backend of its own dialect would say so."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f": {error} is missing" if isinstance(error, KeyError) else ""
        raise BadRequest(f"the request cannot be read, as its backend speaks another protocol{missing}") from None


def error_message(status: int, data: bytes) -> str:
    """What the body of an error says, in either shape; a body in none is not passed on."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict) and body.get("error"):
        return error_sentence(body)
    return f"the backend answered with status {status}"
