"""POST /admin/cache/explain: what the running gateway makes of two prompts."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, default_model_dir
from gateway.cache.links import link_of
from gateway.cache.threshold.route_control import Observation
from gateway.cache.threshold.wrong_hits import Label
from gateway.config import Config
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

TWO_ROUTES = """
version: 1
routes:
  - name: support
    match: {model: support}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 5%}}
    route: {backend: main}
  - name: plain
    match: {model: plain}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: off}
    route: {backend: main}
"""
SAME = {"stored": "How do I reset my password?", "asked": "How do I reset my own password?"}
OTHER = {"stored": "How do I turn the alarm on?", "asked": "How do I turn the alarm off?"}


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_for(upstream, tmp_path)) as gateway:
        yield gateway


def config_for(upstream: Upstream, path: Path, **sections: Any) -> Config:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    return config_of(path, backends, verifier={"adapter": "checks"}, **sections)


async def explain(served: Served, body: Any, **headers: str) -> Answer:
    given = {"data": io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())}
    url = served.admin_url + "/admin/cache/explain"
    async with served.session.post(url, headers=headers, **given) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def test_it_says_what_the_lookup_would_do(served: Served) -> None:
    answer = await explain(served, OTHER)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.headers["Cache-Control"] == "no-store"
    found = answer.json
    assert (found["route"], found["served"], found["reason"], found["veto"]) == ("default", False, "antonym", "antonym")
    assert found["features"] == {"antonym": 1.0}
    assert found["similarity"] > 0.6
    assert found["threshold"] > 0
    assert 0 <= found["probability"] <= 1


async def test_it_agrees_with_the_header_and_the_log_of_a_real_lookup(upstream: Upstream, tmp_path: Path) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config, TWO_ROUTES) as served:
        found = (await explain(served, {**SAME, "route": "plain"})).json
        await served.chat(SAME["stored"], model="plain")
        hit = await served.chat(SAME["asked"], model="plain")
        assert (hit.cache_status == "nearhit; hit; detail=semantic") is found["served"]
        if found["served"]:
            assert hit.headers["x-nearhit-similarity"] == f"{found['similarity']:.4f}"


async def test_it_shows_what_the_route_has_learnt_and_changes_nothing(upstream: Upstream, tmp_path: Path) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config, TWO_ROUTES) as served:
        before = (await explain(served, {**SAME, "route": "support"})).json
        assert (before["labels"], before["evidence_shift"]) == (0, 0.0)
        parts = served.gateway.parts
        vector = (await parts.space.embedder.embed(SAME["asked"])).vector
        parts.space.controls.of("support").learn(Observation(vector, before["score"], 0.9, Label.WRONG))
        after = (await explain(served, {**SAME, "route": "support"})).json
        assert after["labels"] == 1
        assert after["evidence_shift"] == pytest.approx(-0.3, abs=0.001)  # 0.5 * -0.9 / 1.5
        assert after["score"] == pytest.approx(before["opinion"] - 0.3, abs=0.001)
        version = parts.space.controls.of("support").version
        assert (await explain(served, {**SAME, "route": "support"})).json == after
        assert parts.space.controls.of("support").version == version
        assert not upstream.calls, "nothing is sent"
        assert parts.space.index.size == 0, "and nothing is kept"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is not valid JSON"),
        (b"[1]", "the body is no JSON object"),
        ({"stored": "a"}, "'asked' is missing, empty or no text"),
        ({"stored": "a", "asked": "b", "route": "none"}, "no route is called 'none': expected support, plain, default"),
        ({"stored": "a", "asked": "b"}, "the semantic cache of route 'default' is off"),
        (b'{"stored": "' + b"a" * 2**20 + b'", "asked": "b"}', "the body is larger than 1 MiB"),
        (b'{"stored": "\\ud800", "asked": "b"}', "the body is not valid JSON"),
    ],
    ids=["empty", "list", "no asked", "route", "off", "large", "surrogate"],
)
async def test_what_is_wrong_is_said_in_one_sentence(
    upstream: Upstream, tmp_path: Path, body: Any, sentence: str
) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config, TWO_ROUTES) as served:
        answer = await explain(served, body)
    assert answer.status == 400
    assert list(answer.json) == ["error"]
    assert answer.json["error"].startswith(sentence)


async def test_hostile_prompts_are_answered(served: Served) -> None:
    for text in ("\0", "a" * 400_000, "from " * 4000, "(" * 9000, "\U0001f600" * 500):
        answer = await explain(served, {"stored": text, "asked": text + " b"})
        assert answer.status == 200


async def test_it_is_guarded_like_the_rest_of_the_port(served: Served, upstream: Upstream, tmp_path: Path) -> None:
    assert (await explain(served, SAME, Host="evil.example")).status == 403
    auth = {"mode": "passthrough", "admin_token_env": "TOKEN"}
    config = config_for(upstream, tmp_path / "guarded", auth=auth)
    async with gateway_of(config, environ={"TOKEN": "secret"}) as guarded:
        assert (await explain(guarded, SAME)).status == 401
        assert (await explain(guarded, SAME, Authorization="Bearer secret")).status == 200
        async with guarded.session.get(guarded.admin_url + "/admin/cache/explain") as response:
            assert response.status == 401


async def test_the_prompts_are_in_no_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await explain(served, {"stored": "zebra stripes", "asked": "zebra crossings"})
        await explain(served, b'{"stored": "zebra stripes", "asked"')
        await explain(served, {"stored": "zebra stripes", "asked": "zebra", "route": "none"})
    assert "zebra" not in caplog.text


async def test_it_knows_links_and_decoys_of_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_for(upstream, tmp_path)) as served:
        await served.chat(SAME["stored"])
        parts = served.gateway.parts
        (fingerprint,) = await parts.space.index.fingerprints()
        entry = await parts.store.get(fingerprint)
        assert entry is not None
        parts.memory.links.add([link_of(entry.scope, OTHER["asked"], fingerprint, 0.7).key()])
        linked = (await explain(served, {"stored": SAME["stored"], "asked": OTHER["asked"]})).json
        assert (linked["served"], linked["linked"], linked["veto"]) == (True, True, None)
        assert linked["why"].startswith("link: ")
        parts.space.decoys.add(fingerprint, (await parts.space.embedder.embed(SAME["asked"])).vector)
        repelled = (await explain(served, SAME)).json
        assert (repelled["served"], repelled["reason"], repelled["linked"]) == (False, "decoy", False)
        assert (await explain(served, OTHER)).json["reason"] == "antonym", "of another entry"


async def test_it_judges_by_the_threshold_of_the_scope_that_was_asked(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_for(upstream, tmp_path), TWO_ROUTES) as served:
        pair = {**SAME, "route": "support"}
        unknown = (await explain(served, pair)).json
        assert (unknown["scope"], unknown["entries"], unknown["other_scopes"]) == (None, 0, 0)
        for number in range(12):  # a larger scope of the same route, with the same question
            question = SAME["stored"] if number == 0 else f"Where is office {number} of company {number * 7}?"
            await served.chat(question, model="support", temperature=0.5)
        await served.chat(SAME["stored"], model="support")
        small = (await explain(served, pair)).json
        assert (small["entries"], small["other_scopes"]) == (1, 1), "the newest"
        hit = await served.chat(SAME["asked"], model="support", temperature=0.5)
        large = (await explain(served, pair)).json
        assert (large["entries"], large["other_scopes"]) == (12, 1), "the one that was asked"
        assert large["scope"] != small["scope"]
        assert small["threshold"] <= large["threshold"] < unknown["threshold"], "a small scope needs less"
        assert large["served"] is (hit.cache_status == "nearhit; hit; detail=semantic")


@pytest.mark.parametrize("entries", [1, 30])
async def test_a_pair_that_was_just_served_is_explained_as_served(
    upstream: Upstream, tmp_path: Path, entries: int
) -> None:
    """The scores of the pairs lie around the thresholds of small and of usual caches."""
    if not (default_model_dir() / MODEL / MODEL_FILE).exists():
        pytest.skip("the embedding model is not built: run `make setup`")
    main = {"main": {"adapter": "openai", "url": upstream.url}}
    config = config_of(tmp_path, main, embedder={"adapter": "onnx"})
    pairs = [
        ("How do I reset my password?", "I forgot my password, how can I reset it?"),
        ("Why do cats purr?", "What makes cats purr?"),
        ("What is machine learning?", "Could you explain what machine learning is?"),
        ("Do you ship to Canada?", "Can I get an order delivered to Canada?"),
        ("How long does shipping take?", "How many days until my order arrives?"),
    ]
    decisions = dict[str, bool]()
    async with gateway_of(config) as served:
        for stored, asked in pairs:
            for number in range(entries - 1):
                await served.chat(f"Where is office {number} of company {number * 7}?", seed=len(decisions))
            await served.chat(stored, seed=len(decisions))
            hit = await served.chat(asked, seed=len(decisions))
            found = (await explain(served, {"stored": stored, "asked": asked})).json
            decisions[asked] = hit.cache_status == "nearhit; hit; detail=semantic"
            if decisions[asked]:
                assert (found["served"], found["entries"]) == (True, entries), asked
    assert any(decisions.values())
