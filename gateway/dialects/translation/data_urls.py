"""Images and documents within a URL (RFC 2397), as far as model endpoints take them: base64. Pure."""

from __future__ import annotations

from gateway.errors import BadRequest


def parts_of_data_url(url: str) -> tuple[str, str]:
    """-> (media type, base64). Raises `BadRequest`."""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, _, encoding = head.rpartition(";")
    if not comma or encoding != "base64" or not media_type:
        raise BadRequest("a data URL is not of the form data:MEDIA/TYPE;base64,..., as its backend's protocol requires")
    return media_type.partition(";")[0], data


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"
