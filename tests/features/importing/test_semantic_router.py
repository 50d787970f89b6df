"""The import of vLLM Semantic Router's configuration: what each setting becomes, and that none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.__main__ import main
from gateway.config.errors import ConfigInvalid
from gateway.features.importing.errors import ImportFailed
from gateway.features.importing.report import Outcome
from gateway.features.importing.run import ImportOptions, import_semantic_router
from tests.features.importing.test_litellm import Imported, unaccounted

SECRETS = ("hunter1", "hunter2", "hunter3")
FULL = """\
version: v0.3
listeners: [{name: http, address: 127.0.0.1, port: 8899, timeout: 300s, api_keys: [hunter1]}]
providers:
  defaults: {model: small, reasoning_effort: medium}
  models:
    - name: small
      provider_model_id: qwen3-8b-instruct
      api_format: openai
      reasoning: {family: qwen3}
      reliability: {lb_policy: least_request, retry_count: 2}
      pricing: {currency: USD, prompt_per_1m: 0.18, cached_input_per_1m: 0.04, completion_per_1m: 0.42}
      backend_refs:
        - {name: a, endpoint: "127.0.0.1:8000", protocol: http, weight: 80, api_key_env: SMALL_KEY}
        - {name: b, endpoint: "127.0.0.1:8004", protocol: http, weight: 20, api_key: "${SMALL_KEY}"}
    - name: org/remote
      backend_refs: [{base_url: "https://api.example.com/v1", provider: openai, api_key: hunter2, chat_path: /chat}]
    - name: large
      api_format: anthropic
      backend_refs: [{endpoint: "127.0.0.1:8001", protocol: https}]
    - {name: built-in, catalog: vllm-sr/mom-v1-lite}
routing:
  strategy: priority
  modelCards: [{name: small, param_size: 8B}]
  signals:
    keywords: [{name: urgent, keywords: [urgent]}]
    complexity: [{name: needs_reasoning, threshold: 0.1, hard: {candidates: [prove it]}}]
  decisions:
    - name: urgent_route
      priority: 300
      rules: {operator: AND, conditions: [{type: keyword, name: urgent}]}
      modelRefs: [{model: org/remote}]
    - name: hard_route
      priority: 200
      rules: {operator: OR, conditions: [{type: complexity, name: "needs_reasoning:hard"}]}
      modelRefs:
        - {model: large, use_reasoning: true, reasoning_effort: high, max_completion_tokens: 4000}
        - {model: org/remote, use_reasoning: true}
      algorithm: {type: confidence}
      plugins:
        - type: response_cache
          configuration: {enabled: true, mode: exact_then_semantic, scope: user, semantic: {similarity_threshold: 0.8}}
        - {type: system_prompt, configuration: {system_prompt: hello}}
entrypoints:
  - {model_names: [mom/flash], recipe: cheap}
  - {model_names: [mom/lost], recipe: cheep}
recipes:
  - name: cheap
    routing:
      decisions: [{name: all, priority: 1, rules: {operator: AND}, modelRefs: [{model: small, use_reasoning: false}]}]
global:
  router: {auto_model_names: [auto]}
  stores:
    response_cache:
      enabled: true
      backend_type: redis
      ttl_seconds: 7200
      redis: {connection: {host: r.internal, port: 6380, database: 2, password: hunter3}}
  services: {observability: {tracing: {enabled: true}}}
