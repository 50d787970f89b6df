"""Embeddings through the gateway: each input is kept by itself, and only what is missing is fetched, in one call."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from aiohttp import web

from gateway.upstream import input_batch
from tests.fixtures.gateways import Answer, Served, aboard
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

SOON_S = input_batch.QUIET_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine one input may come from its lookup much later than the others: all are waited for."""
    monkeypatch.setattr(input_batch, "QUIET_S", 600.0)


async def embed(served: Served, inputs: Any, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return await served.post("/v1/embeddings", {"model": "m", "input": inputs, **fields}, headers)


def vectors(answer: Answer) -> list[Any]:
    return [item["embedding"] for item in answer.json["data"]]


def asked(upstream: Upstream) -> list[Any]:
    return [call.json["input"] for call in upstream.calls]


async def test_only_inputs_that_nobody_has_asked_for_are_fetched(served: Served, upstream: Upstream) -> None:
    await embed(served, ["a", "bb"])
    answer = await embed(served, ["ccc", "bb", "dddd", "a"])
    assert asked(upstream) == [["a", "bb"], ["ccc", "dddd"]]
    assert vectors(answer) == [[0.5, 3 / 8], [0.5, 2 / 8], [0.5, 4 / 8], [0.5, 1 / 8]]
    assert [item["index"] for item in answer.json["data"]] == [0, 1, 2, 3]
    assert answer.cache_status == "nearhit; fwd=miss; stored"


async def test_what_has_all_been_asked_for_is_a_hit(served: Served, upstream: Upstream) -> None:
    first = await embed(served, ["a", "bb"])
    copy_error = await embed(served, ["bb", "a"])
    assert copy_error.cache_status.startswith("nearhit; hit; detail=exact; ttl=")
    assert vectors(copy_error) == vectors(first)[::-1]
    assert len(upstream.calls) == 1
    assert "Age" in copy_error.headers


async def test_a_lone_input_and_one_among_others_are_the_same(served: Served, upstream: Upstream) -> None:
    lone = await embed(served, "a")
    assert (await embed(served, ["a"])).json == lone.json
    assert (await embed(served, [[1, 2]])).cache_status.startswith("nearhit; fwd=miss")
    assert (await embed(served, [1, 2])).cache_status.startswith("nearhit; hit")
    assert len(upstream.calls) == 2


async def test_the_same_input_twice_is_asked_once(served: Served, upstream: Upstream) -> None:
    answer = await embed(served, ["a", "a", "bb", "a"])
    assert asked(upstream) == [["a", "bb"]]
    assert vectors(answer) == [[0.5, 1 / 8], [0.5, 1 / 8], [0.5, 2 / 8], [0.5, 1 / 8]]


async def test_what_decides_an_embedding_parts_the_inputs(served: Served, upstream: Upstream) -> None:
    await embed(served, ["a"])
    await embed(served, ["a"], dimensions=2)
    await embed(served, ["a"], headers={"Authorization": "Bearer somebody-else"})
    assert len(upstream.calls) == 3


async def test_inputs_that_are_on_their_way_are_not_asked_again(
    served: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.gate.clear()
    first = asyncio.create_task(embed(served, ["a", "bb"]))
    await until(lambda: len(upstream.calls) == 1)
    monkeypatch.setattr(input_batch, "QUIET_S", SOON_S)
    second = asyncio.create_task(embed(served, ["bb", "ccc"]))
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert vectors(await second) == [vectors(await first)[1], [0.5, 3 / 8]]
    assert asked(upstream) == [["a", "bb"], "ccc"]


async def test_requests_that_wait_for_each_others_inputs_both_end(
    served: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_batch, "QUIET_S", SOON_S)
    inputs = [f"text {i}" for i in range(20)]
    answers = await asyncio.gather(*(embed(served, given) for given in (inputs, inputs[::-1]) * 3))
    assert all(answer.status == 200 for answer in answers)
    assert vectors(answers[0]) == vectors(answers[1])[::-1]
    flat = [one for given in asked(upstream) for one in (given if isinstance(given, list) else [given])]
    assert sorted(flat) == sorted(inputs), "each input was fetched once"


async def test_an_error_is_the_whole_requests_and_nothing_of_it_is_kept(served: Served, upstream: Upstream) -> None:
    async def refuse(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    await embed(served, "a")
    upstream.answer = refuse
    refused = await embed(served, ["a", "bb", "ccc"])
    assert (refused.status, refused.json["error"]["message"]) == (404, "no such model")
    upstream.answer = None
    assert (await embed(served, ["bb"])).cache_status == "nearhit; fwd=miss; stored"


@pytest.mark.parametrize("body", [{"data": []}, {"object": "list"}, []])
async def test_an_answer_with_too_few_vectors_is_a_502(served: Served, upstream: Upstream, body: Any) -> None:
    async def short(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(body)

    upstream.answer = short
    answer = await embed(served, ["a", "bb"])
    assert answer.status == 502


async def test_a_client_that_leaves_cancels_the_call(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    task = asyncio.create_task(embed(served, ["a", "bb", "ccc"]))
    await upstream.arrived.wait()
    task.cancel()
    await asyncio.wait((task,))
    await until(lambda: upstream.cancelled == 1)
    await until(lambda: served.gateway.parts.pools["main"].inflight == 0)


async def test_a_client_that_leaves_does_not_cancel_what_another_one_waits_for(
    served: Served, upstream: Upstream
) -> None:
    upstream.gate.clear()
    leaving = asyncio.create_task(embed(served, ["a", "bb"]))
    await upstream.arrived.wait()
    staying = asyncio.create_task(embed(served, ["bb", "a"]))
    await until(lambda: aboard(served) == 4)
    leaving.cancel()
    await asyncio.wait((leaving,))
    upstream.gate.set()
    assert (await staying).status == 200
    assert len(upstream.calls) == 1


async def test_large_requests_go_in_calls_of_bounded_size(served: Served, upstream: Upstream) -> None:
    inputs = [f"text {i}" for i in range(300)]
    answer = await embed(served, inputs)
    assert vectors(answer) == [[0.5, len(text) / 8] for text in inputs]
    assert sorted(len(given) for given in asked(upstream)) == [44, 128, 128]


async def test_with_no_store_the_request_goes_on_as_it_is(served: Served, upstream: Upstream) -> None:
    for _ in range(2):
        answer = await embed(served, ["a", "a"], headers={"Cache-Control": "no-store"})
        assert answer.cache_status == "nearhit; fwd=bypass; detail=no-store"
    assert asked(upstream) == [["a", "a"], ["a", "a"]]


async def test_the_official_client_sees_no_difference(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    first = await client.embeddings.create(model="m", input=["a", "bb"], encoding_format="float")
    second = await client.embeddings.create(model="m", input=["bb", "ccc"], encoding_format="float")
    assert [item.embedding for item in second.data] == [first.data[1].embedding, [0.5, 3 / 8]]
    assert second.usage.prompt_tokens > 0
    assert asked(upstream) == [["a", "bb"], "ccc"]


@pytest.mark.parametrize("index", [..., None, 0], ids=["absent", "null", "zero"])
async def test_embeddings_without_indices_of_their_own_are_in_the_order_of_the_inputs(
    served: Served, upstream: Upstream, index: Any
) -> None:
    """As Gemini's compatible endpoint sends them."""

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        inputs = call["input"] if isinstance(call["input"], list) else [call["input"]]
        items = [{"object": "embedding", "embedding": [0.5, len(text) / 8], "index": index} for text in inputs]
        data = [{key: value for key, value in item.items() if value is not ...} for item in items]
        return web.json_response({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 3}})

    upstream.answer = answer
    for inputs in (["a", "bb", "ccc"], ["ccc", "a", "dddd", "bb"]):
        embedded = await embed(served, inputs)
        assert [item["embedding"] for item in embedded.json["data"]] == [[0.5, len(text) / 8] for text in inputs]
        assert [item["index"] for item in embedded.json["data"]] == list(range(len(inputs)))
    assert len(upstream.calls) == 2
