"""Reranking and moderation are cached by exact match, and are otherwise routed, repeated and metered as they came."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from tests.admin.keys import ADMIN, bearer, create, keyed
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, TIERS, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

COHERE: dict[str, Any] = {
    "model": "rerank-v3.5",
    "query": "Which ports?",
    "documents": ["8080 and 9090", "no idea"],
    "top_n": 1,
}
TEI = {"query": "Which ports?", "texts": ["8080 and 9090", "no idea"], "raw_scores": False}
RANKED = {
    "id": "r-1",
    "results": [{"index": 0, "relevance_score": 0.98}],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
}
LIST = [{"index": 0, "score": 0.97}, {"index": 1, "score": 0.02}]
JINA = {"model": "jina-reranker-m0", "query": "A fjord?", "documents": [{"image": "aGk="}, {"text": "a fjord"}]}
VLLM = {"model": "m", "query": {"content": [{"type": "text", "text": "q"}]}, "documents": {"content": [{"text": "d"}]}}
JUDGED = {"id": "modr-1", "model": "omni-moderation-latest", "results": [{"flagged": False, "categories": {}}]}
JUDGEMENT = {"model": "omni-moderation-latest", "input": "Which ports?"}
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}, {"type": "text", "text": "hi"}]


def answers(upstream: Upstream, *values: Any, status: int = 200) -> None:
    """Let the endpoint answer with these values in turn, and then with the last one."""
    left = list(values)

    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, web.StreamResponse):
            return value
        return web.json_response(value, status=status)

    upstream.answer = answer


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    answers(upstream, RANKED)
    backend = {"adapter": "openai", "url": upstream.url, "price": {"per_search": 0.002}}
    async with gateway_of(config_of(tmp_path, {"main": backend}), EXACT_CACHE) as gateway:
        yield gateway


async def verdicts(served: Served, *requests: tuple[str, Any]) -> list[str]:
    """Return what the cache said of each request: `miss`, `exact`, or the reason of a bypass."""
    found = []
    for path, body in requests:
        answer = await served.post(path, body)
        assert answer.status == 200, answer.body
        status = answer.cache_status
        found.append(status.rpartition("detail=")[2].split(";")[0] if "detail=" in status else "miss")
    return found


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v2/rerank", COHERE, RANKED),
        ("/v1/rerank", COHERE, RANKED),
        ("/rerank", COHERE, RANKED),
        ("/rerank", TEI, LIST),
        ("/v1/rerank", JINA, RANKED),
        ("/v1/rerank", VLLM, RANKED),
        ("/v1/rerank", {**COHERE, "return_documents": True, "rank_fields": ["text"]}, RANKED),
        ("/v1/rerank", {**COHERE, "documents": [{"text": "a", "title": "b"}, "c"]}, {"results": [{"index": 1}]}),
        ("/v1/rerank", {**COHERE, "documents": ["https://ports.example", {"text": "http://ports"}]}, RANKED),
        ("/v1/moderations", {"input": "https://ports.example"}, JUDGED),
        ("/v1/moderations", JUDGEMENT, JUDGED),
        ("/v1/moderations", {"input": ["one", "two"]}, JUDGED),
        ("/v1/moderations", {"model": "omni-moderation-latest", "input": PICTURE}, JUDGED),
    ],
)
async def test_the_same_call_reaches_the_endpoint_once(
    served: Served, upstream: Upstream, path: str, body: Any, answer: Any
) -> None:
    """BerriAI/litellm #6144: a rerank is never answered from the cache."""
    answers(upstream, answer)
    first, second = await served.post(path, body), await served.post(path, body)
    assert (first.status, second.status) == (200, 200)
    assert first.json == answer and first.body == second.body
    assert first.cache_status.startswith("nearhit; fwd=miss; stored")
    assert second.cache_status.startswith("nearhit; hit; detail=exact")
    assert [(call.path, call.json) for call in upstream.calls] == [(path, body)]


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_what_cohere_s_client_writes_hits(served: Served, upstream: Upstream, version: str) -> None:
    """The bytes and headers of cohere 7.3.1. `make clients` runs the client itself."""
    body = b'{"model":"rerank-v3.5","query":"Which ports?","documents":["no idea","8080 and 9090"],"top_n":1}'
    headers = {
        "Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "cohere/7.3.1",
        "X-Fern-Language": "Python", "X-Fern-SDK-Name": "cohere", "X-Fern-SDK-Version": "7.3.1",
        "Authorization": "Bearer sk", "Content-Type": "application/json",
    }  # fmt: skip
    for verdict in ("fwd=miss; stored", "hit; detail=exact"):
        async with served.session.post(f"{served.url}/{version}/rerank", data=body, headers=headers) as answer:
            assert await answer.json() == RANKED
            assert answer.headers["Cache-Status"].startswith(f"nearhit; {verdict}")
    (call,) = upstream.calls
    assert (call.path, call.body, call.headers["User-Agent"]) == (f"/{version}/rerank", body, "cohere/7.3.1")


