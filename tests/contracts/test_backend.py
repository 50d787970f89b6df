"""What every backend keeps to: HTTP, in either of two protocols, and Triton, the real ones, over real sockets, and
models in this process. They are asked in OpenAI's, which is another one to Anthropic's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from multidict import CIMultiDict
from yarl import URL

from gateway.adapters.onnx.model_dir import ModelDir
from gateway.adapters.onnx.model_files import MODEL, default_model_dir
from gateway.adapters.system.clock import SystemClock
from gateway.config import OpenAIBackendConfig, ServerConfig, Timeouts
from gateway.context import Backend, RequestContext
from gateway.dialects.openai.dialect import OpenAI
from gateway.errors import BackendError
from gateway.features.onnx_backend.backend import OnnxBackend
from gateway.features.onnx_backend.text_models import SentenceEmbedder
from gateway.features.triton.backend import TritonBackend
from gateway.features.triton.settings import GrpcUpstream, TritonBackendConfig
from gateway.messages import EventStream, FullBody
from gateway.streams import BufferedBody, close_body
from gateway.upstream.aiohttp_session import AiohttpSession
from gateway.upstream.http_backend import Account, HttpBackend
from gateway.upstream.http_client import AiohttpClient, Http1Client, HttpClient
from tests.fixtures.anthropic_upstream import anthropic
from tests.fixtures.onnx_models import classifier, onnx
from tests.fixtures.triton import RunningTriton, free_ports
from tests.fixtures.upstream import Upstream

CLIENTS = {"http": "own", "aiohttp": "aiohttp"}
CONNECT_S = 10.0
QUICK = Timeouts.model_validate({"connect": f"{CONNECT_S:g}s", "first_byte": "10s", "idle": "10s", "total": "20s"})


def http_backend(url: str, speaks: str = "openai", *, client: str = "own") -> HttpBackend:
    session, origin = AiohttpSession(CONNECT_S, 4), str(URL(url).origin())
    asking: HttpClient = AiohttpClient(origin, session)
    if client == "own":
        asking = Http1Client(origin, connect_s=CONNECT_S, max_connections=4)
    return HttpBackend(
        "b",
        url,
        OpenAIBackendConfig.model_validate({"adapter": speaks, "url": url, "max_concurrency": 4, "timeouts": QUICK}),
        client=asking,
        session=session,
        account=Account("k"),
        server=ServerConfig(),
        clock=SystemClock(),
    )


def triton_backend(port: int) -> TritonBackend:
    url = f"grpc://127.0.0.1:{port}"
    return TritonBackend(
        "b",
        GrpcUpstream(url=url),
        TritonBackendConfig(
            adapter="triton", url=url, model="light", embedding_model="embedder", max_concurrency=4, timeouts=QUICK
        ),
        SystemClock(),
    )


def onnx_backend(task: str) -> OnnxBackend:
    if task == "embed":
        return onnx(SentenceEmbedder(ModelDir(default_model_dir() / MODEL), threads=1), timeouts=QUICK)
    return onnx(classifier(), timeouts=QUICK)


@asynccontextmanager
async def closed_at_end(backend: Backend) -> AsyncIterator[Backend]:
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture(params=["http", "aiohttp", "anthropic", "triton", "onnx"])
def make(request: pytest.FixtureRequest) -> Callable[[Upstream], Backend]:
    """Synchronous: the session's Triton is started outside of the tests' loops, and only for those that need it."""
    if request.param in ("http", "aiohttp"):
        return lambda upstream: http_backend(upstream.url, client=CLIENTS[request.param])
    if request.param == "anthropic":
        return lambda upstream: http_backend(anthropic(upstream).url, "anthropic")
    if request.param.startswith("onnx"):
        return lambda _: onnx_backend(request.param.removeprefix("onnx-"))
    triton: RunningTriton = request.getfixturevalue("triton")
    return lambda _: triton_backend(triton.grpc_port)


@pytest.fixture
async def backend(make: Callable[[Upstream], Backend], upstream: Upstream) -> AsyncIterator[Backend]:
    async with closed_at_end(make(upstream)) as made:
        yield made


@pytest.fixture(params=["http", "aiohttp", "triton"])
async def absent(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """One behind which nobody listens."""
    (port,) = free_ports(1)
    url, param = f"http://127.0.0.1:{port}/v1", request.param
    made = triton_backend(port) if param == "triton" else http_backend(url, client=CLIENTS[param])
    async with closed_at_end(made):
        yield made


def request_of(path: str = "/v1/chat/completions", **body: Any) -> RequestContext:
    clock = SystemClock()
    request = RequestContext(
        request_id="r1",
        method="POST",
        path=path,
        query="",
        headers=CIMultiDict(),
        body_source=BufferedBody(),
        clock=clock,
    )
    fields = (
        {"model": "m", **body}
        if body
        else {"model": "m", "messages": [{"role": "user", "content": "What is a scope?"}]}
    )
    request.call = OpenAI().parse(path, orjson.dumps(fields), {})
    return request


def streamed() -> RequestContext:
    return request_of(messages=[{"role": "user", "content": "What is a scope?"}], stream=True)


async def test_a_whole_answer_is_a_whole_body_in_the_dialects_form(backend: Backend) -> None:
    response = await backend.send(request_of())
    assert response.status == 200
    assert isinstance(response.body, FullBody)
    body = orjson.loads(response.body.data)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"]
    assert backend.occupancy.inflight == 0


async def test_a_stream_is_events_that_add_up_to_a_complete_answer(backend: Backend) -> None:
    request = streamed()
    response = await backend.send(request)
    assert isinstance(response.body, EventStream)
    payload = [event.data async for event in response.body.events]
    assert payload[-1] == b"[DONE]"
    assert request.call is not None
    whole = orjson.loads(request.call.dialect.whole(request.call, payload))
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert backend.occupancy.inflight == 0


async def test_a_stream_holds_its_place_until_it_is_closed(backend: Backend) -> None:
    response = await backend.send(streamed())
    assert backend.occupancy.inflight == 1
    await close_body(response.body)
    await close_body(response.body)  # twice does no harm
    assert backend.occupancy.inflight == 0


async def test_a_stream_that_was_read_in_part_can_be_given_up(backend: Backend) -> None:
    response = await backend.send(streamed())
    assert isinstance(response.body, EventStream)
    await anext(response.body.events)
    await close_body(response.body)
    assert backend.occupancy.inflight == 0


@pytest.mark.parametrize(
    "make", ["http", "aiohttp", "triton", "onnx-embed"], indirect=True
)  # Anthropic's protocol has no embeddings
async def test_texts_are_embedded_in_their_order(backend: Backend) -> None:
    response = await backend.send(request_of("/v1/embeddings", input=["one", "two three four", "one"]))
    assert isinstance(response.body, FullBody)
    vectors = [item["embedding"] for item in orjson.loads(response.body.data)["data"]]
    assert len(vectors) == 3
    assert vectors[0] == pytest.approx(vectors[2])
    assert vectors[0] != pytest.approx(vectors[1])


async def test_it_lists_models_as_openai_objects(backend: Backend) -> None:
    models = await backend.models(request_of())
    assert models
    assert all(isinstance(model["id"], str) for model in models)


async def test_it_is_ready_when_somebody_answers(backend: Backend) -> None:
    assert await backend.ready()


async def test_nobody_there_is_an_error_after_which_another_backend_may_be_asked(absent: Backend) -> None:
    async with asyncio.timeout(15):
        with pytest.raises(BackendError) as error:
            await absent.send(request_of())
    assert error.value.retryable
    assert error.value.status in (502, 504)
    assert absent.occupancy.inflight == 0


async def test_nobody_there_is_not_ready_and_asking_never_raises(absent: Backend) -> None:
    async with asyncio.timeout(15):
        assert not await absent.ready()
