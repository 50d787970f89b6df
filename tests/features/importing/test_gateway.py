"""A gateway with an imported configuration answers a request for each model of the old file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gateway.config.load import load_config
from gateway.config.policy.load import load_policy
from gateway.features.importing.run import ImportOptions, import_litellm, import_semantic_router
from tests.fixtures.anthropic_upstream import anthropic
from tests.fixtures.gateways import ARRIVES, PATIENT_ENVIRON, Served, gateway_of
from tests.fixtures.upstream import Upstream

MASTER = "the-master-key-of-32-random-characters"
LOCAL = {"NEARHIT_SERVER__LISTEN": "127.0.0.1:0", "NEARHIT_SERVER__ADMIN": "127.0.0.1:0"}
OLD = """\
model_list:
  - model_name: small
    litellm_params: {{model: openai/gpt-4o-mini, api_base: "{first}/v1", api_key: os.environ/FIRST_KEY, rpm: 1000}}
  - model_name: large
    litellm_params: {{model: openai/gpt-4o, api_base: "{first}/v1", api_key: os.environ/FIRST_KEY}}
  - model_name: large
    litellm_params: {{model: azure/gpt-4o-eu, api_base: "{first}", api_key: os.environ/FIRST_KEY}}
  - model_name: pool
    litellm_params: {{model: hosted_vllm/llama, api_base: "{first}/v1"}}
  - model_name: claude
    litellm_params: {{model: anthropic/claude-sonnet-4-5, api_base: "{second}", api_key: os.environ/SECOND_KEY}}
  - model_name: lost
    litellm_params: {{model: openai/lost, api_base: "{nowhere}/v1", max_retries: 0}}
  - model_name: nova
    litellm_params: {{model: watsonx/nova}}
  - model_name: embedding
    litellm_params: {{model: openai/text-embedding-3-small, api_base: "{first}/v1"}}
    model_info: {{mode: embedding}}
  - model_name: "free/*"
    litellm_params: {{model: "hosted_vllm/free/*", api_base: "{first}/v1"}}
litellm_settings:
  cache: true
  cache_params: {{type: local, ttl: 600}}
  fallbacks: [{{lost: [claude]}}]
router_settings: {{model_group_alias: {{gpt-4: large}}}}
general_settings: {{master_key: os.environ/LITELLM_MASTER_KEY}}
"""
UPSTREAM_NAMES = {
    "small": {"gpt-4o-mini"},
    "large": {"gpt-4o", "gpt-4o-eu"},
    "gpt-4": {"gpt-4o", "gpt-4o-eu"},
    "pool": {"llama"},
    "claude": {"claude-sonnet-4-5"},
    "lost": {"claude-sonnet-4-5"},
    "nova": {"nova"},
    "embedding": {"text-embedding-3-small"},
    "free/mixtral": {"free/mixtral"},
}


@pytest.fixture
async def imported(light: Upstream, large: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """Yield a gateway with the imported files: `light` speaks OpenAI's protocol and `large` Anthropic's."""
    anthropic(large)
    first, second = light.url.removesuffix("/v1"), large.url.removesuffix("/v1")
    (tmp_path / "old.yaml").write_text(OLD.format(first=first, second=second, nowhere="http://127.0.0.1:9"))
    options = ImportOptions(tmp_path / "old.yaml", tmp_path / "new", through=light.url)
    report = import_litellm(options, {})
    environ = dict.fromkeys(report.variables, "a-secret-of-an-endpoint") | {"LITELLM_MASTER_KEY": MASTER}
    connect = {f"NEARHIT_BACKENDS__{name}__TIMEOUTS__CONNECT": ARRIVES for name in ("SMALL", "LARGE", "CLAUDE")}
    settings = environ | LOCAL | PATIENT_ENVIRON | connect | {"NEARHIT_EMBEDDER__ADAPTER": "hash"}
    config = load_config(tmp_path / "new" / "config.yaml", settings)
    async with gateway_of(config, load_policy(config.policies, config), settings) as served:
        yield served


async def test_each_model_of_the_old_file_is_answered(imported: Served, light: Upstream, large: Upstream) -> None:
    named = {entry["model_name"] for entry in yaml.safe_load(OLD.replace("{{", "{").replace("}}", "}"))["model_list"]}
    assert {name.replace("mixtral", "*") for name in UPSTREAM_NAMES} == named | {"gpt-4"}
    wanted = {"name": "app", "tenant": "acme"}
    async with imported.session.post(
        f"{imported.admin_url}/admin/keys", json=wanted, headers={"Authorization": f"Bearer {MASTER}"}
    ) as response:
        key = (await response.json())["key"]
    headers = {"Authorization": f"Bearer {key}"}
    for name, upstream_names in UPSTREAM_NAMES.items():
        if name == "embedding":
            answer = await imported.post("/v1/embeddings", {"model": name, "input": "hello"}, headers)
        else:
            answer = await imported.chat(f"Is {name} there?", model=name, max_tokens=50, headers=headers)
        assert answer.status == 200, (name, answer.body)
        call = (large if upstream_names & {"claude-sonnet-4-5"} else light).calls[-1]
        assert call.json["model"] in upstream_names, name
        assert key not in str(call.headers)
    again = await imported.chat("Is small there?", model="small", max_tokens=50, headers=headers)
    assert "hit" in again.cache_status
    assert (await imported.chat("Is small there?", model="small")).status == 401


ROUTER = """\
version: v0.3
providers:
  defaults: {{default_model: org/small}}
  models:
    - {{name: org/small, provider_model_id: small, backend_refs: [{{base_url: "{light}", api_key_env: KEY}}]}}
    - {{name: org/large, provider_model_id: large, backend_refs: [{{base_url: "{large}", api_key: "${{KEY}}"}}]}}
routing:
  decisions:
    - name: hard
      rules: {{operator: AND, conditions: [{{type: complexity, name: "reasoning:hard"}}]}}
      modelRefs: [{{model: org/large, use_reasoning: true, reasoning_effort: high}}]
      plugins: [{{type: response_cache, configuration: {{enabled: true, mode: exact}}}}]
"""


async def test_an_imported_semantic_router_sends_hard_questions_to_the_model_of_their_decision(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "old.yaml").write_text(ROUTER.format(light=light.url, large=large.url))
    report = import_semantic_router(ImportOptions(tmp_path / "old.yaml", tmp_path / "new"), {})
    assert list(report.variables) == ["KEY"]
    connect = {f"NEARHIT_BACKENDS__{name}__TIMEOUTS__CONNECT": ARRIVES for name in ("SMALL", "LARGE")}
    settings = {"KEY": "a-secret"} | LOCAL | PATIENT_ENVIRON | connect | {"NEARHIT_EMBEDDER__ADAPTER": "hash"}
    config = load_config(tmp_path / "new" / "config.yaml", settings)
    easy, hard = (
        "What is the capital of France?",
        "Prove that the square root of 5 is irrational, and explain each step.",
    )
    async with gateway_of(config, load_policy(config.policies, config), settings) as served:
        assert (await served.chat(easy, model="auto")).status == 200
        assert (await served.chat(hard, model="auto")).status == 200
        assert (await served.chat(hard, model="org/small")).status == 200
        assert "hit" in (await served.chat(easy, model="auto")).cache_status
    assert [call.json["model"] for call in light.calls] == ["small", "small"]
    assert [(call.json["model"], call.json["reasoning_effort"]) for call in large.calls] == [("large", "high")]
    assert light.calls[0].headers["Authorization"] == "Bearer a-secret"
