"""At `server.max_inflight` hits in memory are answered, whichever way they come; what has to wait is 503."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.gateways import LOOSE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

CHAT = "/v1/chat/completions"
QUESTION = "how do I reset the password of my account"
ALIKE = "how do I reset the password of my account please"


def body(question: str = QUESTION, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": question}], **more}).encode()


@pytest.fixture
async def full(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway whose one place is taken, and which has an answer to `QUESTION` in memory."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server={"max_inflight": 1})
    async with gateway_of(config, LOOSE) as served:
        for _ in range(2):
            assert (await served.post(CHAT, body())).status == 200
        assert (await served.post(CHAT, body(ALIKE))).cache_status.startswith("nearhit; hit; detail=semantic")
        upstream.gate.clear()
        calls = len(upstream.calls)
        held = asyncio.create_task(served.chat("held", seed=1))
        await until(lambda: len(upstream.calls) > calls)
        yield served
        upstream.gate.set()
        assert (await held).status == 200


def is_hit(answer: Answer, detail: str) -> bool:
    return answer.status == 200 and answer.cache_status.startswith(f"nearhit; hit; detail={detail}")


async def test_hits_in_memory_are_answered(full: Served) -> None:
    assert is_hit(await full.post(CHAT, body()), "exact")
    assert is_hit(await full.post(CHAT, body(stream=True)), "exact")
    assert is_hit(await full.post(CHAT, body(ALIKE)), "semantic")
    assert is_hit(await full.post(CHAT, body() + b" "), "exact"), "bytes that were not seen before"


async def test_hits_in_memory_are_answered_over_aiohttp_too(full: Served) -> None:
    async with connected(full.url) as wire:
        for question, detail in ((QUESTION, "exact"), (ALIKE, "semantic")):
            data = body(question)
            head = b"Host: g\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
            await wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + head + chunk)
            answer = await wire.message()
            assert (answer.status, f"detail={detail}" in answer.all("Cache-Status")[0]) == (200, True)


async def test_what_has_to_wait_is_refused(full: Served) -> None:
    """Misses, entries that only the store has, and what passes through."""
    store = full.gateway.parts.store
    for fingerprint in [*store._residents]:
        store.forget(fingerprint)
    answers = [
        await full.post(CHAT, body()),
        await full.post(CHAT, body("something else altogether")),
        await full.get("/v1/files"),
    ]
    assert [(answer.status, answer.headers["Retry-After"]) for answer in answers] == [(503, "1")] * 3