surprise: {a: 1}
"""
MODELS = {
    "defaults": {"default_model": "small"},
    "models": [
        {"name": name, "backend_refs": [{"endpoint": f"{name}.internal:8000", "protocol": "http"}]}
        for name in ("small", "medium", "large")
    ],
}


def import_text(folder: Path, text: str) -> Imported:
    (folder / "old.yaml").write_text(text)
    report = import_semantic_router(ImportOptions(folder / "old.yaml", folder / "new", True), {})
    return Imported(folder / "new", report)


def import_decisions(folder: Path, *decisions: dict[str, Any], **sections: Any) -> Imported:
    document = {"version": "v0.3", "providers": MODELS, "routing": {"decisions": list(decisions)}, **sections}
    return import_text(folder, yaml.safe_dump(document))


def decision(level: str | None, model: str, **more: Any) -> dict[str, Any]:
    conditions = [] if level is None else [{"type": "complexity", "name": f"rule:{level}"}]
    rules = {"operator": "AND", "conditions": conditions}
    return {"name": f"{level}-{model}", "rules": rules, "modelRefs": [{"model": model}], **more}


def test_no_setting_is_lost(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    assert unaccounted(yaml.safe_load(FULL), imported.report) == []
    assert "does not know the setting" in imported.said("surprise.a", Outcome.MISSING)
    unknown = [f for f in imported.report.findings if "does not know" in f.text]
    assert len(unknown) == 1


def test_no_secret_of_the_file_is_written_or_printed(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    shown = imported.report.as_text() + str(imported.report.as_json()) + "".join(imported.texts.values())
    assert not [secret for secret in SECRETS if secret in shown]
    assert imported.config["backends"]["remote"]["api_key_env"] == "ORG_REMOTE_API_KEY"
    assert imported.config["store"] == {"url": "redis://r.internal:6380/2", "password_env": "REDIS_PASSWORD"}
    assert set(imported.report.variables) == {"SMALL_KEY", "ORG_REMOTE_API_KEY", "REDIS_PASSWORD"}


def test_models_become_backends(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    assert imported.config["server"] == {"listen": "127.0.0.1:8899"}
    assert imported.config["backends"] == {
        "small": {
            "adapter": "openai",
            "upstreams": [
                {"url": "http://127.0.0.1:8000/v1", "api_key_env": "SMALL_KEY", "weight": 80},
                {"url": "http://127.0.0.1:8004/v1", "api_key_env": "SMALL_KEY", "weight": 20},
            ],
            "model": "qwen3-8b-instruct",
            "retries": {"attempts": 3},
            "price": {"input_per_million": 0.18, "output_per_million": 0.42, "cached_input_per_million": 0.04},
        },
        "remote": {
            "adapter": "openai",
            "url": "https://api.example.com/v1",
            "api_key_env": "ORG_REMOTE_API_KEY",
            "model": "org/remote",
        },
        "large": {"adapter": "anthropic", "url": "https://127.0.0.1:8001", "model": "large"},
    }
    assert "left out" in imported.said("providers.models[3]", Outcome.MISSING)


def test_decisions_become_tiers_and_entrypoints_routes(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    assert list(imported.routes) == ["mom-flash", "small", "org-remote", "large", "default"]
    assert imported.routes["mom-flash"] == {
        "name": "mom-flash",
        "match": {"model": "mom/flash"},
        "route": {"backend": "small"},
    }
    assert imported.routes["org-remote"]["match"] == {"model": "org/remote"}
    assert imported.routes["default"]["cache"] == {
        "exact": {"ttl": "2h"},
        "semantic": {"ttl": "2h", "max_wrong_hits": "1%"},
        "share": "user",
    }
    assert imported.routes["default"]["route"] == {
        "light": "small",
        "large": {"backend": "large", "parameters": {"reasoning_effort": "high", "max_tokens": 4000}},
        "escalate_above": 0.5,
    }
    assert "not by topic" in imported.said("routing.decisions[0]", Outcome.MISSING)
    assert "the first model of a decision answers" in imported.said("routing.decisions[1].modelRefs[1]")


@pytest.mark.parametrize(
    ("decisions", "route"),
    [
        ([], {"backend": "small"}),
        ([decision("hard", "large")], {"light": "small", "large": "large", "escalate_above": 0.5}),
        ([decision("easy", "medium")], {"light": "medium", "large": "small", "escalate_above": 0.5}),
        (
            [decision("hard", "large"), decision("medium", "medium")],
            {"tiers": ["small", "medium", "large"], "escalate_above": [0.33, 0.67]},
        ),
        (
            [decision(None, "medium", priority=1), decision("hard", "large", priority=2)],
            {"light": "medium", "large": "large", "escalate_above": 0.5},
        ),
        # A decision of a higher priority covers all requests.
        ([decision(None, "medium", priority=2), decision("hard", "large", priority=1)], {"backend": "medium"}),
    ],
)
def test_levels_of_complexity_become_tiers(
    decisions: list[dict[str, Any]], route: dict[str, Any], tmp_path: Path
) -> None:
    assert import_decisions(tmp_path, *decisions).routes["default"]["route"] == route


@pytest.mark.parametrize(
    "rules",
    [
        {"operator": "NOT", "conditions": [{"type": "complexity", "name": "rule:hard"}]},
        {"operator": "AND", "conditions": [{"type": "complexity", "name": "rule:hard"}, {"type": "pii", "name": "x"}]},
        {"operator": "AND", "conditions": [{"type": "complexity", "name": f"rule:{n}"} for n in ("hard", "easy")]},
        {"operator": "OR", "conditions": [{"type": "complexity", "name": "rule"}]},
    ],
)
def test_a_decision_by_anything_but_difficulty_is_left_out(rules: dict[str, Any], tmp_path: Path) -> None:
    imported = import_decisions(tmp_path, decision("hard", "large") | {"rules": rules})
    assert imported.routes["default"]["route"] == {"backend": "small"}
    assert "left out" in imported.said("routing.decisions[0]", Outcome.MISSING)


def test_a_store_that_is_off_turns_the_caches_off(tmp_path: Path) -> None:
    plugin = {"type": "semantic-cache", "configuration": {"enabled": True, "similarity_threshold": 0.9}}
    hard = decision("hard", "large", plugins=[plugin])
    assert import_decisions(tmp_path, hard).routes["default"]["cache"]["exact"] == {"ttl": "1h"}
    off = {"stores": {"semantic_cache": {"enabled": False}}}
    assert "cache" not in import_decisions(tmp_path, hard, **{"global": off}).routes["default"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm_endpoints: []\n", "vllm-sr config migrate"),
        ("version: v0.3\nproviders: {models: [{name: a}]}\n", "no model of providers.models"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match=said):
        import_text(tmp_path, text)
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"old\.yaml:2"):
        import_text(tmp_path, "version: v0.3\n  a: [\n")


def test_the_command_prints_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text(FULL)
    assert main(["import", "vllm-semantic-router", "old.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["nearhit/config.yaml", "nearhit/policies/default.yaml"]
    assert main(["import", "vllm-semantic-router", "old.yaml"]) == 1
    assert "nearhit/config.yaml exists" in capsys.readouterr().err


def test_the_report_says_how_many_decisions_and_caches_are_carried_over(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    assert imported.report.summary == [
        "2 of 3 decisions are carried over",
        "1 of 1 caches of decisions are carried over",
    ]
    assert "in all:\n  2 of 3 decisions" in imported.report.as_text()
    topic = {"rules": {"operator": "AND", "conditions": [{"type": "keyword", "name": "urgent"}]}}
    cache = [{"type": "response_cache", "configuration": {"enabled": True}}]
    lost = import_decisions(tmp_path, {"name": "t", **topic, "modelRefs": [{"model": "small"}], "plugins": cache})
    assert lost.report.as_json()["summary"] == [
        "none of 1 decisions are carried over",
        "none of 1 caches of decisions are carried over",
    ]
    assert import_decisions(tmp_path, decision("hard", "large")).report.summary == [
        "1 of 1 decisions are carried over",
        "no decision has a cache, so none is carried over",
    ]


ODD_MODELS: dict[str, Any] = {
    "a text": "odd",
    "no endpoint": {"name": "odd"},
    "a port out of range": {"name": "odd", "backend_refs": [{"endpoint": "host:99999"}]},
    "a long name": {"name": "odd", "provider_model_id": "d" * 600, "backend_refs": [{"endpoint": "host:1"}]},
    "a weight without bound": {"name": "odd", "backend_refs": [{"endpoint": f"h{i}:1", "weight": 9999} for i in "ab"]},
    "one address twice": {"name": "odd", "backend_refs": [{"endpoint": "host:1"}, {"endpoint": "host:1"}]},
}


@pytest.mark.parametrize("odd", ODD_MODELS.values(), ids=ODD_MODELS)
def test_one_odd_model_never_stops_the_import(tmp_path: Path, odd: Any) -> None:
    providers = {**MODELS, "models": [odd, *MODELS["models"]]}
    imported = import_decisions(tmp_path, decision("hard", "large"), providers=providers)
    assert "odd" not in imported.config["backends"]
    said = [f for f in imported.report.findings if f.path[:3] == ("providers", "models", 0)]
    assert any(finding.outcome is Outcome.MISSING for finding in said)


def test_a_decision_with_a_fault_of_yaml_is_left_out_with_its_line(tmp_path: Path) -> None:
    text = FULL.replace("- name: urgent_route\n", "- name: urgent_route\n      name: again\n")
    imported = import_text(tmp_path, text)
    line = text.splitlines().index("      name: again") + 1
    assert any(f.line == line and "duplicate key" in f.text for f in imported.report.findings)
    assert imported.report.summary[0] == "2 of 3 decisions are carried over"
