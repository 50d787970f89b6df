"""The exact fast path tells requests apart by everything that a policy may match on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.gateways import config_of, fast_path, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import Wire, connected

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
POLICY = """
version: 1
routes:
  - name: matched
    match: {{headers: {{{header}: probe}}}}
    cache: {{exact: {{ttl: 1h}}}}
    route: {{backend: main}}
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: 1h}}}}
    route: {{backend: main}}
"""


async def ask(wire: Wire, *lines: bytes) -> tuple[str, str]:
    """The route that answers, and what the cache says."""
    head = b"".join(line + b"\r\n" for line in (b"Host: g", b"Content-Type: application/json", *lines))
    await wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(BODY), BODY))
    answer = await wire.message()
    return answer.all("x-nearhit-route")[0], answer.all("Cache-Status")[0].partition("; ttl")[0]


HIT = "nearhit; hit; detail=exact"


@pytest.mark.parametrize(
    "header", ["baggage", "traceparent", "tracestate", "x-request-id", "x-stainless-retry-count", "x-app"]
)
async def test_a_repeated_hit_comes_from_the_route_that_matches(
    upstream: Upstream, tmp_path: Path, header: str
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    probe, other = (f"{header}: {value}".encode() for value in ("probe", "other"))
    async with gateway_of(config, POLICY.format(header=header)) as served, connected(served.url) as wire:
        for _ in range(4):
            matched = await ask(wire, probe)
        assert matched == ("matched", HIT)
        assert len(fast_path(served)._hits) == 1
        for _ in range(4):
            unmatched = await ask(wire, other)
        assert unmatched == ("default", HIT)
        assert await ask(wire) == ("default", HIT)
        assert await ask(wire, probe) == ("matched", HIT)


async def test_headers_that_only_trace_do_not_tell_requests_apart(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, POLICY.format(header="x-app")) as served, connected(served.url) as wire:
        for i in range(5):
            await ask(wire, b"x-request-id: r%d" % i, b"baggage: user=%d" % i)
        assert len(fast_path(served)._hits) == 1
