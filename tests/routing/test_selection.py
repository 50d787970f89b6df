"""The gateway, `explain`, tests of policies and `simulate` choose the same backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.admin.policy_manager import check_policy
from gateway.config import Config
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import PolicySource
from gateway.features.simulation.worker_process import build_job, run_job
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream

POLICY = """\
version: 1
routes:
  - name: default
    match: {}
    route: {light: light, large: large, escalate_above: 0.0}
    record: on
"""
EMBEDDINGS = {"model": "m", "input": "a text"}
ANTHROPIC = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
# Path, headers, body or None for a GET, and the one backend that can answer it: `large` speaks Anthropic's protocol.
CASES = [
    ("/v1/embeddings", {}, EMBEDDINGS, "light"),
    ("/v1/files", {}, None, "light"),
    ("/v1/audio/speech", {}, {"input": "a text"}, "light"),
    ("/v1/messages/count_tokens", ANTHROPIC, {"model": "m", "messages": []}, "large"),
    ("/v1/chat/completions", {}, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "large"),
]


def config(folder: Path, light: Upstream, large: Upstream) -> Config:
    backends = {
        "light": {"adapter": "openai", "url": light.url},
        "large": {"adapter": "anthropic", "url": large.url},
    }
    return config_of(folder, backends)


@pytest.mark.parametrize(("path", "headers", "body", "backend"), CASES)
async def test_all_of_them_agree(
    light: Upstream,
    large: Upstream,
    tmp_path: Path,
    path: str,
    headers: dict[str, str],
    body: dict[str, Any] | None,
    backend: str,
) -> None:
    settings = config(tmp_path, light, large)
    async with gateway_of(settings, POLICY) as served:
        if body is None:
            await served.get(path, headers)
        else:
            await served.post(path, body, headers)
        assert {"light": len(light.calls), "large": len(large.calls)} == {"light": 0, "large": 0} | {backend: 1}
        given = {"path": path, "headers": headers, "body": body or {}}
        async with served.session.post(f"{served.admin_url}/admin/explain", json=given) as response:
            explained = await response.json()
        assert explained.get("backend", "is passed through") in (backend, "is passed through")
    by_test = {"path": path, "headers": headers, "body": body or {}}
    expectation = f"tests:\n  - {{name: a, request: {by_test}, expect: {{backend: {backend}}}}}\n"
    assert faults(POLICY + expectation, settings) == []
    if path in ("/v1/embeddings", "/v1/chat/completions"):  # what passes through is not recorded
        policy = policy_from_text(POLICY, "policy.yaml", settings)
        simulation = run_job(
            build_job(settings, policy, policy, str(settings.data_dir / "traffic"), 0.0, "hash/384/v2")
        )
        assert [outcome.backend for outcome in simulation.new.outcomes] == [backend]


def faults(document: str, settings: Config) -> list[str]:
    try:
        check_policy([PolicySource("p.yaml", document.encode())], settings)
    except ConfigInvalid as invalid:
        return [str(fault) for fault in invalid.faults]
    return []
