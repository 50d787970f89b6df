"""A request that may not be repeated reaches a backend once, however its call ends and whoever would try again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.features.jobs.asking import over
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.http_clients import CLIENTS
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, WireUpstream, wire_upstream

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
TWO = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")
CASCADE = NO_CACHE.replace(
    "{backend: main}",
    "{light: main, large: other, escalate_above: 0, cascade: {check: schema}}",
)


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    body: Any
    adapter: str = "openai"


INFER = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
ONCE = {
    "background": Request("/v1/responses", {"model": "m", "input": "hello", "background": True}),
    "background stream": Request("/v1/responses", {"model": "m", "input": "hi", "background": True, "stream": True}),
    "conversation": Request("/v1/responses", {"model": "m", "input": "hello", "conversation": "conv_1"}),
    "unclaimed path": Request("/v1/videos", {"model": "m", "prompt": "a fjord"}),
    "unclaimed path without a body": Request("/v1/responses/resp_1/cancel", b""),
    "sequence": Request("/v2/models/m/infer", {**INFER, "parameters": {"sequence_id": 7}}, "kserve"),
    "named sequence": Request("/v2/models/m/infer", {**INFER, "parameters": {"sequence_id": "s"}}, "kserve"),
    "generate": Request("/v2/models/m/generate", {"text_input": "hi", "parameters": {"sequence_id": 7}}, "kserve"),
    "generate stream": Request("/v2/models/m/generate_stream", {"text_input": "hi", "sequence_id": 7}, "kserve"),
}
SELF_CONTAINED = {"picture": Request("/v1/images/generations", {"model": "m", "prompt": "a fjord"})}
AGAIN = {
    "chat": Request("/v1/chat/completions", CHAT),
    "response": Request("/v1/responses", {"model": "m", "input": "hello"}),
    "infer": Request("/v2/models/m/infer", {**INFER, "parameters": {"sequence_id": 0}}, "kserve"),
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def wires() -> AsyncIterator[list[WireUpstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(wire_upstream()) for _ in range(2)]


def backends(wires: list[WireUpstream], adapter: str, client: str = "own", **keys: Any) -> dict[str, Any]:
    return {
        name: {
            "adapter": adapter,
            "url": wire.url.removesuffix("/v1") if adapter == "kserve" else wire.url,
            "client": client,
            **keys,
        }
        for name, wire in zip(("main", "other"), wires, strict=True)
    }


def closing_from(server: WireUpstream, count: int) -> None:
    """Answer the first requests; close the connections of later ones without an answer."""

    async def script(wire: Wire, _: Message) -> None:
        if len(server.requests) >= count:
            wire.writer.close()
        else:
            await wire.send(OK)

    server.script = script


async def ask(served: Served, request: Request, headers: dict[str, str] | None = None) -> int:
    return (await served.post(request.path, request.body, headers)).status


def retries(served: Served) -> dict[str, float]:
    return {outcome: count for (_, outcome), count in served.gateway.parts.telemetry.retries.values.items()}


@pytest.mark.parametrize("request_", [*ONCE.values(), *SELF_CONTAINED.values()], ids=[*ONCE, *SELF_CONTAINED])
@pytest.mark.parametrize("policy", [NO_CACHE, BOTH_CACHES, TWO], ids=["uncached", "cached", "fallback"])
async def test_a_call_that_may_not_be_repeated_is_sent_once_also_on_a_kept_connection(
    wires: list[WireUpstream], tmp_path: Path, client: str, request_: Request, policy: str
) -> None:
    main, other = wires
    closing_from(main, 2)
    other.answer(OK)
    async with gateway_of(config_of(tmp_path, backends(wires, request_.adapter, client)), policy) as served:
        await served.get("/v2/health/ready" if request_.adapter == "kserve" else "/v1/files")
        assert await ask(served, request_) == 502
        assert (len(main.requests), len(other.requests)) == (2, 0)
        assert retries(served) == {}


@pytest.mark.parametrize("status", [429, 500, 503, 529])
@pytest.mark.parametrize("request_", ONCE.values(), ids=ONCE)
async def test_an_answer_to_a_call_that_may_not_be_repeated_is_the_answer(
    wires: list[WireUpstream], tmp_path: Path, request_: Request, status: int
) -> None:
    main, other = wires
    main.answer(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\n{}" % status)
    other.answer(OK)
    async with gateway_of(config_of(tmp_path, backends(wires, request_.adapter)), TWO) as served:
        assert await ask(served, request_) == status
        assert (len(main.requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize("request_", AGAIN.values(), ids=AGAIN)
async def test_a_call_that_may_be_repeated_is_sent_once_more_and_counted_as_a_retry(
    wires: list[WireUpstream], tmp_path: Path, client: str, request_: Request
) -> None:
    main, closed = wires[0], False

    async def script(wire: Wire, _: Message) -> None:
        nonlocal closed
        if len(main.requests) == 2:
            closed = True
            wire.writer.close()
        else:
            await wire.send(OK)

    main.script = script
    async with gateway_of(config_of(tmp_path, backends(wires, request_.adapter, client)), NO_CACHE) as served:
        await served.get("/v2/health/ready" if request_.adapter == "kserve" else "/v1/files")
        assert await ask(served, request_) in (200, 502)  # the answer is none of the dialect
        assert closed
        assert len(main.requests) == 3
        assert retries(served) == {"reconnected": 1.0}


async def test_where_the_configuration_wants_no_retries_a_kept_connection_is_none_either(
    wires: list[WireUpstream], tmp_path: Path, client: str
) -> None:
    main = wires[0]
    closing_from(main, 2)
    config = config_of(tmp_path, backends(wires, "openai", client, retries={"budget": 0}))
    async with gateway_of(config, NO_CACHE) as served:
        await served.get("/v1/files")
        assert await ask(served, AGAIN["chat"]) == 502
        assert len(main.requests) == 2
        assert retries(served) == {"budget": 2.0}, "the transport's and the pool's"


async def test_a_streamed_upload_whose_connection_closes_is_not_sent_again(
    wires: list[WireUpstream], tmp_path: Path, client: str
) -> None:
    main, other = wires
    closing_from(main, 2)
    other.answer(OK)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield bytes(65536)

    async with gateway_of(config_of(tmp_path, backends(wires, "openai", client)), TWO) as served:
        await served.get("/v1/files")
        async with served.session.put(served.url + "/v1/files/f", data=pieces()) as response:
            assert response.status == 502
        assert (len(main.requests), len(other.requests)) == (2, 0)


async def test_a_cascade_tries_no_light_model_first_where_two_calls_would_be_two_effects(
    wires: list[WireUpstream], tmp_path: Path
) -> None:
    for wire in wires:
        wire.answer(OK)
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "required": ["a"]}}}
    body = {"model": "m", "input": "hello", "background": True, "text": form}
    async with gateway_of(config_of(tmp_path, backends(wires, "openai")), CASCADE) as served:
        await served.post("/v1/responses", body)
        assert sum(len(wire.requests) for wire in wires) == 1


async def submitted(served: Served, request: Request) -> str:
    answer = await served.post("/v1/jobs", {"path": request.path, "body": request.body})
    assert answer.status == 202, answer.body
    return str(answer.json["id"])


JOBS = {name: ONCE[name] for name in ("background", "unclaimed path")}


@pytest.mark.parametrize("request_", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("status", [None, 500, 503])
async def test_a_job_that_may_be_sent_only_once_is_a_dead_letter_after_its_only_attempt(
    wires: list[WireUpstream], tmp_path: Path, request_: Request, status: int | None
) -> None:
    main = wires[0]
    if status is None:
        closing_from(main, 1)
    else:
        main.answer(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\n{}" % status)
    async with gateway_of(config_of(tmp_path, backends(wires, request_.adapter)), NO_CACHE) as served:
        job = await over(served, await submitted(served, request_))
        assert (job["status"], job["attempts"]) == ("failed", 1)
        assert "not sent again" in job["error"]
        assert len(main.requests) == 1


async def test_a_job_that_was_refused_for_now_is_tried_again_for_nothing_was_done(
    wires: list[WireUpstream], tmp_path: Path
) -> None:
    main = wires[0]

    async def script(wire: Wire, _: Message) -> None:
        refusal = b"HTTP/1.1 429 No\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}"
        await wire.send(refusal if len(main.requests) == 1 else OK)

    main.script = script
    async with gateway_of(config_of(tmp_path, backends(wires, "openai")), NO_CACHE) as served:
        job = await over(served, await submitted(served, ONCE["unclaimed path"]))
        assert (job["status"], len(main.requests)) == ("completed", 2)


async def test_a_job_whose_gateway_stops_within_its_only_call_is_not_sent_by_the_next_one(
    wires: list[WireUpstream], tmp_path: Path
) -> None:
    main, arrived = wires[0], asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        arrived.set()
        await wire.rest()

    main.script = script
    config = config_of(tmp_path, backends(wires, "openai"))
    async with gateway_of(config, NO_CACHE) as served:
        jobs = {name: await submitted(served, request) for name, request in {**JOBS, "chat": AGAIN["chat"]}.items()}
        await until(lambda: len(main.requests) == 3)
    main.answer(OK)
    async with gateway_of(config, NO_CACHE) as served:
        assert (await over(served, jobs["chat"]))["status"] == "completed"
        for name in JOBS:
            assert (await over(served, jobs[name]))["status"] == "failed"
        assert len(main.requests) == 4
