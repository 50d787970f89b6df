"""Which headers say who a client is. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

ANONYMOUS = "anonymous"
# Headers in which model endpoints take a key, those of this gateway's own dialects first.
KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "ocp-apim-subscription-key")
# Whatever may make a backend answer one client otherwise than another.
IDENTIFYING = frozenset({*KEYS, "cookie", "openai-organization", "openai-project"})
SECRET = frozenset({*KEYS, "cookie"})
# They differ from request to request, and as a rule decide nothing.
TRACING = frozenset({"baggage", "traceparent", "tracestate", "x-request-id", "x-stainless-retry-count"})


def key_of(headers: Mapping[str, str]) -> str | None:
    """The client's key: the first that it shows."""
    for name in KEYS:
        value = headers.get(name)
        if value:
            return bare(value) if name == "authorization" else value
    return None


def bare(authorization: str) -> str:
    """The key of an Authorization header; of a scheme other than Bearer the whole value."""
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else authorization


def tenant_of(headers: Mapping[str, str]) -> str:
    """A hash of all that was shown: which of it the backend goes by is not ours to know.

    A lone key counts the same in whichever header it comes.
    """
    shown = [(low, value) for name, value in headers.items() if (low := name.lower()) in IDENTIFYING]
    if not shown:
        return ANONYMOUS
    # No value can contain a line break, so that two sets of headers never read alike.
    lone = len(shown) == 1 and shown[0][0] in KEYS
    text = (key_of(headers) or "") if lone else "\n".join(f"{name}: {value}" for name, value in shown)
    return hashlib.sha256(b"tenant/" + text.encode("utf-8", "surrogateescape")).hexdigest()
