"""`nearhit jobs` against a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.features.jobs.store import Conclusion, JobStatus
from tests.features.jobs.asking import jobs_of, main_of, submit
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

Nearhit = Callable[..., Coroutine[Any, Any, tuple[int, str]]]


@pytest.fixture
def nearhit(capsys: pytest.CaptureFixture[str]) -> Nearhit:
    """Runs `nearhit jobs` beside the gateway. Yields its exit status and all that it prints."""

    async def nearhit(served: Served, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["jobs", *arguments, "--admin", served.admin_url])
        return code, "".join(capsys.readouterr())

    return nearhit


async def dead_one(served: Served, question: str) -> str:
    job = await submit(served, question)
    store = jobs_of(served)
    (claimed,) = await store.claim("w", 1, visibility_s=30, attempts=3, dead_s=60)
    assert await store.conclude(job, claimed.token, Conclusion(JobStatus.FAILED, None, "why", 60.0, dead=True))
    return job


async def test_jobs_are_listed_shown_retried_and_dropped(nearhit: Nearhit, upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main_of(upstream), jobs={"workers": 0}), NO_CACHE) as served:
        job = await dead_one(served, "a secret question")
        code, text = await nearhit(served, "list", "--state", "dead")
        assert code == 0
        assert text.startswith("0 queued, 0 running, 1 dead")
        assert job in text
        code, text = await nearhit(served, "show", job)
        assert (code, "why" in text, "secret" in text) == (0, True, False)
        assert await nearhit(served, "retry", job) == (0, "1 queued again\n")
        code, text = await nearhit(served, "list", "--json")
        assert [one["id"] for one in json.loads(text)["jobs"]] == [job]
        code, text = await nearhit(served, "drop", job)
        assert (code, text) == (1, "nearhit: there is no such dead job\n")
        assert await nearhit(served, "retry", "job_of_nobody") == (code, text)
        await jobs_of(served).cancel(job, "anonymous", 60.0)
        await dead_one(served, "another")
        assert await nearhit(served, "drop", "--all") == (0, "1 dropped\n")
        assert (await nearhit(served, "drop"))[0] == 2
