"""How long the gateway waits for a backend where nothing else is configured, and for its list of models."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from aiohttp import web

from gateway.config.backends import Timeouts
from gateway.steps import list_models
from gateway.upstream import backend as pools
from gateway.upstream.concurrency_limiter import MAX_WAIT_S, ConcurrencyLimiter
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.upstream.test_upstreams import TWO_TIERS, main, upstreams

__all__ = ["upstreams"]


def test_a_model_may_think_as_long_as_the_official_clients_wait() -> None:
    timeouts = Timeouts()
    assert (timeouts.first_byte, timeouts.idle) == (600.0, 600.0)
    assert timeouts.total > 600.0, "a stream may last longer than one silence"
    assert timeouts.connect == 2.0


@pytest.mark.parametrize(("first_byte", "wait_s"), [(600.0, MAX_WAIT_S), (5.0, 5.0)])
def test_a_queue_that_stands_still_is_not_waited_for_as_long_as_a_model(first_byte: float, wait_s: float) -> None:
    limiter = ConcurrencyLimiter("main", 1, first_byte, FakeClock(), adaptive=False)
    assert limiter._max_wait_s == wait_s


@pytest.mark.parametrize("hangs", ["backend", "upstream"])
async def test_a_list_of_models_lacks_those_of_a_backend_that_hangs_and_the_log_says_so(
    upstreams: list[Upstream],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hangs: str,
) -> None:
    assert 2 * pools.MAX_LISTING_S < list_models.MAX_WAIT_S < 5.0
    monkeypatch.setattr(list_models, "MAX_WAIT_S", 1.0 if hangs == "backend" else 10.0)
    monkeypatch.setattr(pools, "MAX_LISTING_S", 60.0 if hangs == "backend" else 0.5)

    async def hang(request: web.Request, call: dict[str, object]) -> web.StreamResponse:
        return await asyncio.get_running_loop().create_future()

    upstreams[0].answer = hang
    config = config_of(
        tmp_path,
        {
            **main(upstreams[:1] if hangs == "backend" else upstreams[:2]),
            "other": {"adapter": "openai", "url": upstreams[2].url},
        },
    )
    async with gateway_of(config, TWO_TIERS) as served:
        for _ in range(2):
            listed = {model["id"] for model in (await served.get("/v1/models")).json["data"]}
            assert listed == ({"c-model"} if hangs == "backend" else {"b-model", "c-model"})
        assert (await served.get("/v1/models/c-model")).status == 200
        assert (await served.get("/v1/models/a-model")).status == (504 if hangs == "backend" else 404)
    said = [record for record in caplog.records if record.getMessage() == "a backend is missing in the list of models"]
    assert {(record.levelno, vars(record)["fields"]["backend"]) for record in said} == (
        {(logging.WARNING, "main")} if hangs == "backend" else set()
    )
