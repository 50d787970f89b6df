"""The region of AWS that a host names. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+){1,2}-\d{1,2}")


def region_of(origin: str) -> str | None:
    """Return the region in the host of an origin, such as `bedrock-runtime.us-east-1.amazonaws.com`, or None."""
    host = urlsplit(origin).hostname or ""
    if not host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".amazonaws.eu")):
        return None
    return next((label for label in reversed(host.split(".")) if _REGION.fullmatch(label)), None)
