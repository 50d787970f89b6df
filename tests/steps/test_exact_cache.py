"""The exact cache, from the client's side of a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StartupError
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream

EXACT = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: off}
    route: {backend: main}
"""
HIT = "nearhit; hit; detail=exact"


def main_of(upstream: Upstream) -> dict[str, Any]:
    return {"main": {"adapter": "openai", "url": upstream.url}}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def exact(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    async with gateway_of(config_of(tmp_path, main_of(upstream)), EXACT, clock=clock) as served:
        yield served


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith(HIT)


async def test_every_answer_has_a_request_id_of_its_own(exact: Served) -> None:
    ids = {(await exact.chat("hi")).headers["x-request-id"] for _ in range(4)}
    assert len(ids) == 4
    given = await exact.chat("hi", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"


async def test_a_clock_set_back_makes_no_answer_immortal(exact: Served, upstream: Upstream, clock: FakeClock) -> None:
    await exact.chat("hi")
    await exact.chat("hi")
    await exact.chat("hi")
    clock.set_wall(clock.wall() - 3600)
    assert (await exact.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
    assert is_hit(await exact.chat("hi"))
    clock.advance(3601)
    assert not is_hit(await exact.chat("hi"))


async def test_answers_survive_a_restart_of_gateway_and_store(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream))
    async with gateway_of(config, EXACT) as served:
        first = await served.chat("hi")
    async with gateway_of(config, EXACT) as served:
        again = await served.chat("hi")
        assert is_hit(again)
        assert again.body == first.body
    assert len(upstream.calls) == 1


async def test_answers_survive_kill_9_of_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    """Also when the next gateway starts while the killed one's store has not ended yet."""
    config = write_config(tmp_path, main_of(upstream), EXACT)
    bodies = set()
    for i in range(3):
        async with served_by_process(config) as served:
            await served.recovered()
            answer = await served.chat("hi")
            assert is_hit(answer) == (i > 0), answer.cache_status
            bodies.add(answer.body)
            await served.kill()
    assert len(bodies) == len(upstream.calls) == 1


async def test_a_second_gateway_on_the_same_data_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream))
    async with gateway_of(config, EXACT) as served:
        await served.chat("hi")
        with pytest.raises(StartupError, match="another gateway uses the data directory"):
            async with gateway_of(config, EXACT):
                pass
        assert is_hit(await served.chat("hi"))
