"""`jobs.fsync`: a job counts as accepted only where the store's server writes through."""

from __future__ import annotations

from pathlib import Path

from tests.features.jobs.asking import chat, main_of, over, submit
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream


async def test_the_embedded_store_writes_through_where_jobs_want_it(upstream: Upstream, tmp_path: Path) -> None:
    for fsync, mode in ((True, "always"), (False, "everysec")):
        config = config_of(tmp_path / mode, main_of(upstream), jobs={"fsync": fsync})
        async with gateway_of(config, NO_CACHE) as served:
            said = await served.gateway.stores.redis._client.config_get("appendfsync")
            assert said == {"appendfsync": mode}
            assert (await over(served, await submit(served, "written")))["status"] == "completed"


async def test_an_outside_store_that_does_not_is_not_taken_for_one_that_does(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    store = {"url": outside_store.url, "timeout": "10s"}
    async with gateway_of(
        config_of(tmp_path, main_of(upstream), store=store, jobs={"fsync": True}), NO_CACHE
    ) as served:
        refused = await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": chat("x")})
        assert refused.status == 503
        assert "appendfsync always" in refused.json["error"]["message"]
