"""The official OpenAI client before a gateway whose models are behind a real Triton."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio

from tests.features.demo.test_triton_models import cancelled, metrics
from tests.fixtures.gateways import BOTH_CACHES, TIERS, Served, config_of, gateway_of
from tests.fixtures.triton import RunningTriton, free_ports
from tests.fixtures.upstream import Upstream, serving
from tests.http_server.conftest import openai_client
from tests.http_server.test_anthropic_client import client_of

# grpc.aio keeps to the loop that it was first used on, and logs errors about closed ones.
pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "What happens when the store is down?"}]}
# The demo's models wait so many milliseconds before each response: as many as the client's `max_tokens` says.
SLOW = {"tensors": {"max_tokens": "chunk_interval_ms"}}

Front = Callable[..., AbstractAsyncContextManager[tuple[Served, openai.AsyncOpenAI]]]


@pytest_asyncio.fixture(loop_scope="module")
async def front(triton: RunningTriton, tmp_path: Path) -> AsyncIterator[Front]:
    """`async with front(**backends)`: a gateway, and the official client of it. Without backends: `large` alone."""

    @asynccontextmanager
    async def build(policy: str = BOTH_CACHES, **backends: Any) -> AsyncIterator[tuple[Served, openai.AsyncOpenAI]]:
        config = config_of(tmp_path, backends or {"main": model(triton, "large")})
        async with gateway_of(config, policy) as served, openai_client(served) as client:
            yield served, client

    yield build


def model(triton: RunningTriton, name: str, **more: Any) -> dict[str, Any]:
    return {"adapter": "triton", "url": triton.url, "model": name, "embedding_model": "embedder", **more}


def nowhere() -> dict[str, Any]:
    return {"adapter": "triton", "url": f"grpc://127.0.0.1:{free_ports(1)[0]}", "model": "large"}


def inflight(served: Served) -> int:
    return sum(pool.inflight for pool in served.gateway.parts.pools.values())


async def stored(served: Served) -> int:
    return (await served.gateway.parts.store.stats()).entries


async def test_anthropics_client_is_answered_streamed_and_whole_alike(front: Front) -> None:
    asked: Any = {"model": "large", "max_tokens": 4096, **ASK}
    async with front() as (served, _), client_of(served) as client:
        async with client.messages.stream(**asked) as events:
            text = "".join([piece async for piece in events.text_stream])
            final = await events.get_final_message()
        whole = await client.messages.create(**asked)
    assert "store" in text
    assert whole.content[0].text == text == final.content[0].text
    assert (whole.stop_reason, whole.type, whole.id) == ("end_turn", "message", final.id)
    assert whole.usage.output_tokens > 0


async def test_a_response_is_answered_streamed_and_whole_alike(front: Front, triton: RunningTriton) -> None:
    ask = {"model": "m", "input": "What happens when the store is down?"}
    async with front(main=model(triton, "light")) as (_, client):
        afresh = {"extra_headers": {"Cache-Control": "no-store"}}
        whole = await client.responses.create(**ask, **afresh)
        async with client.responses.stream(**ask, **afresh) as stream:
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert len(pieces) > 2
        assert "".join(pieces) == final.output_text == whole.output_text
        assert "store" in whole.output_text
        assert (whole.status, whole.usage is not None and whole.usage.output_tokens > 0) == ("completed", True)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(**ask, previous_response_id=whole.id)


@pytest.mark.parametrize("name", ["light", "large"])
async def test_a_chat_is_answered_streamed_and_whole_alike(front: Front, triton: RunningTriton, name: str) -> None:
    async with front(main=model(triton, name)) as (_, client):
        afresh = {"extra_headers": {"Cache-Control": "no-store"}}
        whole = await client.chat.completions.create(model=name, **ASK, **afresh)
        options = {"include_usage": True}
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=name, **ASK, **afresh, stream=True, stream_options=options
            )
        ]
    pieces = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(pieces) > 2  # as the model made them, not in one piece at its end
    assert "".join(pieces) == whole.choices[0].message.content
    assert "store" in "".join(pieces)
    assert whole.choices[0].finish_reason == "stop"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0
    assert chunks[-1].usage == whole.usage
    assert whole.model == name


async def test_of_two_upstreams_the_one_that_is_there_answers_and_names_are_mapped(
    front: Front, triton: RunningTriton
) -> None:
    gone = f"grpc://127.0.0.1:{free_ports(1)[0]}"
    backend = {"adapter": "triton", "upstreams": [gone, triton.url], "model": "large", "models": {"gpt*": "light"}}
    before = [await succeeded(triton, name) for name in ("light", "large")]
    async with front(main=backend) as (_, client):
        for name in ("gpt-4o", "other"):
            for _ in range(2):
                afresh = {"extra_headers": {"Cache-Control": "no-store"}}
                answer = await client.chat.completions.create(model=name, **ASK, **afresh)
                assert (answer.model, answer.choices[0].finish_reason) == (name, "stop")
    after = [await succeeded(triton, name) for name in ("light", "large")]
    async with asyncio.timeout(120):  # Triton counts what it has answered
        while sum(after) < sum(before) + 4:
            after = [await succeeded(triton, name) for name in ("light", "large")]
    assert after == [count + 2 for count in before]


async def succeeded(triton: RunningTriton, model: str) -> float:
    """How many calls the model has answered."""
    found = re.search(rf'nv_inference_request_success{{model="{model}",version="1"}} (\S+)', await metrics(triton))
    return float(found[1]) if found else 0.0


async def test_the_first_piece_arrives_while_the_model_still_writes(front: Front, triton: RunningTriton) -> None:
    """Each response takes half a second, and there are many."""
    async with (
        front(main=model(triton, "large", **SLOW)) as (served, client),
        await client.chat.completions.create(model="m", **ASK, stream=True, max_tokens=500) as stream,
    ):
        assert await anext(piece async for chunk in stream if (piece := chunk.choices[0].delta.content))
        assert inflight(served) == 1


async def test_completions_are_answered(front: Front) -> None:
    async with front() as (_, client):
        question = "What happens when the store is down?"
        whole = await client.completions.create(model="m", prompt=question)
        assert "store" in whole.choices[0].text
        stream = await client.completions.create(model="m", prompt=question, stream=True)
        assert "".join([c.choices[0].text async for c in stream]) == whole.choices[0].text


async def test_a_stored_answer_is_not_asked_for_again(front: Front) -> None:
    async with front() as (_, client):
        first = await client.chat.completions.with_raw_response.create(model="m", **ASK)
        again = await client.chat.completions.with_raw_response.create(model="m", **ASK)
    assert first.headers["cache-status"] == "nearhit; fwd=miss; stored"
    assert first.headers["x-nearhit-backend"] == "main"
    assert again.headers["cache-status"].startswith("nearhit; hit; detail=exact")
    assert first.parse() == again.parse()


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_cut_by_max_tokens_says_so_and_is_not_stored(front: Front, streamed: bool) -> None:
    async with front() as (served, client):
        answer = await client.chat.completions.create(model="m", **ASK, max_tokens=3, stream=streamed)
        finishes = [c.choices[0].finish_reason async for c in answer] if streamed else [answer.choices[0].finish_reason]
        assert finishes[-1] == "length"
        assert await stored(served) == 0


async def test_a_client_that_leaves_stops_the_model(front: Front, triton: RunningTriton) -> None:
    """Each response takes half a second: the answer would last for many."""
    before = await cancelled(triton, "large")
    async with front(main=model(triton, "large", **SLOW)) as (served, client):
        async with await client.chat.completions.create(model="m", **ASK, max_tokens=500, stream=True) as chunks:
            await anext(aiter(chunks))
            assert inflight(served) == 1
        async with asyncio.timeout(120):
            while await cancelled(triton, "large") == before:
                pass  # every turn is a round trip to Triton
            while inflight(served):
                await served.get("/healthz")
        assert await stored(served) == 0


async def test_a_client_that_waits_for_the_whole_may_leave_too(front: Front, triton: RunningTriton) -> None:
    async with front(main=model(triton, "large", **SLOW)) as (served, client):
        call = asyncio.create_task(client.chat.completions.create(model="m", **ASK, max_tokens=500))
        async with asyncio.timeout(120):
            while inflight(served) == 0:
                await served.get("/healthz")
            call.cancel()
            while inflight(served):
                await served.get("/healthz")


async def test_a_model_that_falls_silent_ends_its_stream_with_an_error(front: Front, triton: RunningTriton) -> None:
    slow = model(triton, "large", **SLOW, timeouts={"idle": "300ms"})
    async with front(main=slow) as (served, client):
        stream = await client.chat.completions.create(model="m", **ASK, max_tokens=5000, stream=True)
        with pytest.raises(openai.APIError, match="main"):
            async for _ in stream:
                pass
        assert (inflight(served), await stored(served)) == (0, 0)


@pytest.mark.parametrize("given", ["one text", ["one text", "another", "a third"]])
async def test_embeddings_are_answered_in_both_encodings(front: Front, given: str | list[str]) -> None:
    async with front() as (_, client):
        packed = await client.embeddings.create(model="embedder", input=given)
        floats = await client.embeddings.create(model="embedder", input=given, encoding_format="float")
    vectors = np.array([item.embedding for item in packed.data])
    assert vectors.shape == (1 if isinstance(given, str) else 3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(vectors, [item.embedding for item in floats.data], atol=1e-6)


async def test_token_ids_cannot_be_embedded(front: Front) -> None:
    async with front() as (_, client):
        with pytest.raises(openai.BadRequestError, match="input"):
            await client.embeddings.create(model="embedder", input=[1, 2, 3])


async def test_its_models_are_listed(front: Front) -> None:
    async with front() as (_, client):
        assert [m.id async for m in client.models.list()] == ["large", "embedder"]
        assert (await client.models.retrieve("large")).owned_by == "triton"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none-such")


async def test_a_path_that_triton_cannot_serve_is_not_found(front: Front) -> None:
    async with front() as (_, client):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.moderations.create(input="x")
    assert caught.value.type == "not_found_error"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_triton_does_not_have_is_a_clean_error(
    front: Front, triton: RunningTriton, streamed: bool
) -> None:
    async with front(main=model(triton, "none-such")) as (served, client):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", **ASK, stream=streamed)
        assert caught.value.status_code in (404, 502)
        assert caught.value.type == "upstream_error"
        assert inflight(served) == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_triton_that_is_down_is_said_quickly(front: Front, streamed: bool) -> None:
    async with front(main=nowhere()) as (served, client):
        started = time.perf_counter()
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", **ASK, stream=streamed)
        assert time.perf_counter() - started < 30, "half of what its first byte may take"
        assert (caught.value.status_code, caught.value.type) == (502, "upstream_error")
        assert inflight(served) == 0


async def test_a_triton_that_is_down_leaves_the_route_to_the_other_backend(front: Front) -> None:
    async with serving(Upstream("large")) as large:
        backends = {"light": nowhere(), "large": {"adapter": "openai", "url": large.url}}
        async with front(TIERS, **backends) as (_, client):
            answer = await client.chat.completions.with_raw_response.create(model="m", **ASK)
    assert answer.headers["x-nearhit-backend"] == "large"
    assert "large answers" in (answer.parse().choices[0].message.content or "")


async def test_the_tiers_share_one_triton(front: Front, triton: RunningTriton) -> None:
    async with front(TIERS, light=model(triton, "light"), large=model(triton, "large")) as (_, client):
        easy = await client.chat.completions.with_raw_response.create(model="m", **ASK)
        code = "Prove, step by step, and explain the trade-offs: ```def f(x): return x``` " * 30
        messages: Any = [{"role": "user", "content": code}]
        hard = await client.chat.completions.with_raw_response.create(model="m", messages=messages)
    assert (easy.headers["x-nearhit-backend"], hard.headers["x-nearhit-backend"]) == ("light", "large")
