"""`timeouts.total` bounds a call with all of its attempts, on routes with a cache and on those without."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, config_of, gateway_of
from tests.fixtures.several import behind, policy_of
from tests.fixtures.upstream import Upstream, completion, serving
from tests.fixtures.waiting import until
from tests.fixtures.wire import Incomplete, Message, Wire, connected, wire_upstream
from tests.routing.test_dispatch import HARD, silent

BODY = b'{"model":"m","input":"hi","messages":[{"role":"user","content":"hi"}]}'
PIECES = 2000  # of an answer that drips in: 40 s of it


@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/files"])
async def test_a_dripping_answer_ends_at_the_total(tmp_path: Path, policy: str, path: str) -> None:
    """`timeouts.idle` is met by every byte."""
    written = 0

    async def drip(upstream: Wire, _: Message) -> None:
        nonlocal written
        await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % PIECES)
        for written in range(1, PIECES + 1):  # noqa: B007  the last one counts
            await upstream.send(b" ")
            await asyncio.sleep(0.02)

    async with wire_upstream() as raw:
        raw.script = drip
        timeouts = {"total": "500ms", "idle": "30s"}
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": raw.url, "timeouts": timeouts}})
        async with gateway_of(config, policy) as served, connected(served.url) as wire:
            head = b"Host: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
            await wire.send(b"POST %b HTTP/1.1\r\n%b%b" % (path.encode(), head, BODY))
            try:
                status = (await wire.message()).status
            except (Incomplete, asyncio.IncompleteReadError):
                status = 0  # the answer had begun, and its connection is cut
            assert status in (0, 502, 504)
            assert written < PIECES
            pool = served.gateway.parts.pools["main"]
            await until(lambda: pool.inflight == 0)


async def test_all_attempts_share_one_total(tmp_path: Path) -> None:
    """A second attempt has what the first one leaves of it."""

    async def silent(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for this long")

    async def slow(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(5.5)
        return web.json_response(completion(call, "late"))

    first, second = Upstream("first", answer=silent), Upstream("second", answer=slow)
    async with serving(first), serving(second):
        backends = {
            "first": {"adapter": "openai", "url": first.url, "timeouts": {"total": "6s", "first_byte": "1s"}},
            "second": {"adapter": "openai", "url": second.url, "timeouts": {"total": "6s", "first_byte": "6s"}},
        }
        policy = """
version: 1
routes:
  - name: default
    match: {}
    route: {backend: first, fallback: [second]}
"""
        async with gateway_of(config_of(tmp_path, backends), policy) as served:
            answer = await served.chat("hi")
    assert answer.status in (502, 504)
    assert len(second.calls) == 1, "it was tried"


async def test_a_trial_and_its_escalation_share_one_total(tmp_path: Path) -> None:
    """The trial is a copy of the request, with a call of its own."""
    policy = policy_of("light: small, large: big, escalate_above: 0.5, cascade: {check: logprobs, accept_above: 0.7}")
    timeouts = {"timeouts": {"total": "500ms", "first_byte": "60s"}}
    async with behind(tmp_path, policy, "small", "big", backends=timeouts) as (served, upstreams):
        upstreams["small"].answer = silent
        answer = await served.chat(HARD)
    assert answer.status == 504
    assert b"timeouts.total" in answer.body
    assert len(upstreams["small"].calls) == 1
    assert not upstreams["big"].calls, "nothing of the total is left for it"
