"""Nobody gets an answer that was made for somebody else. See also the scenes `isolation.yaml`."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.entries import Entry
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, question_of, stream

SHARED = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: 1h}}, semantic: {{ttl: 1h, min_similarity: 0.5}}, share: {share}}}
    route: {{backend: main}}
"""


def policy(share: str = "tenant") -> str:
    return SHARED.format(share=share)


def config_for(upstream: Upstream, path: Path, **sections: Any) -> Any:
    return config_of(path, {"main": {"adapter": "openai", "url": upstream.url}}, **sections)


@pytest.fixture
async def by_tenant(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_for(upstream, tmp_path), policy()) as served:
        yield served


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_a_safety_identifier_names_a_user_too(upstream: Upstream, tmp_path: Path, path: str) -> None:
    async def said(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        part = {"type": "output_text", "text": "hi", "annotations": []}
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        body = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m"}
        return web.json_response({**body, "output": [message], "usage": None})

    async def ask(served: Served, **names: str) -> bool:
        if path == "chat":
            return is_hit(await served.chat("what is it", **names))
        body = {"model": "m", "input": "what is it", "store": False, **names}
        return is_hit(await served.post("/v1/responses", body))

    upstream.answer = said if path == "responses" else None
    people = [{}, {"user": "ann"}, {"user": "bob"}, {"user": "ann", "safety_identifier": "bob"}]
    people += [{"user": "bob", "safety_identifier": "ann"}, {"safety_identifier": "cy"}]
    same = [{"user": "", "safety_identifier": ""}, {"user": "ann", "safety_identifier": "ann"}]
    same += [{"safety_identifier": "bob"}, {"user": "cy", "safety_identifier": ""}]
    async with gateway_of(config_for(upstream, tmp_path), policy("user")) as served:
        for names in people:
            assert not await ask(served, **names), names
        for names in [*people, *same]:
            assert await ask(served, **names), names
    assert len(upstream.calls) == len(people)


async def entry_for(served: Served, tenant: str) -> Entry:
    """What is stored for the one question that this tenant has asked."""
    digest = hashlib.sha256(b"tenant/" + tenant.encode()).hexdigest()
    entries = [
        await served.gateway.parts.store.get(each.fingerprint) async for each in served.gateway.parts.store.vectors()
    ]
    (entry,) = [entry for entry in entries if entry is not None and entry.tenant == digest]
    return entry


async def test_an_index_that_errs_gives_nothing_away(by_tenant: Served, upstream: Upstream) -> None:
    """The owner of a record is checked again when it is fetched: the index alone is not believed."""
    upstream.answer = tell_whose
    parts = by_tenant.gateway.parts
    await by_tenant.chat("what is it", headers=bearer("a"))
    await by_tenant.chat("something else entirely", headers=bearer("b"))
    theirs, mine = await entry_for(by_tenant, "a"), await entry_for(by_tenant, "b")
    vector = (await parts.space.embedder.embed("what is it")).vector
    await parts.space.index.add(theirs.fingerprint, mine.scope, vector)
    answer = await by_tenant.chat("what is it", headers=bearer("b"))
    assert answer.text == "canary of Bearer b: what is it"
    assert parts.telemetry.refusals.values["default", "foreign"] == 1.0


async def test_a_record_of_another_scope_under_this_requests_key_is_not_served(by_tenant: Served) -> None:
    parts = by_tenant.gateway.parts
    await by_tenant.chat("what is it", headers=bearer("a"))
    entry = await entry_for(by_tenant, "a")
    await parts.store.put(replace(entry, scope="0" * 64), None)
    assert not is_hit(await by_tenant.chat("what is it", headers=bearer("a")))


async def tell_whose(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Says in the answer whose credentials came with the request."""
    text = f"canary of {request.headers.get('Authorization', 'nobody')}: {question_of(call)}"
    return await stream(request, call, text) if call.get("stream") else web.json_response(completion(call, text))


async def test_500_requests_of_5_tenants_never_cross(by_tenant: Served, upstream: Upstream) -> None:
    """Exact, semantic and coalesced answers at random, streams and not, 20 at a time; each carries whose it is."""
    upstream.answer = tell_whose
    draw = random.Random(7)
    verdicts: dict[str, int] = {}
    crossed: list[str] = []

    async def client(jobs: list[tuple[str, str, bool]]) -> None:
        for tenant, question, streamed in jobs:
            answer = await by_tenant.chat(question, headers=bearer(tenant), stream=streamed)
            said = answer.body.decode().replace('"}', "")
            verdict = answer.cache_status.partition(";")[2].partition("; ttl")[0].strip()
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            seen = [f"tenant-{other}" for other in "vwxyz" if f"tenant-{other}" in said]
            if seen != [tenant]:
                crossed.append(f"{tenant} got {said} ({verdict})")

    words = ["what is it", "what is it now", "what is that", "is it what", "what was it", "tell me what it is"]
    work = [(f"tenant-{draw.choice('vwxyz')}", draw.choice(words), draw.random() < 0.4) for _ in range(500)]
    async with AsyncExitStack(), asyncio.TaskGroup() as tasks:
        for i in range(20):
            tasks.create_task(client(work[i::20]))
    assert crossed == []
    assert sum(verdicts.values()) == 500
    assert {"hit; detail=exact", "hit; detail=semantic", "fwd=miss; collapsed"} <= set(verdicts), verdicts


async def test_clients_that_leave_do_not_mix_answers_up(by_tenant: Served, upstream: Upstream) -> None:
    """Connections to store and backend are shared: a cancelled request must not leave its answer for the next one."""
    upstream.answer = tell_whose
    draw = random.Random(11)

    async def one(tenant: str, i: int, leave: bool) -> str | None:
        task = asyncio.create_task(by_tenant.chat(f"question {i % 40}", headers=bearer(tenant)))
        if leave:
            for _ in range(draw.randrange(600)):
                await asyncio.sleep(0)  # some steps of the loop: it is left at any point of its way
            task.cancel()
        answer = (await asyncio.gather(task, return_exceptions=True))[0]
        return None if isinstance(answer, BaseException) else f"{answer.json['choices'][0]['message']['content']}"

    jobs = [(f"tenant-{draw.choice('vwxyz')}", i, draw.random() < 0.5) for i in range(300)]
    answers: list[str | None] = []
    for start in range(0, len(jobs), 50):  # what a backend of this size takes at once
        answers += await asyncio.gather(*(one(*job) for job in jobs[start : start + 50]))
    got = [(job, answer) for job, answer in zip(jobs, answers, strict=True) if answer is not None]
    assert {answer is not None for (_, _, leave), answer in zip(jobs, answers, strict=True) if leave} == {True, False}
    assert all(answer is not None for (_, _, leave), answer in zip(jobs, answers, strict=True) if not leave)
    for (tenant, _, _), answer in got:
        assert answer.startswith(f"canary of Bearer {tenant}:"), (tenant, answer)
        assert answer.partition("question ")[0] == f"canary of Bearer {tenant}: "
