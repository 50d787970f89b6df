"""The provider's own id of a request is in the log and in a header, so that its support can be asked."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.observability.access_log import AccessLog
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until

HEADER = "x-nearhit-upstream-request-id"
HIDDEN = EXACT_CACHE.replace("match: {}", "match: {}\n    expose_headers: false")


class Log:
    """The access log of a gateway."""

    def __init__(self) -> None:
        self._written = io.StringIO()
        self.log = AccessLog(self._written)

    @property
    def lines(self) -> list[dict[str, Any]]:
        self.log.flush()
        return [json.loads(line) for line in self._written.getvalue().splitlines()]

    @property
    def ids(self) -> list[str | None]:
        return [line.get("upstream_request_id") for line in self.lines]


@asynccontextmanager
async def before(
    upstream: Any, folder: Path, policy: str = EXACT_CACHE, **backend: Any
) -> AsyncIterator[tuple[Served, Log]]:
    log = Log()
    config = config_of(folder, {"main": {"adapter": "openai", "url": upstream.url, **backend}})
    async with gateway_of(config, policy, access_log=log.log) as served:
        yield served, log


def answer_with(upstream: Upstream, headers: dict[str, str], status: int = 200) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path != "/v1/chat/completions":
            return web.json_response({"object": "file"}, headers=headers)
        if status != 200:
            return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)
        if call.get("stream"):
            return await stream(request, call, "a b c", headers=headers)
        return web.json_response(completion(call, "a b c"), headers=headers)

    upstream.answer = answer


@pytest.mark.parametrize("client", ["own", "aiohttp"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_provider_s_id_is_in_the_log_and_in_a_header_of_its_own(
    upstream: Upstream, tmp_path: Path, client: str, stream: bool
) -> None:
    answer_with(upstream, {"x-request-id": "req_4f1c"})
    async with before(upstream, tmp_path, client=client) as (served, log):
        answer = await served.chat("hello", stream=stream, headers={"x-request-id": "mine"})
        assert (answer.status, answer.headers[HEADER], answer.headers["x-request-id"]) == (200, "req_4f1c", "mine")
        await until(lambda: log.lines)
        (line,) = log.lines
        assert (line["id"], line["upstream_request_id"]) == ("mine", "req_4f1c")


async def test_a_hit_has_no_id_of_a_provider(upstream: Upstream, tmp_path: Path) -> None:
    answer_with(upstream, {"x-request-id": "req_4f1c"})
    async with before(upstream, tmp_path) as (served, log):
        for _ in range(3):
            answer = await served.chat("hello")
        assert answer.cache_status.startswith("nearhit; hit; detail=exact")
        assert HEADER not in answer.headers
        assert log.ids == ["req_4f1c", None, None]


async def test_a_route_without_exposed_headers_has_it_in_the_log_alone(upstream: Upstream, tmp_path: Path) -> None:
    answer_with(upstream, {"x-request-id": "req_4f1c"})
    async with before(upstream, tmp_path, HIDDEN) as (served, log):
        answers = [await served.chat("hello"), await served.chat("and again", stream=True)]
        answers.append(await served.get("/v1/files/file-1"))
        assert all(HEADER not in answer.headers for answer in answers)
        assert log.ids == ["req_4f1c"] * 3


@pytest.mark.parametrize("name", ["request-id", "Apim-Request-Id", "x-amzn-RequestId", "x-goog-request-id"])
async def test_every_provider_s_header_is_read(upstream: Upstream, tmp_path: Path, name: str) -> None:
    answer_with(upstream, {name: "a1b2c3d4-0000"})
    async with before(upstream, tmp_path, NO_CACHE) as (served, log):
        assert (await served.chat("hello")).headers[HEADER] == "a1b2c3d4-0000"
        assert log.ids == ["a1b2c3d4-0000"]


@pytest.mark.parametrize("value", ["x" * 129, "two words", 'quo"te', "naïve", "a,b", ""])
async def test_a_text_that_is_no_id_is_dropped_and_the_next_header_counts(
    upstream: Upstream, tmp_path: Path, value: str
) -> None:
    answer_with(upstream, {"x-request-id": value, "apim-request-id": "azure-1"})
    async with before(upstream, tmp_path, NO_CACHE) as (served, log):
        assert (await served.chat("hello")).headers[HEADER] == "azure-1"
        answer_with(upstream, {"x-request-id": value})
        assert HEADER not in (await served.chat("hello")).headers
        assert log.ids == ["azure-1", None]


async def test_an_upstream_cannot_set_the_gateway_s_header_itself(upstream: Upstream, tmp_path: Path) -> None:
    answer_with(upstream, {HEADER: "forged"})
    async with before(upstream, tmp_path) as (served, log):
        assert HEADER not in (await served.chat("hello")).headers
        assert log.ids == [None]


async def test_a_refusal_and_a_pass_through_have_the_provider_s_id(upstream: Upstream, tmp_path: Path) -> None:
    answer_with(upstream, {"x-request-id": "req_400"}, status=400)
    async with before(upstream, tmp_path) as (served, log):
        answers = [await served.chat("hello"), await served.get("/v1/files/file-1")]
        assert [(each.status, each.headers[HEADER]) for each in answers] == [(400, "req_400"), (200, "req_400")]
        assert log.ids == ["req_400", "req_400"]


async def test_an_answer_that_the_gateway_cannot_read_has_the_provider_s_id(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"neither": "a message"}, headers={"request-id": "req_011"})

    upstream.answer = answer
    async with before(upstream, tmp_path, adapter="anthropic") as (served, log):
        broken = await served.chat("hello")
        assert (broken.status, broken.headers[HEADER]) == (502, "req_011")
        assert log.ids == ["req_011"]


async def test_a_failure_that_is_sent_again_has_its_id_in_the_log(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer_with(upstream, {"x-request-id": "req_503"}, status=503)
    failing: Any = upstream.answer

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if len(upstream.calls) == 1:
            return await failing(request, call)
        return web.json_response(completion(call, "a b c"), headers={"x-request-id": "req_200"})

    upstream.answer = answer
    async with before(upstream, tmp_path) as (served, log):
        assert (await served.chat("hello")).headers[HEADER] == "req_200"
        assert log.ids == ["req_200"]
    (record,) = [each for each in caplog.records if each.message == "retrying the call"]
    assert vars(record)["fields"]["upstream_request_id"] == "req_503"


async def test_those_who_share_a_call_have_its_id(upstream: Upstream, tmp_path: Path) -> None:
    answer_with(upstream, {"x-request-id": "req_4f1c"})
    upstream.gate.clear()
    async with before(upstream, tmp_path) as (served, log):
        waiting = [asyncio.create_task(served.chat("hello")) for _ in range(2)]
        await until(lambda: aboard(served) == 2)
        upstream.gate.set()
        answers = await asyncio.gather(*waiting)
        assert len(upstream.calls) == 1
        assert [each.headers[HEADER] for each in answers] == ["req_4f1c"] * 2
        assert log.ids == ["req_4f1c"] * 2


async def test_a_websocket_has_the_id_of_its_handshake_in_the_log(tmp_path: Path) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        socket.headers["x-request-id"] = "req_ws"
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    application = web.Application()
    application.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = Upstream(url="http://{}:{}/v1".format(*runner.addresses[0][:2]))
    try:
        async with before(upstream, tmp_path, NO_CACHE) as (served, log):
            async with served.session.ws_connect(f"{served.url}/v1/realtime") as socket:
                await socket.send_str("a")
                message = await socket.receive()
                assert message.type is aiohttp.WSMsgType.TEXT
            await until(lambda: log.lines)
            assert log.ids == ["req_ws"]
    finally:
        await runner.cleanup()
