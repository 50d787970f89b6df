"""A model's name of its clients becomes the backend's in calls that pass through, too."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.dialects.model_names import ModelNames
from gateway.dialects.named_models import model_in_body
from gateway.dialects.renamed_models import renamed_body, renamed_query
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream

NAMES = {"whisper": "openai/whisper-large-v3", "rank": "BAAI/bge-reranker-v2-m3"}
JSON = "application/json"
GLOBS = {"gpt-*": "llama-70b", **NAMES}


def gateway(upstream_url: str, tmp_path: Path, policy: str = NO_CACHE) -> Any:
    backend = {"adapter": "openai", "url": upstream_url, "model": "chat", "models": GLOBS}
    return gateway_of(config_of(tmp_path, {"main": backend}), policy)


def form(model: str = "whisper") -> aiohttp.FormData:
    data = aiohttp.FormData({"model": model, "language": "en"})
    data.add_field("file", b"RIFFxxxx", filename="a.wav", content_type="audio/wav")
    return data


def named(upstream: Upstream) -> list[str | None]:
    return [model_in_body(call.body, call.headers["Content-Type"]) for call in upstream.calls]


@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE])
async def test_the_endpoint_gets_its_own_name_of_the_model(upstream: Upstream, tmp_path: Path, policy: str) -> None:
    """With a cache some of these calls are read, and without one none is."""
    async with gateway(upstream.url, tmp_path, policy) as served:
        ranking = {"model": "rank", "query": "q", "documents": ["a"], "top_n": 1}
        await served.post("/v1/rerank", ranking)
        await served.post("/v1/score", {"model": "rank", "text_1": "a", "text_2": "b"})
        for path in ("audio/transcriptions", "audio/other"):
            async with served.session.post(f"{served.url}/v1/{path}", data=form()) as response:
                assert response.status == 200
        async with served.session.post(f"{served.url}/v1/ocr", data={"model": "rank", "a": "b c"}) as response:
            assert response.status == 200
    assert named(upstream) == [NAMES["rank"]] * 2 + [NAMES["whisper"]] * 2 + [NAMES["rank"]]
    assert upstream.calls[0].json == {**ranking, "model": NAMES["rank"]}
    assert b"RIFFxxxx" in upstream.calls[2].body and b"RIFFxxxx" in upstream.calls[3].body


async def test_a_cached_answer_is_found_by_the_name_of_the_clients(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway(upstream.url, tmp_path, EXACT_CACHE) as served:
        upstream.answer = ranked
        call = {"model": "rank", "query": "q", "documents": ["a"]}
        answers = [await served.post("/v1/rerank", call) for _ in range(2)]
        assert answers[1].cache_status.startswith("nearhit; hit; detail=exact")
        other = await served.post("/v1/rerank", {**call, "model": NAMES["rank"]})
        assert other.cache_status.startswith("nearhit; fwd=miss")


async def ranked(request: Any, call: Any) -> Any:
    return aiohttp.web.json_response({"results": [{"index": 0, "relevance_score": 0.9}]})


async def test_globs_and_the_model_of_chats_rename_no_other_call(upstream: Upstream, tmp_path: Path) -> None:
    """A picture's model is none of a backend's chats. Bytes that need no change stay as they are."""
    body = b'{"model": "gpt-image-1",  "prompt": "a fjord", "seed": 1e0}'
    async with gateway(upstream.url, tmp_path) as served:
        async with served.session.post(
            f"{served.url}/v1/images/generations", data=body, headers={"Content-Type": JSON}
        ) as response:
            assert response.status == 200
        await served.chat("hi", model="gpt-4o")
    assert upstream.calls[0].body == body
    assert upstream.calls[1].json["model"] == "llama-70b"


async def test_a_body_that_cannot_be_read_for_certain_stays_as_it_is(upstream: Upstream, tmp_path: Path) -> None:
    twice = b'{"model": "rank", "model": "rank", "query": "q"}'
    whole = b'{"model": "rank"}'
    packed = gzip.compress(whole)  # the endpoint decodes it
    async with gateway(upstream.url, tmp_path) as served:
        for body, coding in ((twice, {}), (packed, {"Content-Encoding": "gzip"}), (b"{", {}), (b"", {})):
            async with served.session.post(
                f"{served.url}/v1/score", data=body, headers={"Content-Type": JSON, **coding}
            ) as response:
                await response.read()
    assert [call.body for call in upstream.calls] == [twice, whole, b"{", b""]


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ({"session": {"model": "whisper", "x": 1}}, JSON, {"session": {"model": NAMES["whisper"], "x": 1}}),
        ({"model": "other", "session": {"model": "whisper"}}, JSON, None),
        ({"model": 3}, JSON, None),
        (["whisper"], JSON, None),
        ({"model": "rank"}, "text/plain", {"model": NAMES["rank"]}),
    ],
)
def test_the_model_of_a_body_is_where_clients_write_it(body: Any, kind: str, says: Any) -> None:
    found = renamed_body(json.dumps(body).encode(), kind, NAMES)
    assert (None if found is None else json.loads(found[0])) == says


def test_a_query_without_such_a_model_stays_as_it_is() -> None:
    assert renamed_query("model=other&a=%20b", NAMES) == "model=other&a=%20b"
    assert renamed_query("a=%20b&model=rank", NAMES) == "a=+b&model=BAAI%2Fbge-reranker-v2-m3"


def test_the_first_of_equal_names_counts() -> None:
    names = ModelNames("d", (("a", "first"), ("a", "second"), ("b*", "c"), ("[x]", "d")))
    assert names.exact == {"a": "first"}