async def test_spellings_of_a_call_share_an_entry_and_other_calls_do_not(served: Served, upstream: Upstream) -> None:
    same = [COHERE, dict(reversed(COHERE.items())), {**COHERE, "top_n": 1.0, "return_documents": None}]
    assert await verdicts(served, *(("/v2/rerank", body) for body in same)) == ["miss", "exact", "exact"]
    others: list[tuple[str, Any]] = [
        ("/v2/rerank", {**COHERE, "documents": COHERE["documents"][::-1]}),
        ("/v2/rerank", {**COHERE, "top_n": 2}),
        ("/v2/rerank", {**COHERE, "model": "rerank-v4"}),
        ("/v2/rerank", {**COHERE, "query": "Which hosts?"}),
        ("/v2/rerank", {**COHERE, "return_documents": True}),
        ("/v2/rerank?version=2", COHERE),
        ("/v1/rerank", COHERE),
        ("/rerank", TEI),
        ("/rerank", {**TEI, "return_text": True}),
    ]
    assert await verdicts(served, *others) == ["miss"] * len(others)
    assert len(upstream.calls) == 1 + len(others)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"model": "m", "query": "q"}),
        ("/v1/rerank", {"model": "m", "query": "", "documents": ["a"]}),
        ("/v1/rerank", b'{"query": "q", "query": "r", "documents": ["a"]}'),
        ("/v1/rerank", b"[]"),
        ("/v1/rerank", {**COHERE, "stream": True}),
        ("/v1/moderations", {"model": "m"}),
        ("/v1/moderations", {"input": [{"type": "image_url", "image_url": {"url": "https://pictures/1.png"}}]}),
        ("/v1/rerank", {**JINA, "documents": [{"image": "https://pictures/1.png"}]}),
        ("/v1/rerank", {**VLLM, "query": {"content": [{"image_url": {"url": "HTTPS://pictures/1.png"}}]}}),
        ("/v1/score", {"model": "m", "text_1": "a", "text_2": "b"}),
    ],
)
async def test_what_the_gateway_cannot_read_for_certain_passes_through(
    served: Served, upstream: Upstream, path: str, body: Any
) -> None:
    assert await verdicts(served, (path, body), (path, body)) == ["pass-through"] * 2
    assert len(upstream.calls) == 2


@pytest.mark.parametrize(
    "answer",
    [{"error": {"message": "no model"}}, {"results": None}, {"data": []}, "done", None, web.Response(body=b"<html>")],
    ids=["an error", "null", "another key", "a text", "null alone", "a page"],
)
async def test_an_answer_without_results_is_not_stored(served: Served, upstream: Upstream, answer: Any) -> None:
    answers(upstream, answer, RANKED)
    assert await verdicts(served, ("/v1/rerank", COHERE), ("/v1/rerank", COHERE)) == ["miss", "miss"]
    assert len(upstream.calls) == 2


async def test_a_compressed_call_shares_the_entry_and_goes_on_decoded(served: Served, upstream: Upstream) -> None:
    coded = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert (await served.post("/v1/rerank", gzip.compress(json.dumps(COHERE).encode()), coded)).status == 200
    assert await verdicts(served, ("/v1/rerank", COHERE)) == ["exact"]
    assert upstream.calls[0].json == COHERE and "Content-Encoding" not in upstream.calls[0].headers


async def test_a_long_list_is_read_off_the_loop_and_hits(served: Served) -> None:
    long = {**COHERE, "documents": ["a document: " + "x" * 1000 for _ in range(500)]}
    assert await verdicts(served, ("/v1/rerank", long), ("/v1/rerank", long)) == ["miss", "exact"]


async def test_an_answer_that_is_stale_serves_while_the_endpoint_fails(upstream: Upstream, tmp_path: Path) -> None:
    answers(upstream, RANKED, web.Response(status=500))
    policy = EXACT_CACHE.replace("{exact: {ttl: 1h}}", "{exact: {ttl: 1ms}, stale_if_error: 1h}")
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}), policy) as gateway:
        assert await verdicts(gateway, ("/v1/rerank", COHERE), ("/v1/rerank", COHERE)) == ["miss", "stale"]


