"""Which headers pass through the gateway. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def request_headers(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The end-to-end headers of a request, in order, repeated ones kept."""
    return _without(headers.items(), FRAMING | OURS)


def response_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    kept = _without(headers.items(), FRAMING | ANSWERED)
    return tuple((name, value) for name, value in kept if not name.lower().startswith("x-nearhit-"))


def _without(items: Iterable[tuple[str, str]], dropped: frozenset[str]) -> list[tuple[str, str]]:
    """Drops what `Connection`, which may stand there more than once, names as well."""
    lowered = [(name.lower(), name, value) for name, value in items]
    named = {token.strip().lower() for low, _, value in lowered if low == "connection" for token in value.split(",")}
    return [(k, v) for low, k, v in lowered if low not in HOP_BY_HOP and low not in dropped and low not in named]
