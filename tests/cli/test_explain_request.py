"""`nearhit explain REQUEST.json --admin URL`: what a running gateway would do with a request, and what it predicts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.upstream.latency import CallFeatures
from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream


def observe(served: Served, name: str, seconds: float) -> None:
    for _ in range(100):
        served.gateway.parts.pools[name].endpoints[0].latency.observe(
            CallFeatures(route="default"),
            load=0,
            ttft_s=seconds,
            total_s=seconds,
            output_tokens=0,
            now=served.gateway.parts.clock.monotonic(),
        )


def written(folder: Path, question: str, **headers: str) -> str:
    path = folder / "request.json"
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    path.write_text(json.dumps({"body": body, "headers": headers}))
    return str(path)


async def test_it_says_what_each_backend_is_predicted_to_take(
    tiered: Served, light: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observe(tiered, "light", 0.2)
    path = written(tmp_path, "What time is it?", **{"x-latency-budget-ms": "900000"})
    assert await asyncio.to_thread(main, ["explain", path, "--admin", tiered.admin_url]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    told = {name: value.strip() for name, value in lines.items()}
    assert told["backend"].startswith("light (below-threshold")
    assert told["predicted, light"].startswith("at most 0.2")
    assert told["predicted, large"] == "no recent calls"
    assert told["required confidence"] == "95%"
    assert 800 < float(told["budget left"].removeprefix("total ").removesuffix(" s")) <= 900
    assert light.calls == [], "nothing is sent"


async def test_it_can_be_held_to_an_expectation_and_speaks_json(
    tiered: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observe(tiered, "light", 4.0)
    observe(tiered, "large", 2.0)
    path = written(tmp_path, "What time is it?", **{"x-latency-budget-ms": "900"})
    arguments = ["explain", path, "--admin", tiered.admin_url, "--json", "--expect", "large"]
    assert await asyncio.to_thread(main, arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["late"] is True
    assert [name for name, _ in found["steps"]][-3:] == ["StoreResponse", "ResourceAffinity", "Dispatch"]
    assert found["outlook"]["backends"]["large"]["total_s"] == pytest.approx(2.0, rel=0.1)


async def test_without_a_budget_the_predictions_are_shown_all_the_same(tiered: Served) -> None:
    observe(tiered, "large", 2.0)
    body = {"model": "m", "messages": [{"role": "user", "content": "What time is it?"}]}
    async with tiered.session.post(tiered.admin_url + "/admin/explain", json=body) as response:
        found = await response.json()
    assert found["outlook"]["left"] == {"total_s": None, "ttft_s": None, "tpot_s": None}
    assert found["outlook"]["backends"]["large"]["total_s"] == pytest.approx(2.0, rel=0.1)
    assert found["late"] is False


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body: expected an object: a request body, or {path, headers, body}"),
        (b'{"path": "/v1/files", "body": {}}', "is passed through, there is nothing to explain"),
        (b'{"headers": 1, "body": {}}', "headers: expected an object"),
        (b'{"model": 1}', "model"),
    ],
)
async def test_what_is_no_request_is_refused_in_one_sentence(tiered: Served, body: bytes, sentence: str) -> None:
    async with tiered.session.post(tiered.admin_url + "/admin/explain", data=body) as response:
        assert response.status == 400
        assert sentence in (await response.json())["error"]
