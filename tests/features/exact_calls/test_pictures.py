"""Pictures are cached with a seed alone, and only if they are in the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from gateway.outcomes import Admission
from tests.features.exact_calls.test_recordings import PASSED, told
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

PATH = "/v1/images/generations"
CALL: dict[str, Any] = {"model": "sd-3", "prompt": "a fjord", "seed": 7, "response_format": "b64_json"}
PICTURE = b"\x89PNG\x00"


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        pictures = [{"b64_json": f"aGk{len(upstream.calls)}"}] * int(call.get("n", 1))
        return web.json_response({"created": len(upstream.calls), "data": pictures})

    upstream.answer = answer
    backend = {"adapter": "openai", "url": upstream.url, "price": {"per_image": 0.04}}
    async with gateway_of(config_of(tmp_path, {"main": backend}), EXACT_CACHE) as gateway:
        yield gateway


async def test_the_official_client_gets_the_same_picture_for_a_seed(served: Served, upstream: Upstream) -> None:
    async with AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as client:
        seed = {"seed": 7}
        made = [await client.images.generate(prompt="a fjord", model="sd-3", extra_body=seed) for _ in range(2)]
        assert made[0] == made[1] and len(upstream.calls) == 1
        edited = [
            await client.images.edit(prompt="night", model="sd-3", image=(name, PICTURE), extra_body=seed)
            for name in ("a.png", "b.png")
        ]
        assert edited[0] == edited[1] and len(upstream.calls) == 2
        other = await client.images.edit(prompt="night", model="sd-3", image=("a.png", b"other"), extra_body=seed)
        assert other != edited[0]


async def test_a_picture_without_a_seed_is_another_one_each_time(served: Served, upstream: Upstream) -> None:
    """pollinations/pollinations #6893: a cache that ignored the seed returned one picture for all."""
    async with AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as client:
        made = [await client.images.generate(prompt="a fjord", model="sd-3") for _ in range(2)]
        edited = [await client.images.edit(prompt="a fjord", model="sd-3", image=("a.png", PICTURE)) for _ in range(2)]
    assert made[0] != made[1] and edited[0] != edited[1] and len(upstream.calls) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": None},
        {"seed": -1},
        {"seed": "7"},
        {"seed": True},
        {"stream": True},
        {"response_format": "url"},
        {"images": [{"image_url": "https://pictures/1.png"}]},
    ],
)
async def test_what_no_seed_fixes_passes_through(served: Served, upstream: Upstream, fields: Any) -> None:
    for _ in range(2):
        assert told(await served.post(PATH, {**CALL, **fields})) == PASSED
    assert len(upstream.calls) == 2


async def test_every_field_of_a_call_with_a_seed_counts(served: Served) -> None:
    sent = [CALL, *({**CALL, **one} for one in ({"seed": 8}, {"n": 2}, {"size": "512x512"}, {"prompt": "a Fjord"}))]
    for body in sent:
        assert told(await served.post(PATH, body)) == "fwd=miss"
    for body in (*sent, {**CALL, "n": 1, "user": "me"}):
        assert told(await served.post(PATH, body)) == "hit=exact"
    assert told(await served.post("/v1/images/edits", CALL)) == "fwd=miss"


async def test_an_answer_with_links_is_not_stored_since_they_expire(served: Served, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        return web.json_response({"data": [{"url": "https://pictures/1.png?expires=3600"}]})

    upstream.answer = answer
    for _ in range(2):
        assert told(await served.post(PATH, CALL)) == "fwd=miss"
    admissions = served.gateway.parts.telemetry.admissions.values
    assert admissions[("default", Admission.LINK)] == 2


async def test_a_hit_saves_the_price_of_its_pictures(served: Served) -> None:
    for _ in range(2):
        await served.post(PATH, {**CALL, "n": 3})
    assert served.gateway.parts.telemetry.cost_saved.total() == pytest.approx(0.12)
