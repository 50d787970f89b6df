"""Which headers pass through the gateway. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# RFC 9110 section 7.6.1, and what names the connection rather than the message.
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
# Framing is made anew on each side; Host names the upstream.
FRAMING = frozenset({"content-length", "host", "expect"})
# For the gateway alone. Cache-Control goes on: a chain of caches wants it.
OURS = frozenset({"x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms", "cache-tag"})
# Names that only this gateway sets; an upstream's own (another nearhit behind this one) must not pose as ours.
ANSWERED = frozenset({"cache-status", "age", "server-timing", "x-request-id", "date", "server"})


NOT_SENT = HOP_BY_HOP | FRAMING | OURS
NOT_RETURNED = HOP_BY_HOP | FRAMING | ANSWERED


def request_headers(headers: Mapping[str, str], dropped: frozenset[str] = NOT_SENT) -> list[tuple[str, str]]:
    """The end-to-end headers of a request, in order, repeated ones kept. `dropped`: `NOT_SENT`, and perhaps more."""
    return _without(headers, dropped)


def response_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(_without(headers, NOT_RETURNED, prefix="x-nearhit-"))


def _without(headers: Mapping[str, str], dropped: frozenset[str], prefix: str = "\0") -> list[tuple[str, str]]:
    if "connection" in headers:  # it may name more that ends here (RFC 9110 section 7.6.1), in several lines
        lines = [value for name, value in headers.items() if name.lower() == "connection"]
        dropped = dropped | {token.strip().lower() for token in ",".join(lines).split(",")}
    return [(k, v) for k, v in headers.items() if (low := k.lower()) not in dropped and not low.startswith(prefix)]
