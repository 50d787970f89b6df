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
    return _without(headers.items(), headers.get("connection"), FRAMING | OURS)


def response_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    kept = _without(headers.items(), headers.get("connection"), FRAMING | ANSWERED)
    return tuple((name, value) for name, value in kept if not name.lower().startswith("x-nearhit-"))


def _without(
    items: Iterable[tuple[str, str]], connection: str | None, dropped: frozenset[str]
) -> list[tuple[str, str]]:
    named = frozenset(token.strip().lower() for token in (connection or "").split(","))
    return [
        (k, v) for k, v in items if (low := k.lower()) not in HOP_BY_HOP and low not in dropped and low not in named
    ]
