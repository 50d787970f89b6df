"""The import of LiteLLM's configuration: what each setting becomes, and that none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.config.errors import ConfigInvalid
from gateway.features.importing.errors import ImportFailed
from gateway.features.importing.litellm.providers import PROVIDERS, base_url, split_model
from gateway.features.importing.report import ImportReport, Outcome
from gateway.features.importing.run import ImportOptions, import_litellm

SECRETS = ("sk-in-the-file", "hunter2")
AZURE = "https://x.openai.azure.com"
CHAT = {"model": "openai/gpt-4o-mini", "api_key": "os.environ/OPENAI_API_KEY"}
FULL = """\
model_list:
  - model_name: small
    litellm_params: {model: openai/gpt-4o-mini, api_key: sk-in-the-file, rpm: 100, tpm: 20000, timeout: 30}
    model_info: {mode: chat, id: one, input_cost_per_token: 1.5e-7}
  - model_name: large
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, weight: 9}
  - model_name: large
    litellm_params: {model: azure/gpt-4o-eu, api_base: os.environ/AZURE_API_BASE, api_version: "2024-10-01", weight: 1}
  - model_name: nova
    litellm_params: {model: watsonx/nova-pro, region_name: us-east-1}
  - model_name: "*"
    litellm_params: {model: "openai/*"}
litellm_settings:
  cache: true
  cache_params: {type: redis, host: r.internal, password: hunter2, ttl: 600, namespace: x}
  fallbacks: [{large: [small, lrge]}, {small: [{model: large}]}]
  num_retries: 2
  default_key_generate_params: {max_budget: 5, budget_duration: 1d, rpm_limit: 60, models: [small]}
  no_such_key: 5
router_settings:
  routing_strategy: latency-based-routing
  num_retries: 3
  model_group_alias: {gpt-4: large, gpt-3: nothing}
