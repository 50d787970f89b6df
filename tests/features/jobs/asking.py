"""What tests of jobs ask a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.features.jobs.redis_batches import RedisBatches
from gateway.features.jobs.redis_jobs import RedisJobs
from tests.fixtures.gateways import Answer, Served
from tests.fixtures.upstream import Upstream

KEY = {"JOBS_KEY": "0123456789abcdef0123456789abcdef"}
ALICE = {"Authorization": "Bearer alice"}
BOB = {"Authorization": "Bearer bob"}


def main_of(upstream: Upstream, **more: Any) -> dict[str, Any]:
    return {"main": {"adapter": "openai", "url": upstream.url, **more}}


def jobs_of(served: Served) -> RedisJobs:
    return RedisJobs(served.gateway.stores.redis, served.gateway.stores.client)


def batches_of(served: Served) -> RedisBatches:
    return RedisBatches(served.gateway.stores.redis, served.gateway.stores.client)


def chat(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


async def submit(served: Served, question: str, headers: Mapping[str, str] | None = None, **fields: Any) -> str:
    """-> the job's id."""
    body = {"path": "/v1/chat/completions", "body": chat(question), **fields}
    answer = await served.post("/v1/jobs", body, headers)
    assert answer.status == 202, answer.body
    return str(answer.json["id"])


async def delete(served: Served, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    async with served.session.delete(served.url + path, headers=headers) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def over(
    served: Served, job: str, headers: Mapping[str, str] | None = None, timeout_s: float = 120.0
) -> dict[str, Any]:
    """What is said of it once it is over. Asked for again and again, as clients do: its worker may be elsewhere."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = await served.get(f"/v1/jobs/{job}", headers)
            assert answer.status == 200, answer.body
            if answer.json["status"] not in ("queued", "running"):
                found: dict[str, Any] = answer.json
                return found
            await asyncio.sleep(0.02)
