"""A body that takes long to parse holds nobody else up: it is parsed beside the event loop."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.dialects.openai import OpenAI
from gateway.messages import Call
from gateway.steps.parse_and_route import LARGE_BODY
from tests.fixtures.gateways import EXACT_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream

CHAT = "/v1/chat/completions"


async def test_a_large_body_is_parsed_in_another_thread_and_cached_like_any_other(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = OpenAI.parse, set[int]()

    def noted(self: OpenAI, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        threads.add(threading.get_ident())
        return parse(self, path, body, headers)

    monkeypatch.setattr(OpenAI, "parse", noted)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        assert (await served.chat("a short question")).status == 200
        assert threads == {threading.get_ident()}
        threads.clear()
        large = {"model": "m", "messages": [{"role": "user", "content": "word " * (LARGE_BODY // 5)}]}
        first, again = await served.post(CHAT, large), await served.post(CHAT, large)
        assert (first.status, again.status) == (200, 200)
        assert "detail=exact" in again.headers["Cache-Status"]
        assert threads, "it was parsed"
        assert threading.get_ident() not in threads


async def test_a_large_body_that_is_no_json_is_refused_like_a_short_one(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        refused = await served.post(CHAT, b"{" + b" " * LARGE_BODY)
        assert refused.status == 400
        assert b"not valid JSON" in refused.body
        assert upstream.calls == []
