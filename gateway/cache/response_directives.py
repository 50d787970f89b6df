"""Read the response headers by which a backend limits storing (RFC 9111, sections 3 and 4.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.cache.keys import SHARE_GLOBAL, owner_of
from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.credentials import ANONYMOUS
from gateway.outcomes import Admission

JSON = "application/json"

# Request headers that a `Vary` may name although they are in no key. The gateway asks a backend for one encoding, and
# an origin decides only headers that no entry has.
IGNORED_IN_VARY = frozenset(
    {"accept-encoding", "origin", "access-control-request-headers", "access-control-request-method"}
)


class ResponseDirectives(NamedTuple):
    """The response headers that decide how an answer is stored. `no_store` and `private` are directives of
    `Cache-Control` (RFC 9111, section 5.2.2). `private` with a list of fields counts too. `vary` has lower-case
    names."""

    no_store: bool
    private: bool
    vary: frozenset[str]
    content_type: str
    tags: tuple[str, ...]


def directives_of(headers: Sequence[tuple[str, str]]) -> ResponseDirectives:
    control, vary, tags, content_type = set[str](), set[str](), list[str](), ""
    for name, value in headers:
        lower_name = name.lower()
        if lower_name == "cache-control":
            control.update(part.partition("=")[0].strip().lower() for part in value.split(","))
        elif lower_name == "vary":
            vary.update(part for part in map(str.strip, value.lower().split(",")) if part)
        elif lower_name == "content-type":
            content_type = content_type or value
        elif lower_name == "cache-tag":
            tags.append(value)
    return ResponseDirectives(
        "no-store" in control, "private" in control, frozenset(vary), content_type or JSON, tuple(tags)
    )


def forbidden_by(directives: ResponseDirectives, route: Route, request: RequestContext) -> Admission | None:
    """Return why the backend's headers forbid to store the answer, or None if they allow it.

    A private answer may be stored for one user or one tenant, but not for all, nor for the clients without credentials.
    An answer that varies by a header may be stored if the header is part of the request's keys.
    """
    if directives.no_store:
        return Admission.NO_STORE
    if directives.private and is_shared_by_strangers(request):
        return Admission.PRIVATE
    if not all(_is_keyed(name, route, request) for name in directives.vary):
        return Admission.VARY
    return None


def is_anonymous(request: RequestContext) -> bool:
    """Return whether nothing tells the client from others."""
    return request.client.permit is None and request.client.tenant == ANONYMOUS


def is_shared_by_strangers(request: RequestContext) -> bool:
    """Return whether clients that nothing tells apart share the entries of a request."""
    if request.owner == SHARE_GLOBAL:
        return True
    return is_anonymous(request) and request.owner in (ANONYMOUS, owner_of("user", ANONYMOUS, None))


def _is_keyed(name: str, route: Route, request: RequestContext) -> bool:
    """Return whether an answer may vary by a header. Without API keys, the credentials are a part of the owner."""
    if name in IGNORED_IN_VARY or name in route.vary:
        return True
    return request.client.permit is None and request.owner != SHARE_GLOBAL and request.client.credentials.cover(name)
