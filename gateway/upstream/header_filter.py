"""Decide which headers pass through the gateway, and define those of responses that adapters make. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from gateway.credentials import CredentialRules
from gateway.dialect_traits import Endpoint
from gateway.principal import ACCOUNT, HEADER

# For responses that an adapter makes itself.
JSON = (("Content-Type", "application/json"),)
SSE = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
OCTETS = (("Content-Type", "application/octet-stream"),)

# RFC 9110 section 7.6.1, and headers that concern the connection rather than the message.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Framing differs on each side of the gateway, and Host names the upstream.
FRAMING = frozenset({"content-length", "host", "expect"})
# Only the gateway reads these. Cache-Control is forwarded, because further caches in the chain need it.
GATEWAY_REQUEST_HEADERS = frozenset(
    {"x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms", "cache-tag", ":stream", HEADER, ACCOUNT}
)
# Only the gateway itself sets these. An upstream's own (another nearhit, say) must not look like ours.
GATEWAY_RESPONSE_HEADERS = frozenset({"cache-status", "age", "server-timing", "x-request-id", "date", "server"})


GATEWAY_PREFIX = "x-nearhit-"  # the same rule, by prefix
REQUEST_EXCLUDED = HOP_BY_HOP | FRAMING | GATEWAY_REQUEST_HEADERS
RESPONSE_EXCLUDED = HOP_BY_HOP | FRAMING | GATEWAY_RESPONSE_HEADERS


# The headers in which providers send their own id of a request, which their support asks for; the first one counts.
# OpenAI and most servers that are compatible with it, Anthropic, Azure, AWS, Google, NVIDIA, Mistral.
PROVIDER_IDS = (
    "x-request-id",
    "request-id",
    "apim-request-id",
    "x-ms-request-id",
    "x-amzn-requestid",
    "x-amz-request-id",
    "x-goog-request-id",
    "nvcf-reqid",
    "mistral-correlation-id",
)
RANKS = {name: rank for rank, name in enumerate(PROVIDER_IDS, 1)}
UPSTREAM_REQUEST_ID = GATEWAY_PREFIX + "upstream-request-id"  # carries that id to the log and to the client
# It is foreign text in a log and a header: letters, digits and the marks of UUIDs, ARNs and base64.
SAFE_PROVIDER_ID = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")


MAX_NAMES = 1024  # remembered names; beyond this number they are forgotten


class ProviderIds(dict[str, int]):
    """`ProviderIds` finds a provider's id of a request in the headers of its answer.

    It remembers the rank of each name as written, as `HeaderFilter` does. The rank is 0 if the name is none of
    `PROVIDER_IDS`.
    """

    def __missing__(self, name: str) -> int:
        if len(self) >= MAX_NAMES:
            self.clear()
        self[name] = rank = RANKS.get(name.lower(), 0)
        return rank

    def header(self, headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Return the header with the id; none if the answer has no usable one."""
        named = [header for header in headers if self[header[0]]]
        if not named:
            return ()
        usable = [(self[name], value) for name, value in named if SAFE_PROVIDER_ID.fullmatch(value)]
        return ((UPSTREAM_REQUEST_ID, min(usable)[1]),) if usable else ()


class HeaderFilter(dict[str, bool]):
    """`HeaderFilter` says whether a header passes, by its name as written; headers that begin with `prefix` do not.

    Nor do the secrets of a client by the rules in `withheld`. It remembers its results, because senders use the same
    few names.
    """

    def __init__(self, excluded: frozenset[str], prefix: str = "\0", withheld: CredentialRules | None = None) -> None:
        super().__init__()
        self._excluded = excluded
        self._prefix = prefix
        self._withheld = withheld

    def __missing__(self, name: str) -> bool:
        low = name.lower()
        if len(self) >= MAX_NAMES:
            self.clear()
        self[name] = passes = not (
            low in self._excluded
            or low.startswith(self._prefix)
            or (self._withheld is not None and self._withheld.is_secret(low))
        )
        return passes

    def apply(self, headers: Iterable[tuple[str, str]], connection: str | None) -> list[tuple[str, str]]:
        """Return the end-to-end headers in order, repeated ones included.

        `connection` is the value of `Connection`, which may name more hop-by-hop headers (RFC 9110 section 7.6.1).
        """
        passed = [header for header in headers if self[header[0]]]
        if connection is None or connection.lower() in ("keep-alive", "close"):
            return passed
        named = {token.strip().lower() for token in connection.split(",")}
        return [header for header in passed if header[0].lower() not in named]


def connection_header(headers: Mapping[str, str]) -> str | None:
    """Join all `Connection` lines. `headers` is case-insensitive and keeps lines of one name apart."""
    if "connection" not in headers:
        return None
    return ",".join([value for name, value in headers.items() if name.lower() == "connection"])


def without_admitted_origin(headers: list[tuple[str, str]], admitted: frozenset[str]) -> list[tuple[str, str]]:
    """Return a browser's headers without its `Origin` if the gateway admits that.

    Some servers, such as Ollama, answer 403 to all origins that they do not know themselves.
    """
    return [
        (name, value)
        for name, value in headers
        if name.lower() != "origin" or not ("*" in admitted or value in admitted)
    ]


def with_key_of_query(headers: list[tuple[str, str]], client: Endpoint, query: str) -> list[tuple[str, str]]:
    """Return a client's headers with the key that stands in its query, unless a header has one. A backend of another
    dialect does not get the query."""
    header, names = client.key_header, {name.lower() for name, _ in headers}
    key = dict(parse_qsl(query)).get(client.key_parameter or "")
    if key is None or header is None or header in names or "authorization" in names:
        return headers
    return [*headers, (header, key)]


def translated_headers(headers: list[tuple[str, str]], client: Endpoint, backend: Endpoint) -> list[tuple[str, str]]:
    """Translate a client's headers for a backend of another dialect. The key moves to its header there."""
    header_map = {name.lower(): value for name, value in headers}
    passed = [(name, value) for name, value in headers if name.lower() not in client.own_headers]
    scheme, _, token = header_map.get("authorization", "").partition(" ")
    if backend.key_header is not None:
        if backend.key_header in header_map:
            return passed
        if client.key_header in header_map:
            return [*_without(passed, client.key_header), (backend.key_header, header_map[client.key_header])]
        if scheme.lower() == "bearer":
            return [*_without(passed, "authorization"), (backend.key_header, token.strip())]
    elif client.key_header in header_map:
        key = [] if "authorization" in header_map else [("Authorization", f"Bearer {header_map[client.key_header]}")]
        return [*_without(passed, client.key_header), *key]
    return passed


def own_headers(headers: list[tuple[str, str]], endpoint: Endpoint, api_key: str | None) -> list[tuple[str, str]]:
    """Return the headers that the gateway adds: its own key for the backend, and required headers."""
    name = endpoint.key_header
    key = [] if api_key is None else [("Authorization", f"Bearer {api_key}") if name is None else (name, api_key)]
    if not endpoint.required_headers:
        return key
    given = {name.lower() for name, _ in headers}
    return [*key, *(header for header in endpoint.required_headers if header[0] not in given)]


def _without(headers: list[tuple[str, str]], name: str) -> list[tuple[str, str]]:
    return [header for header in headers if header[0].lower() != name]
