"""What is allowed and hardly meant is warned of, where it is certain."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.policy import MIN_ANSWERS, unmet_budgets
from gateway.config.policy.check import check
from gateway.config.policy.consistency import covers
from gateway.config.policy.load import PolicySource, policy_from_text, read_policy
from gateway.observability.telemetry import Telemetry
from tests.config.documents import config, rule, text


def warnings(document: str, **adapters: str) -> list[str]:
    reading = read_policy([PolicySource("p.yaml", document.encode())], (), adapters=adapters)
    assert reading.faults == ()
    return list(map(str, reading.warnings))


GLOBS = st.lists(st.sampled_from(["*", "?", "a", "b", "[ab]", "[!a]", "[", "]", "!"]), max_size=5).map("".join)


@settings(max_examples=500, deadline=None)
@given(GLOBS, GLOBS, st.text(alphabet="ab[]!", max_size=5))
def test_a_glob_that_covers_another_matches_all_that_it_does(wide: str, narrow: str, said: str) -> None:
    if covers(wide, narrow) and fnmatchcase(said, narrow):
        assert fnmatchcase(said, wide)


@pytest.mark.parametrize(
    ("wide", "narrow", "does"),
    [
        ("gpt-*", "gpt-4*", True),
        ("gpt-*", "gpt-4o", True),
        ("gpt-4*", "gpt-*", False),
        ("*mini*", "gpt-*mini", True),
        ("[ab]", "a", True),
        ("[ab]", "[ab]", True),
        ("[ab]", "c", False),
        (None, "x", True),
        ("*", None, True),
        ("**", "x", True),
        ("?", None, False),
        ("a", "a", True),
    ],
)
def test_what_covers_what(wide: str | None, narrow: str | None, does: bool) -> None:
    assert covers(wide, narrow) is does


def test_a_rule_behind_a_wider_one_is_never_reached() -> None:
    document = text(
        rule("wide", "{model: 'gpt-*'}"),
        rule("narrow", "{model: gpt-4o, tenant: acme}"),
        rule("same", "{model: 'gpt-*'}"),
        rule("other", "{model: 'llama-*'}"),
        rule("default"),
    )
    assert warnings(document) == [
        "p.yaml:7: routes[1].match: unreachable: the earlier rule 'wide' (p.yaml:3) is wider, expected the narrower "
        "rule first",
        "p.yaml:10: routes[2].match: unreachable: the earlier rule 'wide' (p.yaml:3) matches the same requests, "
        "expected another match, or only one of the two rules",
    ]


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        ("{headers: {X-App: '*'}}", "{headers: {x-app: support}}", True),
        ("{headers: {x-app: support}}", "{headers: {x-app: '*'}}", False),
        ("{headers: {x-app: support, x-a: b}}", "{headers: {x-app: support}}", False),
        ("{tenant: acme, model: '*'}", "{model: gpt-4o}", False),
        ("{path: '/v1/*'}", "{path: /v1/embeddings, tenant: acme}", True),
    ],
)
def test_headers_and_the_rest_must_all_be_covered(first: str, second: str, warned: bool) -> None:
    assert bool(warnings(text(rule("a", first), rule("b", second), rule("default")))) is warned


@pytest.mark.parametrize(
    ("cache", "tenant", "said"),
    [
        ("{exact: {ttl: 1h}, share: global}", "", "get the answers of one tenant, expected"),
        ("{semantic: {ttl: 1h, max_wrong_hits: 1%}, share: global}", "", "even to similar questions"),
        ("{exact: {ttl: 1h}, share: global}", "tenant: acme", None),
        ("{exact: {ttl: 1h}, share: global}", "tenant: 'a*'", "get the answers of one tenant, expected"),
        ("{exact: off, share: global}", "", None),
        ("{exact: {ttl: 1h}, share: tenant}", "", None),
    ],
)
def test_sharing_across_tenants_is_warned_of(cache: str, tenant: str, said: str | None) -> None:
    found = warnings(text(rule("a", f"{{model: m, {tenant}}}", f"    cache: {cache}\n"), rule("default")))
    assert ([said in found[0]] if said else found) == ([True] if said else [])


@pytest.mark.parametrize(
    ("target", "adapter", "warned"),
    [
        ("light: l, large: g, cascade: {check: logprobs, accept_above: 0.7}", "triton", True),
        ("light: l, large: g, cascade: {check: logprobs, accept_above: 0.7}", "openai", False),
        ("light: l, large: g, cascade: {check: logprobs, accept_above: 0.7, otherwise: verifier}", "triton", False),
        ("tiers: [{l: 50%, m: 50%}, g], cascade: {check: logprobs, accept_above: 0.7}", "triton", True),
        ("light: l, large: g, cascade: {check: consistency, accept_above: 0.7}", "triton", False),
    ],
)
def test_a_cascade_by_log_probabilities_needs_a_backend_that_has_some(target: str, adapter: str, warned: bool) -> None:
    document = text(rule("default")).replace("{backend: main}", f"{{{target}}}")
    assert bool(warnings(document, l=adapter, m=adapter, g="openai")) is warned
    assert warnings(document) == [], "what is not known is not warned of"


def test_a_backend_that_no_rule_uses_is_warned_of_where_all_files_are_there(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "version: 1\nbackends:\n  main: &a {adapter: openai, url: https://host/v1}\n  idle: *a\n  judge: *a\n"
    )
    (tmp_path / "policies").mkdir()
    cache = "    cache: {semantic: {ttl: 1h, max_wrong_hits: 1%, audit: {share: 1%, judge: judge}}}\n"
    (tmp_path / "policies" / "default.yaml").write_text(text(rule("default", more=cache)))
    (found,) = check([], tmp_path / "config.yaml", {}).warnings
    assert str(found).endswith("policies:1: (document): no rule uses the backend 'idle' of the configuration, expected "
                               "a rule with it, or no such backend")  # fmt: skip
    assert check([tmp_path / "policies" / "default.yaml"], tmp_path / "config.yaml", {}).warnings == ()


@pytest.mark.parametrize(
    ("answers", "warned"),
    [
        ([1.0] * MIN_ANSWERS, True),
        ([1.0] * (MIN_ANSWERS - 1), False),
        ([1.0] * MIN_ANSWERS + [0.05], False),
        ([], False),
    ],
)
def test_a_budget_that_no_backend_has_ever_met_is_warned_of(answers: list[float], warned: bool) -> None:
    document = text(rule("default")).replace("{backend: main}", "{light: light, large: large, latency_budget: 100ms}")
    policy, telemetry = policy_from_text(document, "p.yaml", config()), Telemetry()
    for name in ("light", "large"):
        for seconds in answers:
            telemetry.backend_seconds.observe(seconds, name)
    found = [str(doubt) for doubt in unmet_budgets(policy, telemetry)]
    assert [bool(re.search("no answer of light, large has come within 0.1 s", each)) for each in found] == [
        True
    ] * warned