async def test_a_gateway_without_a_cache_reads_no_call(upstream: Upstream, tmp_path: Path) -> None:
    answers(upstream, RANKED)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as gateway:
        assert await verdicts(gateway, ("/v1/rerank", COHERE)) == ["pass-through"]


async def test_the_client_decides_about_the_cache(served: Served, upstream: Upstream) -> None:
    async def asked(control: str) -> tuple[int, str]:
        answer = await served.post("/v2/rerank", COHERE, {"Cache-Control": control})
        return answer.status, answer.headers.get("Cache-Status", "")

    assert (await asked("only-if-cached"))[0] == 504
    assert await asked("no-store") == (200, "nearhit; fwd=bypass; detail=no-store")
    assert (await verdicts(served, ("/v2/rerank", COHERE)))[0] == "miss"
    assert (await asked("only-if-cached"))[0] == 200
    assert (await asked("no-cache"))[1].startswith("nearhit; fwd=bypass; detail=no-cache")
    assert len(upstream.calls) == 3


async def test_identical_calls_in_flight_are_one_call(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    pending = [asyncio.create_task(served.post("/v1/rerank", COHERE)) for _ in range(5)]
    await upstream.arrived.wait()
    upstream.gate.set()
    found = await asyncio.gather(*pending)
    assert {answer.body for answer in found} == {found[0].body} and len(upstream.calls) == 1


async def test_tenants_share_nothing(served: Served, upstream: Upstream) -> None:
    for key in ("one", "two", "one"):
        await served.post("/v1/rerank", COHERE, {"Authorization": f"Bearer {key}"})
    assert len(upstream.calls) == 2


async def test_an_error_of_the_endpoint_is_asked_again_and_never_stored(served: Served, upstream: Upstream) -> None:
    answers(upstream, web.json_response({"message": "busy"}, status=503), RANKED)
    assert await verdicts(served, ("/v1/rerank", COHERE), ("/v1/rerank", COHERE)) == ["miss", "exact"]
    assert len(upstream.calls) == 2


async def test_a_hit_saves_the_price_of_its_search_units(served: Served, upstream: Upstream) -> None:
    """Cohere reports its search units; the endpoints that do not are billed by the number of documents."""
    many = {**COHERE, "documents": [str(i) for i in range(201)]}
    answers(upstream, RANKED, {"results": [{"index": 1}]})
    for body in (COHERE, COHERE, many, many):
        await served.post("/v2/rerank", body)
    async with served.session.get(served.admin_url + "/metrics") as response:
        text = await response.text()
    (saved,) = [line for line in text.splitlines() if line.startswith("nearhit_cost_saved_dollars_total")]
    assert float(saved.rpartition(" ")[2]) == pytest.approx(0.002 * (1 + 3))


async def test_the_official_client_moderates_from_the_cache(served: Served, upstream: Upstream) -> None:
    answers(upstream, JUDGED)
    async with AsyncOpenAI(base_url=served.url + "/v1", api_key="k") as client:
        given: list[Any] = ["hi", "hi", PICTURE, PICTURE]
        for each in given:
            judged = await client.moderations.create(model="omni-moderation-latest", input=each)
            assert (judged.id, judged.results[0].flagged) == ("modr-1", False)
    assert len(upstream.calls) == 2


async def test_the_best_tier_answers_whatever_the_question(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    for each in (light, large):
        answers(each, RANKED)
    backends = {
        each.name: {"adapter": "openai", "url": each.url, "model": f"{each.name}-chat"} for each in (light, large)
    }
    async with gateway_of(config_of(tmp_path, backends), TIERS) as gateway:
        answer = await gateway.post("/v1/rerank", COHERE)
        assert answer.headers["x-nearhit-backend"] == "large"
        assert "x-nearhit-complexity" not in answer.headers
    assert [call.json for call in large.calls] == [COHERE] and light.calls == []


async def test_a_key_uses_the_models_that_it_may_use(upstream: Upstream, tmp_path: Path) -> None:
    answers(upstream, RANKED)
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as gateway:
        own = bearer((await create(gateway, models=["rerank-*"]))["key"])
        assert [(await gateway.post("/v1/rerank", COHERE, own)).status for _ in range(2)] == [200, 200]
        assert (await gateway.post("/v1/rerank", {**COHERE, "model": "other"}, own)).status == 403
        assert (await gateway.post("/rerank", TEI, own)).status == 403  # it names no model
    assert len(upstream.calls) == 1
