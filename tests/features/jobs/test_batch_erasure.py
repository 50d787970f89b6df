"""An erasure takes the lines of a user out of files and batches, before, while and after they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.features.erasure.test_erasure import bytes_below, erase
from tests.features.jobs.asking import KEY, chat, main_of
from tests.features.jobs.test_batches import client_of, create, ended, line, lines
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

CANARY = b"canary"


@pytest.fixture
async def batching(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    jobs = {"batches": True, "key_env": "JOBS_KEY", "max_batch": 400, "workers": 2}
    async with gateway_of(config_of(tmp_path, main_of(upstream), jobs=jobs), NO_CACHE, KEY) as served:
        yield served


def of(number: int, user: str) -> str:
    text = "the canary of alice" if user == "alice" else f"a question of {user}"
    return line(number, custom_id=f"{text} {number}", body=chat(f"{text} {number}", user=user))


def mixed(count: int) -> list[str]:
    return [of(i, ("alice", "bob", "carol")[i % 3]) for i in range(count)]


async def on_disk(served: Served, folder: Path) -> bytes:
    return await asyncio.to_thread(bytes_below, folder, ["store"])


async def counts_of(served: Served, **more: Any) -> dict[str, int]:
    counts: dict[str, int] = (await erase(served, "user:alice", **more))["report"]["counts"]
    return counts


async def test_lines_go_from_the_files_of_a_batch_that_has_ended(batching: Served, tmp_path: Path) -> None:
    async with client_of(batching) as client:
        batch = await ended(client, (await create(client, *mixed(9))).id)
        assert CANARY in await on_disk(batching, tmp_path)
        counted = await counts_of(batching, dry_run=True)
        counts = await counts_of(batching)
        assert (counts["files"], counts["jobs"]) == (counted["files"], counted["jobs"]) == (6, 3)
        assert CANARY not in await on_disk(batching, tmp_path)
        for file in (batch.input_file_id, batch.output_file_id):
            assert len([one for one in await lines_of(client, file) if one]) == 6
        assert (await client.files.retrieve(batch.input_file_id)).bytes > 0
        again = await counts_of(batching)
        assert again["files"] == 0


async def lines_of(client: Any, file: str | None) -> list[str]:
    text: str = (await client.files.content(file)).text
    return text.splitlines()


async def test_a_batch_that_runs_goes_on_without_the_lines(
    batching: Served, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.gate.clear()
    async with client_of(batching) as client:
        batch = await create(client, *mixed(30))
        await until(lambda: len(upstream.chats) == 2)
        counts = await counts_of(batching)
        assert counts["files"] == 10
        upstream.gate.set()
        done = await ended(client, batch.id)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (20, 20, 0)
        found = await lines(client, done.output_file_id)
        assert [one["custom_id"] for one in found] == [
            f"a question of {user} {i}" for i in range(30) if (user := ("alice", "bob", "carol")[i % 3]) != "alice"
        ]
        assert done.error_file_id is None
        assert sum("canary" in str(call.body) for call in upstream.chats) <= 1, "only what was under way"
        await counts_of(batching)
        assert CANARY not in await on_disk(batching, tmp_path)


async def test_a_batch_of_one_user_alone_ends(batching: Served, upstream: Upstream, tmp_path: Path) -> None:
    upstream.gate.clear()
    async with client_of(batching) as client:
        batch = await create(client, *(of(i, "alice") for i in range(5)))
        await until(lambda: len(upstream.chats) == 2)
        assert (await counts_of(batching))["files"] == 5
        upstream.gate.set()
        done = await ended(client, batch.id)
        assert done.status == "failed"
        await counts_of(batching)
        assert CANARY not in await on_disk(batching, tmp_path)


async def test_files_of_which_a_line_cannot_be_told_are_in_the_report(batching: Served, tmp_path: Path) -> None:
    async with client_of(batching) as client:
        batch = await ended(client, (await create(client, *mixed(3))).id)
        await client.files.delete(batch.input_file_id)
        notes = (await erase(batching, "user:alice"))["report"]["notes"]
        assert any(note.startswith("not reached: 1 output files") for note in notes)
        notes = (await erase(batching, "key:ci"))["report"]["notes"]
        assert any(note.startswith("not reached: the lines of files and batches of an API key") for note in notes)
        notes = (await erase(batching, "user:alice", tenant="somebody else"))["report"]["notes"]
        assert not any("output files" in note for note in notes)
