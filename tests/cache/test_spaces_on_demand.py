"""The embedding model is opened by the first policy that compares questions, and not before."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from gateway.errors import StartupError
from gateway.steps import opening
from tests.admin.test_policy import config_in, send, serving
from tests.fixtures.gateways import config_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

EXACT = "version: 1\nroutes:\n  - {name: default, match: {}, cache: {exact: {ttl: 1h}}, route: {backend: main}}\n"
BOTH = EXACT.replace("{exact: {ttl: 1h}}", "{exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}")
QUESTION = "How do I reset my password?"


def exact_only(path: Path, upstream: Upstream) -> Any:
    config = config_in(path, upstream)
    (config.policies / "default.yaml").write_text(EXACT)
    return config


async def test_a_policy_opens_the_similarity_cache_at_run_time(upstream: Upstream, tmp_path: Path) -> None:
    config = exact_only(tmp_path, upstream)
    async with serving(config) as served:
        assert not served.gateway.parts.spaces.is_open
        await served.chat(QUESTION)
        assert (await served.chat(QUESTION)).cache_status.startswith("nearhit; hit")
        assert (await send(served, "/admin/policy", BOTH)).status == 200
        assert served.gateway.parts.spaces.is_open
        await until(lambda: served.gateway.recovery.ready)
        await served.chat("What is the capital of France?")
        assert "semantic" in (await served.chat("what is the capital of france")).cache_status
    async with serving(config) as served:  # its files have the policy now
        await until(lambda: served.gateway.recovery.ready)
        assert "semantic" in (await served.chat("what  is the capital of france")).cache_status


async def test_a_policy_whose_model_fails_is_rejected(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StartupError("the model is broken")

    monkeypatch.setattr(opening, "build_embedder", fail)
    async with serving(exact_only(tmp_path, upstream)) as served:
        before = served.gateway.policy.hash
        answer = await send(served, "/admin/policy", BOTH)
        assert (answer.status, "the model is broken" in answer.body.decode()) == (422, True)
        assert served.gateway.policy.hash == before
        await served.chat(QUESTION)
        assert (await served.chat(QUESTION)).cache_status.startswith("nearhit; hit")


def test_the_composition_root_imports_no_similarity_cache() -> None:
    code = "import sys, gateway.app; print([name for name in sys.modules if name.startswith('gateway.')])"
    names = run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    for name in ("steps.opening", "steps.semantic_cache", "adapters.faiss", "adapters.onnx.encoder", "cache.verifiers"):
        assert f"'gateway.{name}'" not in names


async def test_what_tiers_have_learnt_is_read_when_a_policy_brings_them_back(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    config = exact_only(tmp_path, light)
    models = {"light": light, "large": large}
    backends = {name: {"adapter": "openai", "url": each.url, "model": name} for name, each in models.items()}
    config = config_of(tmp_path / "data", backends).model_copy(update={"policies": config.policies})
    plain, tiers = (
        EXACT.replace("main", "light"),
        EXACT.replace("backend: main", "light: light, large: large, quality: 0.7"),
    )
    file = config.policies / "default.yaml"
    file.write_text(tiers)
    async with serving(config) as served:
        for number in range(40):
            answer = await served.chat(f"{number}: design an algorithm step by step")
            await served.post("/v1/feedback", {"request_id": answer.headers["x-request-id"], "verdict": "wrong"})
        learnt = served.gateway.parts.escalations.of("default").snapshot()
        assert served.gateway.parts.escalations.of("default").version > 0
    file.write_text(plain)
    async with serving(config) as served:
        assert not served.gateway.parts.spaces.is_open
        assert (await send(served, "/admin/policy", tiers)).status == 200
        await until(lambda: "default" in served.gateway.parts.scores.routes)
        assert served.gateway.parts.escalations.of("default").snapshot() == learnt
