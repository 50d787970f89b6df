"""A route's privacy rule keeps personal data out of the caches, through the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.steps.traffic_log.reader import read_traffic
from tests.fixtures.gateways import Answer, Served
from tests.fixtures.several import behind, counted, policy_of
from tests.fixtures.upstream import completion
from tests.fixtures.waiting import until

CACHES = "cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.8, screen: off}}"
ANN, BOB = "Send the invoice to ann@example.org please", "Send the invoice to bob@example.org please"


REDACTED = "Send the invoice to <email> please"


def policy(action: str) -> str:
    return policy_of("backend: main", f"{CACHES}\n    privacy: {{pii: [email, card], action: {action}}}")


def said(answer: Answer) -> str:
    return answer.cache_status.removeprefix("nearhit; ").partition(";")[0]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_bypass_neither_stores_nor_serves(tmp_path: Path, streamed: bool) -> None:
    async with behind(tmp_path, policy("bypass"), "main") as (served, upstreams):
        for _ in range(2):
            answer = await served.chat(ANN, stream=streamed)
            assert "detail=personal-data" in answer.cache_status
        assert len(upstreams["main"].calls) == 2
        assert [name async for name, _ in served.gateway.parts.store.fingerprints()] == []
        assert counted(served, "admissions") == {}
        assert counted(served, "personal_data") == {"bypass": 2}


async def test_a_redacted_question_serves_the_same_data_in_other_words_only(tmp_path: Path) -> None:
    async with behind(tmp_path, policy("redact-key"), "main") as (served, upstreams):
        assert said(await served.chat(ANN)) == "fwd=miss"
        assert said(await served.chat(ANN)) == "hit"  # by the exact key
        assert said(await served.chat("Please send the invoice to ANN@example.org")) == "hit"
        assert said(await served.chat(BOB)) == "fwd=miss"
        assert said(await served.chat("Send the invoice please")) == "fwd=miss"
        assert upstreams["main"].calls[0].json["messages"][0]["content"] == ANN  # as the client wrote it
        assert counted(served, "personal_data") == {"redact-key": 4}


async def test_no_entry_has_the_data_of_its_question(tmp_path: Path) -> None:
    async with behind(tmp_path, policy("redact-key"), "main") as (served, _):
        await served.chat(ANN)
        await served.settle()
        store = served.gateway.parts.store
        (name,) = [name async for name, _ in store.fingerprints()]
        entry = await store.get(name)
        assert entry is not None
        assert entry.question == REDACTED


async def sent(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(completion(call, "It is sent."))


@pytest.mark.parametrize("action", ["bypass", "redact-key"])
async def test_no_file_has_the_data_although_the_route_keeps_its_prompts(tmp_path: Path, action: str) -> None:
    kept = policy(action).replace("match: {}", "match: {}\n    record: {prompts: on}")
    async with behind(tmp_path, kept, "main") as (served, upstreams):
        upstreams["main"].answer = sent  # without the data: an answer is stored as it is
        assert (await served.chat(ANN)).status == 200
        await served.gateway.parts.recorder.flush()
        (row,) = read_traffic("last-1h", tmp_path / "traffic", served.gateway.parts.clock.wall()).requests
        assert (row.prompt, row.request.uncached) == (REDACTED, "personal-data" if action == "bypass" else None)
        assert [path for path in tmp_path.rglob("*") if path.is_file() and b"ann@" in path.read_bytes()] == []


async def test_several_inputs_with_data_are_not_stored_one_by_one(tmp_path: Path) -> None:
    async with behind(tmp_path, policy("bypass"), "main") as (served, _):
        answer = await served.post("/v1/embeddings", {"model": "m", "input": ["Hello", ANN]})
        assert "detail=personal-data" in answer.cache_status
        assert [name async for name, _ in served.gateway.parts.store.fingerprints()] == []


async def test_a_job_with_data_is_not_cached(tmp_path: Path) -> None:
    async with behind(tmp_path, policy("bypass"), "main") as (served, upstreams):
        body = {"model": "m", "messages": [{"role": "user", "content": ANN}]}
        assert (await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": body})).status == 202
        await until(lambda: counted(served, "personal_data") == {"bypass": 1} and upstreams["main"].calls)
        assert "detail=personal-data" in (await served.chat(ANN)).cache_status
        assert [name async for name, _ in served.gateway.parts.store.fingerprints()] == []


@pytest.mark.parametrize(("action", "imported"), [("bypass", 0), ("redact-key", 0), ("store", 1)])
async def test_an_import_refuses_what_its_route_keeps_out(tmp_path: Path, action: str, imported: int) -> None:
    async with behind(tmp_path / "from", policy("store"), "main") as (served, _):
        await served.chat(ANN)
        async with served.session.get(served.admin_url + "/admin/cache/export") as response:
            lines = await response.read()
        assert b"ann@example.org" in lines
    async with behind(tmp_path / "to", policy(action), "main") as (served, _):
        async with served.session.post(served.admin_url + "/admin/cache/import", data=lines) as response:
            report = await response.json()
        assert report["imported"] == imported
        assert ("has personal data" in str(report)) is (imported == 0)
        assert "ann@" not in str(report)


async def explained(served: Served, path: str, body: object) -> dict[str, object]:
    async with served.session.post(f"{served.admin_url}/admin/{path}", json=body) as response:
        return await response.json()


@pytest.mark.parametrize("action", ["bypass", "redact-key", "store"])
async def test_an_explanation_names_the_kinds_and_not_the_data(tmp_path: Path, action: str) -> None:
    async with behind(tmp_path, policy(action), "main") as (served, _):
        found = await explained(served, "explain", {"model": "m", "messages": [{"role": "user", "content": ANN}]})
        assert (found["personal_data"], found["privacy"]) == (["email"], action)
        for cache in ("exact", "semantic"):
            assert (found[cache] == "skipped: personal-data") is (action == "bypass")
        assert "ann@" not in str(found)


@pytest.mark.parametrize(
    ("action", "asked", "refused"),
    [("bypass", ANN, True), ("redact-key", ANN, False), ("redact-key", BOB, True), ("store", ANN, False)],
)
async def test_a_pair_is_explained_as_the_lookup_treats_it(
    tmp_path: Path, action: str, asked: str, refused: bool
) -> None:
    async with behind(tmp_path, policy(action), "main") as (served, _):
        found = await explained(served, "cache/explain", {"stored": ANN.replace("please", "now"), "asked": asked})
        assert (found["reason"] == "personal-data") is refused


async def test_each_request_is_counted_however_it_is_answered(tmp_path: Path) -> None:
    async with behind(tmp_path, policy("store"), "main") as (served, _):
        assert said(await served.chat(ANN)) == "fwd=miss"
        for _ in range(4):
            assert said(await served.chat(ANN)) == "hit"
        assert counted(served, "personal_data") == {"store": 5}
