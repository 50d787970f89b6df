"""The headers that identify a client. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

ANONYMOUS = "anonymous"
# Headers in which model endpoints accept a key; the headers of this gateway's own dialects come first.
KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "ocp-apim-subscription-key")
# Headers that may make a backend answer two clients differently.
IDENTIFYING = frozenset({*KEYS, "cookie", "openai-organization", "openai-project"})
SECRET = frozenset({*KEYS, "cookie"})
# Headers that differ from request to request and normally decide nothing.
TRACING = frozenset({"baggage", "traceparent", "tracestate", "x-request-id", "x-stainless-retry-count"})


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the client's key: the first one in the order of `KEYS`."""
    for name in KEYS:
        value = headers.get(name)
        if value:
            return bare(value) if name == "authorization" else value
    return None


def bare(authorization: str) -> str:
    """Return the key of an Authorization header. For a scheme other than Bearer, return the whole value."""
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else authorization


def tenant_of(headers: Mapping[str, str]) -> str:
    """Return a hash of all identifying headers, because the gateway cannot know which of them the backend uses.

    A single key gives the same tenant in any header.
    """
    shown = [(low, value) for name, value in headers.items() if (low := name.lower()) in IDENTIFYING]
    if not shown:
        return ANONYMOUS
    # No header value can contain a line break, so two different sets of headers never give the same text.
    lone = len(shown) == 1 and shown[0][0] in KEYS
    text = (key_of(headers) or "") if lone else "\n".join(f"{name}: {value}" for name, value in shown)
    return hashlib.sha256(b"tenant/" + text.encode("utf-8", "surrogateescape")).hexdigest()
