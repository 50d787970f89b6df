"""Every status that says that a server has failed is treated alike, also those that RFC 9110 does not list."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.features.jobs.retry_policy import RetryDecision, RetryTerms, decide
from gateway.features.jobs.store import JobResult
from gateway.statuses import is_failure
from gateway.upstream.upstream import FAILURES
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.upstream.test_upstreams import answering, main, upstreams

__all__ = ["upstreams"]

FAILED = [500, 502, 503, 504, 506, 507, 520, 521, 522, 523, 524, 525, 526, 527, 529, 530, 598]
BEYOND = [501, 505]
FALLBACK = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")
STALE = EXACT_CACHE.replace("{exact: {ttl: 1h}}", "{exact: {ttl: 1m}, stale_if_error: 1h}")


def test_every_5xx_but_those_about_the_request_is_a_failure_of_the_server() -> None:
    assert [status for status in range(100, 700) if not is_failure(status)] == [
        *range(100, 500), *BEYOND, *range(600, 700)
    ]  # fmt: skip


@pytest.mark.parametrize("status", FAILED)
async def test_a_failed_server_is_another_upstreams_chance(
    upstreams: list[Upstream], tmp_path: Path, status: int
) -> None:
    upstreams[0].answer = answering(status)
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE) as served:
        assert [(await served.chat(str(i))).status for i in range(8)] == [200] * 8
        assert upstreams[0].calls


@pytest.mark.parametrize("status", FAILED)
async def test_a_failed_server_is_another_backends_chance_and_opens_its_breaker(
    upstreams: list[Upstream], tmp_path: Path, status: int
) -> None:
    upstreams[0].answer = answering(status)
    two = {**main(upstreams[:1], retries={"attempts": 1}), "other": {"adapter": "openai", "url": upstreams[1].url}}
    async with gateway_of(config_of(tmp_path, two), FALLBACK) as served:
        assert [(await served.chat(str(i))).status for i in range(FAILURES + 3)] == [200] * (FAILURES + 3)
        assert len(upstreams[0].calls) == FAILURES


@pytest.mark.parametrize("status", BEYOND)
async def test_what_is_beyond_a_server_is_tried_nowhere_else(
    upstreams: list[Upstream], tmp_path: Path, status: int
) -> None:
    upstreams[0].answer = answering(status)
    two = {**main(upstreams[:1]), "other": {"adapter": "openai", "url": upstreams[1].url}}
    async with gateway_of(config_of(tmp_path, two), FALLBACK) as served:
        assert [(await served.chat(str(i))).status for i in range(FAILURES + 3)] == [status] * (FAILURES + 3)
        assert not upstreams[1].calls


@pytest.mark.parametrize("status", [520, 529])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failed_server_is_the_chance_of_a_stale_answer(
    upstreams: list[Upstream], tmp_path: Path, status: int, streamed: bool
) -> None:
    clock = FakeClock()
    async with gateway_of(config_of(tmp_path, main(upstreams[:1])), STALE, clock=clock) as served:
        await served.chat("hello", stream=streamed)
        clock.advance(120.0)
        upstreams[0].answer = answering(status)
        answer = await served.chat("hello", stream=streamed)
        assert (answer.status, "detail=stale" in answer.cache_status) == (200, True)


async def test_an_overloaded_upstream_says_how_long_it_wants_no_calls(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    clock = FakeClock()
    upstreams[0].answer = answering(529, {"Retry-After": "30"})
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE, clock=clock) as served:
        assert [(await served.chat(str(i))).status for i in range(20)] == [200] * 20
        assert len(upstreams[0].calls) == 1


@pytest.mark.parametrize(("status", "counted"), [(529, False), (503, False), (520, True), (524, True)])
def test_a_job_is_tried_again_after_a_failure_of_the_server(status: int, counted: bool) -> None:
    decision = decide(JobResult(status, (), b""), 1, 0.0, RetryTerms(3, 3600.0, 60.0, 60.0), 0.0)
    assert isinstance(decision, RetryDecision)
    assert decision.counted is counted


@pytest.mark.parametrize("status", BEYOND)
def test_a_job_that_is_beyond_a_server_is_not_tried_again(status: int) -> None:
    terms = RetryTerms(3, 3600.0, 60.0, 60.0)
    assert not isinstance(decide(JobResult(status, (), b""), 1, 0.0, terms, 0.0), RetryDecision)
