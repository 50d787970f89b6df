"""A model of a real Triton that does not batch, behind a gateway that does it for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.upstream import response_reader
from tests.features.kserve.test_http import ONE
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.kserve_triton import KServeTriton
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until

# grpc.aio keeps to the loop that it was first used on, and logs errors about closed ones.
pytestmark = pytest.mark.asyncio(loop_scope="module")
NEVER = "600s"  # no batch leaves because of the time: it is full, or it waits


@asynccontextmanager
async def before(
    triton: KServeTriton, folder: Path, adapter: str = "kserve", policy: str = ONE, **batch: Any
) -> AsyncIterator[Served]:
    main = {"adapter": adapter, "url": triton.url if adapter == "kserve" else triton.grpc_url, "batch": batch}
    own = {"model": "sum_rows", "models": {"repeat": "repeat", "label_light": "label_light"}}
    async with gateway_of(config_of(folder, {"main": {**main, **own}}), policy) as served:
        yield served


async def total(served: Served, *rows: int, **fields: Any) -> Answer:
    body = {"inputs": rows_of(*rows), **fields}
    headers = fields.pop("headers", None)
    return await served.post("/v2/models/sum_rows/infer", {k: v for k, v in body.items() if k != "headers"}, headers)


def rows_of(*rows: int) -> list[dict[str, Any]]:
    data = [[float(row)] * 3 for row in rows]
    return [{"name": "ROWS", "datatype": "FP32", "shape": [len(rows), 3], "data": data}]


async def counted(triton: KServeTriton) -> int:
    """Executions of the model, by what Triton says of it."""
    async with aiohttp.ClientSession() as session, session.get(f"{triton.url}/v2/models/sum_rows/stats") as response:
        (stats,) = (await response.json())["model_stats"]
    return int(stats["inference_stats"]["success"]["count"])


async def executions(triton: KServeTriton, before: int, expected: int) -> int:
    """How many there have been. Triton counts one when it has answered it, and before it begins the next: that is asked
    for here, and once the expected ones and itself are counted, no other is to come."""
    one, url = {"inputs": rows_of(0)}, f"{triton.url}/v2/models/sum_rows/infer"
    async with aiohttp.ClientSession() as session, session.post(url, json=one) as response:
        assert response.status == 200
    async with asyncio.timeout(120):
        while (count := await counted(triton) - before - 1) < expected:
            pass  # every turn is a round trip to Triton
    return count


def sums(answer: Answer) -> list[float]:
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("adapter", ["kserve", "triton"])
async def test_calls_of_one_form_are_one_execution(kserve_triton: KServeTriton, tmp_path: Path, adapter: str) -> None:
    async with before(kserve_triton, tmp_path, adapter, max_size=8, max_wait=NEVER) as served:
        before_it = await counted(kserve_triton)
        asked = [total(served, n, id=str(n)) for n in range(6)]
        answers = await asyncio.gather(*asked, total(served, 100, 200, id="more"))
        assert [sums(answer) for answer in answers] == [[3.0 * n] for n in range(6)] + [[300.0, 600.0]]
        assert [answer.json["id"] for answer in answers] == [*map(str, range(6)), "more"]
        assert await executions(kserve_triton, before_it, 1) == 1
        again = await total(served, 3)
        assert (sums(again), again.cache_status.split("; ttl")[0]) == ([9.0], "nearhit; hit; detail=exact")


async def test_who_comes_alone_waits_no_longer_than_max_wait(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with before(kserve_triton, tmp_path, max_size=8, max_wait="1ms") as served:
        assert sums(await total(served, 7)) == [21.0]


async def test_a_budget_that_is_short_does_not_wait(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with before(kserve_triton, tmp_path, max_size=8, max_wait=NEVER) as served:
        assert sums(await total(served, 8, headers={"x-latency-budget-ms": "200000"})) == [24.0]


async def test_a_faulty_member_fails_alone(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with before(kserve_triton, tmp_path, max_size=3, max_wait=NEVER) as served:
        one, bad, other = await asyncio.gather(total(served, 1), total(served, -1), total(served, 2))
        assert (sums(one), sums(other)) == ([3.0], [6.0])
        assert bad.status == 500
        assert bad.json["error"].endswith("no negative numbers")


async def test_other_forms_wait_apart(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with before(kserve_triton, tmp_path, max_size=2, max_wait=NEVER) as served:
        before_it = await counted(kserve_triton)
        plain = [total(served, 1), total(served, 2)]
        others = [total(served, n, parameters={"seed": 1}) for n in (1, 2)]
        for answer in await asyncio.gather(*plain, *others):
            assert answer.status == 200
        assert await executions(kserve_triton, before_it, 2) == 2


async def test_tenants_with_credentials_of_their_own_wait_apart(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with before(kserve_triton, tmp_path, max_size=2, max_wait=NEVER) as served:
        before_it = await counted(kserve_triton)
        keys = [{"Authorization": f"Bearer {key}"} for key in ("a", "b")]
        asked = [total(served, n, headers=key) for key in keys for n in (1, 2)]
        assert [sums(answer) for answer in await asyncio.gather(*asked)] == [[3.0], [6.0]] * 2
        assert await executions(kserve_triton, before_it, 2) == 2


async def test_a_member_that_leaves_takes_nothing_from_the_others(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    async with before(kserve_triton, tmp_path, max_size=2, max_wait=NEVER) as served:
        leaving = asyncio.create_task(total(served, 1))
        (pool,) = served.gateway.parts.pools.values()
        await until(lambda: pool.load == 1)
        leaving.cancel()
        await until(lambda: pool.load == 0)
        assert sums(await total(served, 2)) == [6.0], "the batch is full with the one who left, and goes without him"


async def test_answers_without_a_row_for_each_are_fetched_one_by_one(
    kserve_triton: KServeTriton, tmp_path: Path
) -> None:
    """The model takes one text: a batch of two is refused, and after three such nobody waits for another."""

    async def ask(served: Served, words: str) -> Answer:
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [words]}
        return await served.post("/v2/models/label_light/infer", {"inputs": [tensor]})

    policy = ONE.replace("semantic: {ttl: 1h, min_similarity: 0.6}", "semantic: off")
    async with before(kserve_triton, tmp_path, policy=policy, max_size=2, max_wait=NEVER) as served:
        for pair in (("a", "b"), ("c", "d"), ("e", "f")):
            for words, answer in zip(pair, await asyncio.gather(*(ask(served, w) for w in pair)), strict=True):
                texts = {output["name"]: output["data"] for output in answer.json["outputs"]}
                assert texts["text_output"] == [f"label_light: {words}"]
        assert (await ask(served, "g")).status == 200


async def test_an_answer_that_is_too_large_to_be_divided_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_reader, "MAX_WHOLE_BYTES", 1_000)

    async def large(request: web.Request, _: Any) -> web.StreamResponse:
        return web.json_response({"outputs": ["x" * 2**20]})

    batch = {"max_size": 2, "max_wait": NEVER}
    async with serving(Upstream(answer=large)) as upstream:
        main = {"adapter": "kserve", "url": upstream.url.removesuffix("/v1"), "model": "sum_rows", "batch": batch}
        async with gateway_of(config_of(tmp_path, {"main": main}), ONE) as served:
            answers = await asyncio.gather(total(served, 1), total(served, 2))
            assert [answer.status for answer in answers] == [502, 502]
            assert len(upstream.calls) == 1
            assert served.gateway.parts.pools["main"].inflight == 0, "its place is free, and its connection ended"
