"""Files and batches through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch
from redis import Redis

from gateway.adapters.redis.embedded_valkey import socket_path
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.features.jobs import batch_endpoint
from gateway.features.jobs.batches import STEP_BYTES, STEP_LINES, BatchReader, endpoint_of
from gateway.features.jobs.store import JobBatch as Stored
from tests.features.jobs.asking import KEY, batches_of, chat, jobs_of, main_of
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream

CHAT = "/v1/chat/completions"


def line(number: int, **more: Any) -> str:
    return json.dumps(
        {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": chat(f"question {number}")} | more
    )


def client_of(served: Served, key: str = "alice") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url=served.url + "/v1", max_retries=0)


async def create(client: openai.AsyncOpenAI, *lines: str) -> Batch:
    file = await client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def ended(client: openai.AsyncOpenAI, batch: str) -> Batch:
    async with asyncio.timeout(120):
        while True:
            found = await client.batches.retrieve(batch)
            if found.status in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.05)


async def batch_of(served: Served, identity: str) -> Stored:
    found = await batches_of(served).batch(identity)
    assert found is not None
    return found


async def lines(client: openai.AsyncOpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    return [json.loads(one) for one in (await client.files.content(file)).text.splitlines()]


@pytest.fixture
async def batching(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, main_of(upstream), jobs={"batches": True, "key_env": "JOBS_KEY", "max_batch": 400})
    async with gateway_of(config, NO_CACHE, KEY) as served:
        yield served


async def test_a_batch_of_openais_client_is_answered(batching: Served, upstream: Upstream) -> None:
    async with client_of(batching) as client:
        file = await client.files.create(file=("in.jsonl", "\n".join(map(line, range(25))).encode()), purpose="batch")
        assert (file.filename, file.purpose, file.status) == ("in.jsonl", "batch", "processed")
        assert (await client.files.retrieve(file.id)).bytes == file.bytes
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"run": "7"}
        )
        assert batch.status == "validating"
        done = await ended(client, batch.id)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (25, 25, 0)
        assert (done.metadata, done.error_file_id) == ({"run": "7"}, None)
        found = await lines(client, done.output_file_id)
        assert [one["custom_id"] for one in found] == [f"r{i}" for i in range(25)]
        said = found[7]["response"]["body"]["choices"][0]["message"]["content"]
        assert said == "upstream answers: question 7"
        assert {call.headers["Authorization"] for call in upstream.chats} == {"Bearer alice"}
        assert [one.id async for one in client.batches.list()] == [batch.id]
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)


async def test_what_fails_is_in_the_error_file(batching: Served) -> None:
    async with client_of(batching) as client:
        done = await ended(client, (await create(client, line(0), line(1, body={"model": 7}))).id)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (1, 1)
        (failed,) = await lines(client, done.error_file_id)
        assert (failed["custom_id"], failed["response"]["status_code"]) == ("r1", 400)


async def test_a_file_with_faults_fails_the_batch_and_says_where(batching: Served, upstream: Upstream) -> None:
    async with client_of(batching) as client:
        batch = await create(client, line(0), "{", line(0), line(3, url="/v1/embeddings"))
        done = await ended(client, batch.id)
        assert done.status == "failed"
        assert done.errors is not None
        assert [(fault.line, fault.code) for fault in done.errors.data or ()] == [
            (2, "invalid_json_line"),
            (3, "duplicate_custom_id"),
            (4, "mismatched_endpoint"),
        ]
        assert upstream.calls == []


async def test_a_cancelled_batch_keeps_what_was_answered(batching: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    async with client_of(batching) as client:
        batch = await create(client, *map(line, range(300)))
        await upstream.arrived.wait()
        with pytest.raises(openai.UnprocessableEntityError):
            await client.files.delete(batch.input_file_id)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        done = await ended(client, batch.id)
        assert done.status == "cancelled"
        found = await lines(client, done.error_file_id)
        assert len(found) == 300
        assert {one["error"]["code"] for one in found} == {"batch_cancelled"}
        counts = await jobs_of(batching).counts()
        assert (counts.queued, counts.running) == (0, 0)


async def test_files_and_batches_are_their_tenants_own(batching: Served, upstream: Upstream) -> None:
    async with client_of(batching) as alice, client_of(batching, "bob") as bob:
        batch = await create(alice, line(0))
        done = await ended(alice, batch.id)
        assert done.output_file_id is not None
        for attempt in (
            bob.batches.retrieve(batch.id), bob.batches.cancel(batch.id), bob.files.retrieve(batch.input_file_id),
            bob.files.content(done.output_file_id), bob.files.delete(batch.input_file_id),
            bob.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await attempt
        assert [one async for one in bob.batches.list()] == []
        assert [one async for one in bob.files.list()] == []


async def test_a_batch_that_has_expired_is_none_that_its_tenant_has(
    batching: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_endpoint, "MAX_BATCHES_PER_TENANT", 1)
    async with client_of(batching) as client:
        first = await create(client, line(0))
        await ended(client, first.id)
        with pytest.raises(openai.RateLimitError):
            await create(client, line(1))
        store = batches_of(batching)
        await store.close(await batch_of(batching, first.id), 0.0)  # expires at once
        second = await create(client, line(1))
        assert [one.id async for one in client.batches.list()] == [second.id]


async def test_a_batch_survives_a_gateway_that_is_killed(upstream: Upstream, tmp_path: Path) -> None:
    # An attempt is lost to each second for which a process stands still.
    jobs = {"batches": True, "visibility": "1s", "attempts": 100}
    config = write_config(tmp_path, main_of(upstream, api_key_env="OWN"), NO_CACHE, jobs=jobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN", "own")
        patch.setenv("OPENAI_API_KEY", "alice")
        upstream.gate.clear()
        async with served_by_process(config) as first, client_of(first) as client:
            batch = await create(client, *map(line, range(40)))
            await upstream.arrived.wait()
            driver = ONE_SERVER.key("batches:") + f"driver:{batch.id}"
            with Redis(unix_socket_path=str(socket_path(tmp_path / "var" / "store"))) as store:
                assert store.exists(driver)
            await first.kill()
        upstream.gate.set()
        async with served_by_process(config) as second, client_of(second) as client:
            with Redis(unix_socket_path=str(socket_path(tmp_path / "var" / "store"))) as store:
                store.expire(driver, 1)  # in 15 s by itself, which a busy machine may take to come here
            done = await ended(client, batch.id)
            assert done.status == "completed"
            assert len(await lines(client, done.output_file_id)) == 40


async def test_without_the_switch_they_pass_through(served: Served) -> None:
    answer = await served.post("/v1/batches", {"x": 1})
    assert answer.headers["x-echo-path"] == "/v1/batches"
    assert (await served.get("/v1/files/file-1")).headers["x-echo-path"] == "/v1/files/file-1"


async def test_forms_and_batches_that_are_none_are_refused(batching: Served) -> None:
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    for body, headers in ((b"x", {}), (b"--b\r\n", form), (b"--b--\r\n", form)):
        assert (await batching.post("/v1/files", body, headers)).status == 400
    for said in ({}, {"endpoint": "/v1/jobs"}, {"endpoint": CHAT}, {"endpoint": CHAT, "completion_window": "1h"}):
        assert (await batching.post("/v1/batches", said)).status == 400
    assert (await batching.get("/v1/batches?limit=0")).status == 400


def test_more_lines_than_a_batch_may_have_are_refused() -> None:
    content = "\n".join(map(line, range(11))).encode()
    assert len(read(content, 11).lines) == 11
    assert [fault.code for fault in read(content, 10).faults] == ["too_many_requests"]
    assert [fault.code for fault in read(b"\n\n", 10).faults] == ["empty_file"]
    assert [fault.code for fault in read(b"", 10).faults] == ["empty_file"]
    for reading in (read(content, 10), read(content + b"\n{}", 100)):
        assert reading.lines == []


def read(content: bytes, most: int) -> BatchReader:
    reading = BatchReader(content, CHAT, most)
    while not reading.at_end:
        reading.step()
    return reading


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("/v1/chat/%63ompletions", CHAT),
        ("/v1/x/../chat/completions/", CHAT),
        ("/v1/embeddings", "/v1/embeddings"),
        ("/v1/%62atches", None),
        ("/v1/chat/completions?a=1", None),
        (7, None),
    ],
)
def test_the_endpoint_of_a_batch_is_a_path_in_its_normal_form(endpoint: object, path: str | None) -> None:
    """What a job asks for is what limits and routes match."""
    assert endpoint_of(endpoint) == path


def test_a_line_keeps_its_integers_digit_for_digit() -> None:
    reading = read(line(0, body={"model": "m", "seed": 10**21 + 1}).encode(), 10)
    assert [each.body for each in reading.lines] == [b'{"model":"m","seed":1000000000000000000001}']


def test_a_step_reads_so_many_lines_or_bytes() -> None:
    """A large file is read in steps, and others have their turn in between."""
    long = line(1).replace('"m"', '"%s"' % ("m" * STEP_BYTES))
    for content in ("\n".join(map(line, range(STEP_LINES + 1))), "\n" * STEP_LINES, f"{long}\n{line(2)}"):
        reading = BatchReader(content.encode(), CHAT, 1000)
        reading.step()
        assert not reading.at_end
        reading.step()
        assert reading.at_end


async def test_others_have_their_turn_while_a_large_file_is_read(batching: Served) -> None:
    turns, counts = 0, list[int]()
    steps = BatchReader.step

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def counted(reading: BatchReader) -> None:
        counts.append(turns)
        steps(reading)

    many = [line(number) for number in range(5 * STEP_LINES)]
    beside = asyncio.create_task(other())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchReader, "step", counted)
        async with client_of(batching) as client:
            batch = await create(client, *many, "that is none")
            failed = await ended(client, batch.id)
    beside.cancel()
    assert failed.status == "failed"
    assert len(counts) == 6
    assert all(after > before for before, after in pairwise(counts))
