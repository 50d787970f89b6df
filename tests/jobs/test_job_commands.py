"""`nearhit jobs` against a gateway that runs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from gateway.job_store import Conclusion, JobStatus
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.jobs.asking import main_of, submit


async def nearhit(served: Served, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "jobs", *arguments, "--admin", served.admin_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def dead_one(served: Served, question: str) -> str:
    job = await submit(served, question)
    store = served.gateway.stores.jobs
    (claimed,) = await store.claim("w", 1, visibility_s=30, attempts=3, dead_s=60)
    assert await store.conclude(job, claimed.token, Conclusion(JobStatus.FAILED, None, "why", 60.0, dead=True))
    return job


async def test_jobs_are_listed_shown_retried_and_dropped(upstream: Upstream, tmp_path: Path) -> None:
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
        await served.gateway.stores.jobs.cancel(job, "anonymous", 60.0)
        await dead_one(served, "another")
        assert await nearhit(served, "drop", "--all") == (0, "1 dropped\n")
        assert (await nearhit(served, "drop"))[0] == 2
