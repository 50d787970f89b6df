"""A folder of files becomes one policy, or every fault in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.errors import ConfigInvalid
from gateway.config.policy.check import check
from gateway.config.policy.load import load_policy, policy_from_text
from gateway.config.policy.model import Policy, ReplaySettings
from gateway.config.policy.schema import AuditRule
from gateway.features.recorder.rule import RecordRule
from tests.config.documents import config, rule, text

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

REPOSITORY = Path(__file__).parents[2]


def refused(folder: Path) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load_policy(folder, config())
    return [str(fault).removeprefix(f"{folder}/") for fault in caught.value.faults]


def test_files_come_in_the_order_of_their_names_and_default_last(tmp_path: Path) -> None:
    for name in ("zebra", "alpha"):
        (tmp_path / f"{name}.yaml").write_text(text(rule(name, f"{{tenant: {name}}}")))
    (tmp_path / "default.yaml").write_text(text(rule("default")))
    assert [route.name for route in load_policy(tmp_path, config()).routes] == ["alpha", "zebra", "default"]


def test_hidden_files_folders_and_other_endings_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text(text(rule("default")))
    (tmp_path / ".default.yaml").write_text("broken: [")
    (tmp_path / "default.yaml~").write_text("broken: [")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "other.yaml").write_text("broken: [")
    assert len(load_policy(tmp_path, config()).routes) == 1


def test_the_faults_of_all_files_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("routes: [")
    (tmp_path / "b.yaml").write_text(text(rule("one", "{modl: x}")))
    (tmp_path / "default.yaml").write_text(text(rule("one", "{model: x}").replace("main", "mian")))
    places = [(fault.split(":")[0], fault.split(": ")[1]) for fault in refused(tmp_path)]
    assert places == [
        ("a.yaml", "(document)"),
        ("b.yaml", "routes[0].match.modl"),
        ("default.yaml", "routes[0].name"),
        ("default.yaml", "routes[0].match"),
        ("default.yaml", "routes[0].route.backend"),
    ]


def test_a_default_in_an_earlier_file_makes_later_files_unreachable(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text(rule("one")))
    (tmp_path / "default.yaml").write_text(text(rule("default")))
    assert refused(tmp_path) == [
        "a.yaml:4: routes[0].match: matches every request, so later rules are unreachable, expected this rule last"
    ]


def test_an_empty_folder_and_none_are_faults(tmp_path: Path) -> None:
    assert refused(tmp_path) == [
        f"{tmp_path}:1: (document): the folder has no policy file, expected at least default.yaml"
    ]
    assert "expected a folder of policy files" in refused(tmp_path / "none")[0]
    (tmp_path / "default.yml").write_text(text(rule("default")))
    assert refused(tmp_path)[0].endswith("expected at least default.yaml, each with a name that ends in .yaml")


def test_a_file_that_cannot_be_read_is_a_fault_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text(rule("one", "{modl: x}")))
    (tmp_path / "default.yaml").symlink_to(tmp_path / "gone")
    assert [fault.split(": ")[1] for fault in refused(tmp_path)] == ["routes[0].match.modl", "(document)"]


def test_the_hash_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text(text(rule("default")))
    first = load_policy(tmp_path, config())
    assert load_policy(tmp_path, config()).hash == first.hash
    (tmp_path / "a.yaml").write_text(text(rule("one", "{model: x}")))
    assert load_policy(tmp_path, config()).hash != first.hash


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("off", None),
        ("on", RecordRule()),
        ("{share: 10%}", RecordRule(share=0.1)),
        ("{share: 10%, prompts: on}", RecordRule(share=0.1, prompts=True)),
    ],
)
def test_record_is_a_switch_or_a_rule(written: str, meant: RecordRule | None) -> None:
    policy = policy_from_text(text(rule("default", more=f"    record: {written}\n")), "p.yaml", config())
    assert policy.warnings == ()
    assert policy.routes[0].of(RecordRule) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", AuditRule(share=0.0)),
        (", audit: 0%", AuditRule(share=0.0)),
        (", audit: 2%", AuditRule(share=0.02)),
        (", audit: {share: 0.5, per_hour: 200}", AuditRule(share=0.5, per_hour=200)),
        (", audit: {share: 2%, cost_per_day: 1, judge: large}", AuditRule(share=0.02, cost_per_day=1.0, judge="large")),
    ],
)
def test_an_audit_is_a_share_or_a_rule(written: str, meant: AuditRule) -> None:
    cache = f"    cache: {{semantic: {{ttl: 1h, max_wrong_hits: 1%{written}}}}}\n"
    policy = policy_from_text(text(rule("default", more=cache)), "p.yaml", config())
    assert policy.warnings == ()
    assert policy.routes[0].semantic is not None
    assert policy.routes[0].semantic.audits == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", ReplaySettings()),
        (", replay: full", ReplaySettings()),
        (", replay: paced", ReplaySettings(paced=True)),
        (", replay: paced, replay_rate: 50/s", ReplaySettings(paced=True, rate=50.0)),
        (", fresh_ids: on", ReplaySettings(fresh_ids=True)),
    ],
)
def test_how_hits_are_played_back(written: str, meant: ReplaySettings) -> None:
    cache = f"    cache: {{exact: {{ttl: 1h}}{written}}}\n"
    policy = policy_from_text(text(rule("default", more=cache)), "p.yaml", config())
    assert policy.routes[0].replay == meant


@pytest.mark.parametrize(
    ("written", "learns"),
    [
        ("max_wrong_hits: 1%", True),
        ("max_wrong_hits: 1%, learn: on", True),
        ("max_wrong_hits: 1%, learn: off", False),
        ("min_similarity: 0.9", False),
    ],
)
def test_a_promise_learns_unless_it_is_told_not_to(written: str, learns: bool) -> None:
    cache = f"    cache: {{semantic: {{ttl: 1h, {written}}}}}\n"
    policy = policy_from_text(text(rule("default", more=cache)), "p.yaml", config())
    assert policy.routes[0].semantic is not None
    assert policy.routes[0].semantic.learns is learns


@pytest.mark.parametrize(
    ("written", "above", "share", "quality"),
    [
        ("", 0.5, None, None),
        (", escalate_above: 0.7", 0.7, None, None),
        (", large_share: 30%", 0.5, 0.3, None),
        (", quality: 0.95", 0.5, None, 0.95),
    ],
)
def test_one_rule_chooses_the_large_model(
    written: str, above: float, share: float | None, quality: float | None
) -> None:
    target = f"{{light: light, large: large{written}}}"
    policy = policy_from_text(text(rule("default").replace("{backend: main}", target)), "p.yaml", config())
    found = policy.routes[0].target
    assert (found.escalate_above, found.large_share, found.quality) == ((above,), share, quality)
    assert (found.learn, found.audit, policy.warnings) == (True, AuditRule(share=0.0), ())


def test_what_a_route_learns_from_is_read() -> None:
    target = "{light: light, large: large, quality: 90%, learn: off, audit: {share: 5%, per_hour: 20, judge: large}}"
    cached = rule("default", more="    cache: {exact: {ttl: 1h}}\n").replace("{backend: main}", target)
    found = policy_from_text(text(cached), "p.yaml", config()).routes[0].target
    assert (found.quality, found.learn) == (0.9, False)
    assert found.audit == AuditRule(share=0.05, per_hour=20, judge="large")


def test_the_policies_of_the_repository_are_good_and_share_across_tenants_in_one_place() -> None:
    examples = sorted((REPOSITORY / "policies" / "examples").glob("*.yaml"))
    for paths in ([], *([example] for example in examples)):
        result = check(paths, REPOSITORY / "config.yaml", {})
        shared = [f"{warning.file}:{warning.line}".rpartition("/")[2] for warning in result.warnings]
        assert (result.faults, shared) == ((), ["support-bot.yaml:14"] if "support-bot" in str(paths) else [])
        assert result.files


FRAGMENTS = st.sampled_from(
    ["version: 1\n", "routes:\n", "  - name: a\n", "    match: {}\n", "    route: {backend: main}\n", "    cache:\n",
     "      exact: off\n", "      semantic: {ttl: 1h, max_wrong_hits: 1%}\n", "      semantic: &a {ttl: 1h}\n",
     "  - *a\n",
     "    <<: *a\n", "    record: ${X}\n", "{", "}", "[", "]", "? ", "- ", ": ", "!!set ", "'", '"', "\x00", "\n",
     "&a ",
     "    match: {model: '[', headers: {a: '[!'}}\n", "    1: 2\n", "    cache: {exact: {ttl: 0x1}}\n", "~", "\ud800"]
)  # fmt: skip


def read_or_refuse(content: str) -> None:
    try:
        policy = policy_from_text(content, "any.yaml", config())
    except ConfigInvalid as invalid:
        assert invalid.faults
        assert all(str(fault).startswith("any.yaml:") for fault in invalid.faults)
    else:
        assert isinstance(policy, Policy)
        policy.match("/v1/chat/completions", "gpt-4o", "acme", {"a": "b"})


@settings(max_examples=500, deadline=None)
@given(st.lists(FRAGMENTS, max_size=14).map("".join))
def test_any_text_yields_a_policy_or_its_faults(content: str) -> None:
    read_or_refuse(content)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["1h", "1%", "off", "*", "[a", "main", "light", "large", "default"]),
)  # fmt: skip
KEYS = st.sampled_from(
    ["name", "match", "cache", "route", "record", "exact", "semantic", "ttl", "max_wrong_hits", "min_similarity",
     "audit", "share", "per_hour", "cost_per_day", "judge", "learn",
     "light", "large", "backend", "escalate_above", "large_share", "quality", "latency_budget", "headers",
     "model", "path", "tenant", "lite", "expose_headers", "stale_if_error", ""]
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(KEYS, TREES, max_size=6), max_size=3))
def test_any_tree_of_our_own_keys_yields_a_policy_or_its_faults(routes: list[object]) -> None:
    # JSON is YAML, but for NaN and the like, which are then text: as good a wrong value as any.
    read_or_refuse(json.dumps({"version": 1, "routes": routes}))