general_settings: {master_key: sk-in-the-file-too, completion_model: null}
environment_variables: {TOKEN: hunter2}
surprise: {a: {b: 1}}
guardrails: []
"""


class Imported:
    """The files and the report of one import."""

    def __init__(self, folder: Path, report: ImportReport) -> None:
        self.report = report
        self.texts = {name: (folder / name).read_text() for name in ("config.yaml", "policies/default.yaml")}
        self.config = yaml.safe_load(self.texts["config.yaml"])
        self.routes = {rule["name"]: rule for rule in yaml.safe_load(self.texts["policies/default.yaml"])["routes"]}

    def said(self, path: str, outcome: Outcome | None = None) -> str:
        """Return the findings at a path."""
        found = [f.as_json() for f in self.report.findings if outcome in (None, f.outcome)]
        return "\n".join(finding["text"] for finding in found if finding["path"] == path)


def import_text(folder: Path, text: str, **options: Any) -> Imported:
    (folder / "old.yaml").write_text(text)
    report = import_litellm(ImportOptions(folder / "old.yaml", folder / "new", True, **options), {})
    return Imported(folder / "new", report)


def import_document(folder: Path, models: list[dict[str, Any]], **sections: Any) -> Imported:
    entries = [{"model_name": model.pop("as", "m"), "litellm_params": {**CHAT, **model}} for model in models]
    return import_text(folder, yaml.safe_dump({"model_list": entries, **sections}))


def leaves(path: tuple[str | int, ...], value: Any) -> list[tuple[str | int, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [leaf for key, item in children for leaf in leaves((*path, key), item)] or [path]


def unaccounted(document: Any, report: ImportReport) -> list[tuple[str | int, ...]]:
    """Return the values of which no finding says anything."""
    said = {finding.path for finding in report.findings}
    return [leaf for leaf in leaves((), document) if not any(leaf[:n] in said for n in range(len(leaf) + 1))]


def test_no_setting_is_lost(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    assert unaccounted(yaml.safe_load(FULL), imported.report) == []
    assert "does not know the setting" in imported.said("litellm_settings.no_such_key", Outcome.MISSING)
    assert "does not know the setting" in imported.said("surprise.a", Outcome.MISSING)
    lines = FULL.splitlines()
    assert all(str(f.path[-1]) in lines[f.line - 1] for f in imported.report.findings if isinstance(f.path[-1], str))


def test_no_secret_of_the_file_is_written_or_printed(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    shown = imported.report.as_text() + str(imported.report.as_json()) + "".join(imported.texts.values())
    assert not [secret for secret in SECRETS if secret in shown]
    assert imported.config["backends"]["small"]["api_key_env"] == "SMALL_API_KEY"
    assert imported.config["store"] == {"url": "redis://r.internal:6379", "password_env": "REDIS_PASSWORD"}
    assert imported.config["auth"] == {"mode": "keys", "admin_token_env": "LITELLM_MASTER_KEY"}


def test_backends_and_routes(tmp_path: Path) -> None:
    imported = import_text(tmp_path, FULL)
    assert imported.config["backends"]["small"] == {
        "adapter": "openai",
        "url": "https://api.openai.com/v1",
        "api_key_env": "SMALL_API_KEY",
        "model": "gpt-4o-mini",
        "timeouts": {"first_byte": "30s", "total": "30s"},
        "retries": {"attempts": 4},
        "price": {"input_per_million": 0.15},
    }
    assert imported.config["backends"]["large-2"]["url"] == "${AZURE_API_BASE}/openai/v1"
    assert list(imported.routes) == ["small", "large", "gpt-4", "default"]
    assert imported.routes["large"]["route"] == {"backend": {"large": "90%", "large-2": "10%"}, "fallback": ["small"]}
    assert imported.routes["gpt-4"]["route"] == imported.routes["large"]["route"]
    assert imported.routes["default"]["route"] == {"backend": "any"}
    key = {"per": "key", "requests": "60/min", "cost": {"per_day": "5 USD"}}
    route = {"per": "route", "requests": "100/min", "tokens": "20000/min"}
    assert imported.routes["small"]["limits"] == [route, key]
    assert imported.routes["large"]["limits"] == key
    assert imported.routes["small"]["cache"] == {"exact": {"ttl": "10m"}}
    assert "did you mean 'large'?" in imported.said("litellm_settings.fallbacks[0].large[1]", Outcome.MISSING)
    assert any("without a price: any, large, large-2" in text for text in imported.report.differences)


def test_entries_of_one_name_are_upstreams_if_only_their_address_differs(tmp_path: Path) -> None:
    vllm = {"model": "hosted_vllm/llama", "api_key": "none"}
    imported = import_document(
        tmp_path,
        [
            vllm | {"api_base": "http://a:8000/v1", "rpm": 10},
            vllm | {"api_base": "http://b:8000/v1", "rpm": 30},
            vllm | {"api_base": "http://a:8000/v1", "api_key": "os.environ/B", "rpm": 40},
            {"model": "groq/llama", "order": 2, "rpm": 20},
        ],
    )
    backends = imported.config["backends"]
    assert backends["m"]["upstreams"] == [{"url": "http://a:8000/v1"}, {"url": "http://b:8000/v1", "weight": 3}]
    assert backends["m-2"]["api_key_env"] == "B"
    assert imported.routes["m"]["route"] == {"backend": {"m": "50%", "m-2": "50%"}, "fallback": ["m-3"]}
    assert imported.routes["m"]["limits"] == {"per": "route", "requests": "100/min"}


@pytest.mark.parametrize(
    ("params", "store", "chat"),
    [
        ({"type": "local"}, None, {"exact": {"ttl": "10m"}}),
        ({}, "redis://${REDIS_HOST}:6379", {"exact": {"ttl": "1m"}}),
        ({"type": "redis", "host": "h", "ssl": True, "db": 2}, "rediss://h:6379/2", {"exact": {"ttl": "1m"}}),
        ({"type": "redis", "url": "redis://u:hunter2@h"}, "${REDIS_URL}", {"exact": {"ttl": "1m"}}),
        (
            {"type": "redis", "redis_startup_nodes": [{"host": "h", "port": "7001"}, {"host": "i", "port": 7002}]},
            "redis+cluster://h:7001,i:7002",
            {"exact": {"ttl": "1m"}},
        ),
        (
            {"type": "redis", "service_name": "main", "sentinel_nodes": [["h", 26379]]},
            "redis+sentinel://h:26379/main",
            {"exact": {"ttl": "1m"}},
        ),
        (
            {"type": "redis-semantic", "host": "h", "ttl": 90, "similarity_threshold": 0.8},
            "redis://h:6379",
            {"exact": {"ttl": "90s"}, "semantic": {"ttl": "90s", "max_wrong_hits": "1%"}},
        ),
        ({"type": "local", "mode": "default_off"}, None, None),
        ({"type": "local", "supported_call_types": ["aembedding"]}, None, None),
    ],
)
def test_caches(tmp_path: Path, params: dict[str, Any], store: str | None, chat: dict[str, Any] | None) -> None:
    settings = {"cache": True, **({"cache_params": params} if params else {})}
    imported = import_document(tmp_path, [{}], litellm_settings=settings)
    assert imported.config.get("store", {}).get("url") == store
    assert imported.routes["m"].get("cache") == chat
    assert "hunter2" not in imported.report.as_text() + imported.texts["config.yaml"]
    assert unaccounted({"litellm_settings": settings}, imported.report) == []


def test_without_a_cache_no_route_has_one(tmp_path: Path) -> None:
    imported = import_document(tmp_path, [{}], litellm_settings={"cache": False, "cache_params": {"type": "redis"}})
    assert "store" not in imported.config and "cache" not in imported.routes["m"]
    assert imported.config["auth"] == {"mode": "passthrough"}


@pytest.mark.parametrize(
    ("model", "api_base", "adapter", "url", "upstream"),
    [
        ("gpt-4o", None, "openai", "https://api.openai.com/v1", "gpt-4o"),
        ("claude-sonnet-4-5", None, "anthropic", "https://api.anthropic.com", "claude-sonnet-4-5"),
        ("openrouter/meta/llama", None, "openai", "https://openrouter.ai/api/v1", "meta/llama"),
        ("azure/d", f"{AZURE}/openai/deployments/d/", "openai", f"{AZURE}/openai/v1", "d"),
        ("ollama/llama3", "http://h:11434", "openai", "http://h:11434/v1", "llama3"),
        ("anthropic/c", "https://proxy/anthropic/v1/messages", "anthropic", "https://proxy/anthropic", "c"),
    ],
)  # fmt: skip
def test_endpoints(model: str, api_base: str | None, adapter: str, url: str, upstream: str) -> None:
    name, rest = split_model(model, None)
    provider = PROVIDERS[name]
    assert (provider.adapter, rest) == (adapter, upstream)
    assert (provider.url if api_base is None else base_url(provider, api_base)) == url


def test_a_provider_without_counterpart_goes_through_the_old_proxy(tmp_path: Path) -> None:
    text = yaml.safe_dump({"model_list": [{"model_name": "nova", "litellm_params": {"model": "watsonx/nova"}}]})
    with pytest.raises(ImportFailed, match=r"3: model_list\[0\].litellm_params.model: .*'watsonx'"):
        import_text(tmp_path, text)
    assert not (tmp_path / "new").exists()
    imported = import_text(tmp_path, text, through="http://old:4000/v1")
    assert imported.config["backends"]["nova"] == {
        "adapter": "openai",
        "url": "http://old:4000/v1",
        "api_key_env": "LITELLM_API_KEY",
        "model": "nova",
        "timeouts": {"first_byte": "10m"},
    }


def test_wildcards(tmp_path: Path) -> None:
    anthropic = {"as": "anthropic/*", "model": "anthropic/*"}
    imported = import_document(tmp_path, [{"as": "*", "model": "openai/*"}, anthropic, {"as": "gpt-4[x]"}])
    assert [rule["match"] for rule in imported.routes.values()] == [
        {"model": "gpt-4[[]x]"},
        {"model": "anthropic/*"},
        {},
    ]
    assert "does not remove the prefix" in imported.said("model_list[1].litellm_params.model", Outcome.MISSING)
    assert "model" not in imported.config["backends"]["any"]


def test_paths_that_are_not_read_have_routes_by_path(tmp_path: Path) -> None:
    entries = [
        {"model_name": name, "litellm_params": {"model": name}, "model_info": {"mode": "audio_transcription"}}
        for name in ("whisper-1", "whisper-2")
    ]
    imported = import_text(tmp_path, yaml.safe_dump({"model_list": entries}))
    assert imported.routes["whisper-1"]["match"] == {"path": "/v1/audio/transcriptions"}
    assert "already has the path" in imported.said("model_list[1].model_name", Outcome.MISSING)


@pytest.mark.parametrize(
    ("duration", "cap"), [("1d", "per_day"), ("24h", "per_day"), ("30d", "per_month"), ("1mo", "per_month")]
)
def test_budgets(tmp_path: Path, duration: str, cap: str) -> None:
    params = {"max_budget": 7.5, "budget_duration": duration}
    imported = import_document(tmp_path, [{}], litellm_settings={"upperbound_key_generate_params": params})
    assert imported.routes["m"]["limits"] == {"per": "key", "cost": {cap: "7.5 USD"}}


def test_a_budget_for_another_period_is_reported(tmp_path: Path) -> None:
    params = {"max_budget": 70, "budget_duration": "7d"}
    imported = import_document(tmp_path, [{}], litellm_settings={"default_key_generate_params": params})
    said = imported.said("litellm_settings.default_key_generate_params.max_budget", Outcome.MISSING)
    assert "per_day: 10 USD" in said and "limits" not in imported.routes["m"]


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(FULL)
    options = ImportOptions(tmp_path / "old.yaml", tmp_path)
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(ImportFailed, match=r"config\.yaml exists"):
        import_litellm(options, {})
    assert (tmp_path / "config.yaml").read_text() == "mine" and not (tmp_path / "policies").exists()


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "- a\n", "a: [\n", ""])
def test_a_file_that_is_not_readable_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigInvalid):
        import_text(tmp_path, text)


def test_a_wrong_value_is_reported_and_not_carried_over(tmp_path: Path) -> None:
    imported = import_document(tmp_path, [{"rpm": "many", "timeout": -1, "max_parallel_requests": 1.5}])
    said = {f.path[-1]: f.text for f in imported.report.findings if f.outcome is Outcome.MISSING}
    assert said["rpm"].startswith("expected a number, got 'many'")
    assert said["timeout"].startswith("expected a number, got -1")
    assert said["max_parallel_requests"].startswith("expected a whole number from 1 to 100000, got 1.5")


KEYS = sorted({part for path in leaves((), yaml.safe_load(FULL)) for part in path if isinstance(part, str)})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**13),
    st.floats(allow_nan=False),
    st.text("a*/{$}[ :.-", max_size=8),
    st.sampled_from(["os.environ/X", "redis", "openai/x", "http://h/v1", "1d", "large", "small"]),
    st.lists(st.sampled_from(["small", "large"]), max_size=2),
    st.dictionaries(st.sampled_from(KEYS), st.just("small"), max_size=2),
)


@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a file takes 100 ms
@given(st.data())
def test_any_value_in_any_place_is_accounted_for_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = yaml.safe_load(FULL)
    for path in data.draw(st.lists(st.sampled_from(leaves((), document)), min_size=1, max_size=4)):
        place: Any = document
        for part in path[: data.draw(st.integers(0, len(path) - 1))]:
            try:
                place = place[part]
            except (KeyError, IndexError, TypeError):  # replaced before
                break
        if isinstance(place, dict):
            place[data.draw(st.sampled_from([*place, *KEYS]))] = data.draw(VALUES)
        elif isinstance(place, list) and place:
            place[0] = data.draw(VALUES)
    text = yaml.safe_dump(document)
    folder = tmp_path_factory.mktemp("import")
    try:
        imported = import_text(folder, text)
    except (ImportFailed, ConfigInvalid):
        return
    assert unaccounted(yaml.safe_load(text), imported.report) == []


ROUTER = {
    "as": "smart",
    "model": "auto_router/complexity_router",
    "complexity_router_default_model": "b",
    "api_key": None,
}


@pytest.mark.parametrize(
    ("tiers", "route"),
    [
        ({"SIMPLE": "a", "COMPLEX": "b"}, {"light": "a", "large": "b", "escalate_above": 0.5}),
        ({"SIMPLE": "a", "MEDIUM": "a", "COMPLEX": ["b"], "REASONING": "b"},
         {"light": "a", "large": "b", "escalate_above": 0.5}),
        ({"REASONING": "c", "SIMPLE": "a", "MEDIUM": ["b", "a"]},
         {"tiers": ["a", "b", "c"], "escalate_above": [0.33, 0.67]}),
        ({"SIMPLE": "a", "COMPLEX": "lost"}, {"backend": "a"}),
    ],
)  # fmt: skip
def test_a_complexity_router_becomes_a_route_with_tiers(
    tiers: dict[str, Any], route: dict[str, Any], tmp_path: Path
) -> None:
    models = [{"as": name, "model": f"openai/{name}"} for name in ("a", "b", "c")]
    router = {**ROUTER, "complexity_router_config": {"tiers": tiers, "keyword_rules": [1]}}
    imported = import_document(tmp_path, [*models, router])
    assert imported.routes["smart"] == {"name": "smart", "match": {"model": "smart"}, "route": route}
    assert "learned complexity" in imported.said("model_list[3].litellm_params.model", Outcome.CHANGED)
    assert "nearhit simulate" in imported.said("model_list[3].litellm_params.complexity_router_config.keyword_rules")
    if "lost" in str(tiers):
        path = "model_list[3].litellm_params.complexity_router_config.tiers.COMPLEX"
        assert "left out of the tiers" in imported.said(path, Outcome.MISSING)


def test_a_complexity_router_without_a_known_model_is_left_out(tmp_path: Path) -> None:
    imported = import_document(tmp_path, [{}, {**ROUTER, "complexity_router_config": {"tiers": {"SIMPLE": "lost"}}}])
    assert "smart" not in imported.routes
    assert "left out" in imported.said("model_list[1]", Outcome.MISSING)


def test_a_middle_tier_with_a_reserved_name_is_left_out(tmp_path: Path) -> None:
    models = [{"as": name, "model": f"openai/{name}"} for name in ("small", "large", "huge")]
    tiers = {"SIMPLE": "small", "MEDIUM": "large", "COMPLEX": "huge"}
    imported = import_document(tmp_path, [*models, {**ROUTER, "complexity_router_config": {"tiers": tiers}}])
    assert imported.routes["smart"]["route"] == {"light": "small", "large": "huge", "escalate_above": 0.5}
    assert any("left out" in said for said in imported.report.differences)


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        ({"mcp_servers": {"docs": {"url": "https://d/mcp"}}}, "mcp_servers.docs", "adapter: mcp"),
        ({"router_settings": {"optional_pre_call_checks": ["prompt_caching"]}},
         "router_settings.optional_pre_call_checks", "sticky: prefix"),
        ({"litellm_settings": {"enable_json_schema_validation": True}},
         "litellm_settings.enable_json_schema_validation", "check: schema"),
    ],
)  # fmt: skip
def test_the_report_names_what_nearhit_has_instead(
    sections: dict[str, Any], path: str, said: str, tmp_path: Path
) -> None:
    assert said in import_document(tmp_path, [{}], **sections).said(path, Outcome.MISSING)


def test_an_effort_of_a_model_is_reported_with_the_parameters_of_tiers(tmp_path: Path) -> None:
    imported = import_document(tmp_path, [{"reasoning_effort": "low"}])
    assert "parameters: {reasoning_effort: low}" in imported.said("model_list[0].litellm_params.reasoning_effort")


HOSTS = ["openai-eus", "openai", "my-openai", "x"]


DEPLOYMENT = "/openai/deployments/d/chat/completions"
PATHS = [
    *("", "/", "/openai", "/openai/", "/openai/v1", "/openai/v1/", "/openai/deployments/d", DEPLOYMENT),
    *(f"{DEPLOYMENT}?api-version=2024-10-21", "?api-version=2025-01-01-preview"),
]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", PATHS)
def test_only_the_path_of_an_azure_address_is_looked_at(host: str, path: str) -> None:
    for name in (f"{host}.openai.azure.com", f"{host}.openai.azure.com:8443", f"{host}.cognitiveservices.azure.com"):
        assert base_url(PROVIDERS["azure"], f"https://{name}{path}") == f"https://{name}/openai/v1"


@pytest.mark.parametrize(
    ("provider", "given", "expected"),
    [
        ("azure", "https://gw.host/openai-proxy/x", "https://gw.host/openai-proxy/x/openai/v1"),
        ("azure", "https://gw.host/team/openai/deployments/d", "https://gw.host/team/openai/v1"),
        ("openai", "http://[::1]:8000/v1/", "http://[::1]:8000/v1"),
        ("openai", "https://openai.host/v1/chat/completions/", "https://openai.host/v1"),
        ("hosted_vllm", "http://completions:8000/v1/completions", "http://completions:8000/v1"),
        ("ollama", "http://[fe80::1]:11434", "http://[fe80::1]:11434/v1"),
        ("ollama", "http://v1:11434/v1", "http://v1:11434/v1"),
        ("anthropic", "https://messages.host/v1/messages", "https://messages.host"),
        ("azure", "${AZURE_API_BASE}", "${AZURE_API_BASE}/openai/v1"),
    ],
)
def test_an_address_is_read_as_a_url(provider: str, given: str, expected: str) -> None:
    assert base_url(PROVIDERS[provider], given) == expected


ODD: dict[str, str] = {
    "no name behind the provider": "{model_name: odd, litellm_params: {model: azure/, api_base: https://openai-x.openai.azure.com}}",
    "no scheme": "{model_name: odd, litellm_params: {model: azure/d, api_base: openai-x.openai.azure.com}}",
    "an unclosed address": "{model_name: odd, litellm_params: {model: openai/d, api_base: 'http://[::1/v1'}}",
    "a port out of range": "{model_name: odd, litellm_params: {model: openai/d, api_base: 'http://host:99999/v1'}}",
    "a key in a query": "{model_name: odd, litellm_params: {model: openai/d, api_base: 'https://host/v1?key=sk-in-the-file'}}",
    "credentials": "{model_name: odd, litellm_params: {model: openai/d, api_base: 'https://u:sk-in-the-file@host/v1'}}",
    "a text": "just a text",
    "a list": "[1, 2]",
    "a mode that is a list": "{model_name: odd, litellm_params: {model: azure/d}, model_info: {mode: []}}",
    "a long name for clients": "{model_name: " + "n" * 600 + ", litellm_params: {model: openai/d}}",
    "nothing": "",
    "a number as a name": "{model_name: 5, litellm_params: {model: openai/d}}",
    "parameters that are a list": "{model_name: odd, litellm_params: [openai/d]}",
    "a long name": "{model_name: odd, litellm_params: {model: openai/" + "d" * 600 + "}}",
    "a key twice": "{model_name: odd, model_name: odder, litellm_params: {model: openai/d}}",
    "a tag": "{model_name: odd, litellm_params: {model: !!python/name:os.system openai/d}}",
    "a key that is no text": "{model_name: odd, litellm_params: {model: openai/d}, yes: 5}",
}


@pytest.mark.parametrize("entry", ODD.values(), ids=ODD)
def test_one_odd_entry_is_left_out_and_named_with_its_line(tmp_path: Path, entry: str) -> None:
    good = "  - {model_name: good, litellm_params: {model: openai/gpt-4o}}\n"
    imported = import_text(tmp_path, f"model_list:\n{good}  - {entry}\n{good.replace('good', 'better')}")
    assert imported.config["backends"].keys() <= {"good", "better"}
    assert imported.routes.keys() - {"default"} == {"good", "better"}
    said = [finding for finding in imported.report.findings if finding.path[:2] == ("model_list", 1)]
    assert said
    assert {finding.line for finding in said} == {3}
    assert entry == "" or any(finding.outcome is Outcome.MISSING for finding in said)
    assert "2 of 3 entries of model_list are carried over" in imported.report.summary
    assert "sk-in-the-file" not in imported.report.as_text()


@pytest.mark.parametrize(
    "params",
    [
        {"redis_startup_nodes": [1]},
        {"redis_startup_nodes": "nodes"},
        {"sentinel_nodes": []},
        {"host": "r.internal", "port": "x"},
        {"host": ["r.internal"]},
    ],
)
def test_a_store_that_is_not_readable_gives_way_to_the_embedded_one(tmp_path: Path, params: dict[str, Any]) -> None:
    cache = {"cache": True, "cache_params": {"type": "redis", **params}}
    imported = import_document(tmp_path, [{}], litellm_settings=cache)
    assert "store" not in imported.config
    assert "embedded store takes the place" in imported.said("litellm_settings.cache_params", Outcome.MISSING)


def test_a_store_may_have_an_ipv6_address(tmp_path: Path) -> None:
    cache = {"cache": True, "cache_params": {"type": "redis", "host": "fd00::7", "port": 6380}}
    imported = import_document(tmp_path, [{}], litellm_settings=cache)
    assert imported.config["store"]["url"] == "redis://[fd00::7]:6380"


CLOUDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Bedrock": (
        {"model": "bedrock/converse/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws_region_name": "us-west-2"},
        {
            "adapter": "bedrock",
            "url": "https://bedrock-runtime.us-west-2.amazonaws.com",
            "model": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "identity": {"type": "aws"},
        },
    ),
    "Bedrock with a role and an endpoint": (
        {
            "model": "bedrock/eu-west-1/amazon.nova-pro-v1:0",
            "aws_bedrock_runtime_endpoint": "https://vpce.internal/",
            "aws_role_name": "arn:aws:iam::123456789012:role/models",
            "aws_session_name": "s",
            "aws_profile_name": "prod",
            "aws_access_key_id": "os.environ/AWS_ACCESS_KEY_ID",
            "aws_secret_access_key": "hunter2",
        },
        {
            "adapter": "bedrock",
            "url": "https://vpce.internal",
            "model": "amazon.nova-pro-v1:0",
            "identity": {
                "type": "aws",
                "region": "eu-west-1",
                "profile": "prod",
                "role": "arn:aws:iam::123456789012:role/models",
            },
        },
    ),
    "Bedrock by an ARN and a key": (
        {
            "model": "bedrock/anthropic.claude-x",
            "model_id": "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a",
            "api_key": "os.environ/AWS_BEARER_TOKEN_BEDROCK",
        },
        {
            "adapter": "bedrock",
            "url": "https://bedrock-runtime.${AWS_REGION}.amazonaws.com",
            "model": "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a",
            "api_key_env": "AWS_BEARER_TOKEN_BEDROCK",
        },
    ),
    "Vertex": (
        {
            "model": "vertex_ai/gemini-2.5-pro",
            "vertex_project": "os.environ/PROJECT",
            "vertex_location": "global",
            "vertex_credentials": "/etc/hunter2.json",
        },
        {
            "adapter": "openai",
            "url": "https://aiplatform.googleapis.com/v1/projects/${PROJECT}/locations/global/endpoints/openapi",
            "model": "google/gemini-2.5-pro",
            "identity": {"type": "google"},
        },
    ),
    "a model of others on Vertex": (
        {"model": "vertex_ai/meta/llama-4", "vertex_ai_project": "p"},
        {
            "adapter": "openai",
            "url": "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/endpoints/openapi",
            "model": "meta/llama-4",
            "identity": {"type": "google"},
        },
    ),
    "Azure with a token": (
        {"model": "azure/d", "api_base": AZURE, "azure_ad_token": "os.environ/TOKEN", "client_id": "c"},
        {
            "adapter": "openai",
            "url": f"{AZURE}/openai/v1",
            "model": "d",
            "identity": {"type": "azure", "client_id": "c"},
        },
    ),
    "Azure with a service principal": (
        {
            "model": "azure/d",
            "api_base": AZURE,
            "tenant_id": "os.environ/TENANT",
            "client_id": "c",
            "client_secret": "hunter2",
        },
        {
            "adapter": "openai",
            "url": f"{AZURE}/openai/v1",
            "model": "d",
            "identity": {
                "type": "oauth",
                "token_url": "https://login.microsoftonline.com/${TENANT}/oauth2/v2.0/token",
                "client_id": "c",
                "client_secret_env": "M_CLIENT_SECRET",
                "scope": "https://cognitiveservices.azure.com/.default",
            },
        },
    ),
    "headers and an authority": (
        {
            "model": "openai/x",
            "api_base": "https://h/v1",
            "api_key": "none",
            "extra_headers": {"x-team": "search", "x-api-key": "hunter2", "Authorization": "os.environ/BASIC"},
            "ssl_verify": "corp.pem",
        },
        {
            "adapter": "openai",
            "url": "https://h/v1",
            "model": "x",
            "headers": {"x-team": "search", "x-api-key": "${M_X_API_KEY}", "Authorization": "${BASIC}"},
            "tls": {"ca": "corp.pem"},
        },
    ),
}


@pytest.mark.parametrize(("params", "backend"), CLOUDS.values(), ids=CLOUDS)
def test_identities_headers_and_authorities_are_carried_over(
    tmp_path: Path, params: dict[str, Any], backend: dict[str, Any]
) -> None:
    text = yaml.safe_dump({"model_list": [{"model_name": "m", "litellm_params": params}]})
    imported = import_text(tmp_path, text)
    found = dict(imported.config["backends"]["m"])
    del found["timeouts"]
    assert found == backend
    assert unaccounted(yaml.safe_load(text), imported.report) == []
    assert "hunter2" not in imported.report.as_text().replace("hunter2.json", "") + "".join(imported.texts.values())


def test_tokens_of_entra_id_may_be_a_setting_of_all_deployments(tmp_path: Path) -> None:
    entry = {"model_name": "m", "litellm_params": {"model": "azure/d", "api_base": AZURE}}
    for common, identity in (({"enable_azure_ad_token_refresh": True}, {"type": "azure"}), ({}, None)):
        imported = import_text(tmp_path, yaml.safe_dump({"model_list": [entry], "litellm_settings": common}))
        assert imported.config["backends"]["m"].get("identity") == identity


@pytest.mark.parametrize("model", ["bedrock/amazon.titan-embed-text-v2:0", "vertex_ai/claude-sonnet-4-5"])
def test_a_model_of_a_cloud_without_a_protocol_here_goes_through_the_old_proxy(tmp_path: Path, model: str) -> None:
    text = yaml.safe_dump({"model_list": [{"model_name": "m", "litellm_params": {"model": model}}]})
    with pytest.raises(ImportFailed, match="no protocol for this model of"):
        import_text(tmp_path, text)
    assert import_text(tmp_path, text, through="http://old:4000/v1").config["backends"]["m"]["model"] == "m"
