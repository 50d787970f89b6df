"""Which route a request takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.config.policy.model import MAX_CACHED_MATCHES, MAX_CACHED_NAME_CHARS
from gateway.features.recorder.rule import RecordRule
from gateway.ports import Acceptance
from tests.config.documents import policy, rule
from tests.fixtures.targets import light_and_large, one_backend

CHAT = "/v1/chat/completions"


def taken(*rules: str, path: str = CHAT, model: str = "gpt-4o", tenant: str = "acme", headers: object = None) -> str:
    return policy(*rules).match(path, model, tenant, headers or {}).name  # type: ignore[arg-type]


def test_the_first_rule_that_matches_wins() -> None:
    assert taken(rule("one", "{model: 'gpt-*'}"), rule("two", "{model: gpt-4o}")) == "one"


def test_what_no_rule_takes_goes_to_the_default() -> None:
    assert taken(rule("one", "{model: llama}")) == "default"


@pytest.mark.parametrize(
    ("glob", "model", "matches"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-*", "gpt-", True),
        ("gpt-*", "xgpt-4", False),
        ("gpt-?o", "gpt-4o", True),
        ("gpt-[34]*", "gpt-5", False),
        ("[!g]*", "llama", True),
        ("GPT-*", "gpt-4o", False),
        ("a.c", "abc", False),
        ("*", "", True),
        ("gpt-*", "gpt-4\no", True),
    ],
)
def test_a_model_is_a_case_sensitive_glob(glob: str, model: str, matches: bool) -> None:
    one = rule("one", f"{{tenant: acme, model: {glob!r}}}")
    assert taken(one, model=model) == ("one" if matches else "default")


def test_a_path_is_a_glob() -> None:
    assert taken(rule("one", "{path: '/v1/*'}")) == "one"
    assert taken(rule("one", "{path: '/v2/*'}")) == "default"


def test_every_pattern_of_a_rule_must_match() -> None:
    one = rule("one", f"{{path: {CHAT}, model: 'gpt-*', tenant: acme, headers: {{x-app: support}}}}")
    assert taken(one, headers={"x-app": "support"}) == "one"
    assert taken(one, headers={"x-app": "support"}, tenant="beta") == "default"
    assert taken(one, headers={"x-app": "support"}, model="llama") == "default"
    assert taken(one, headers={"x-app": "sales"}) == "default"
    assert taken(one) == "default"


def test_header_names_ignore_case_on_both_sides_and_values_do_not() -> None:
    one = rule("one", "{headers: {X-App: 'sup*'}}")
    assert taken(one, headers={"x-aPP": "support"}) == "one"
    assert taken(one, headers=CIMultiDict({"X-APP": "support"})) == "one"
    assert taken(one, headers={"x-app": "Support"}) == "default"


def test_any_of_several_headers_of_a_name_may_match() -> None:
    headers = CIMultiDict([("x-app", "sales"), ("x-app", "support")])
    assert taken(rule("one", "{headers: {x-app: support}}"), headers=headers) == "one"


def test_a_star_asks_for_a_header_that_is_there() -> None:
    one = rule("one", "{headers: {x-app: '*'}}")
    assert taken(one, headers={"x-app": ""}) == "one"
    assert taken(one) == "default"


def test_a_tenant_is_never_taken_for_another() -> None:
    assert taken(rule("one", "{tenant: acm}")) == "default"
    assert taken(rule("one", "{tenant: acme}")) == "one"


def test_a_rule_becomes_a_route_in_seconds_and_shares() -> None:
    route = policy(
        rule("one", "{tenant: acme}").replace(
            "{backend: main}", "{light: light, large: large, escalate_above: 0.7, latency_budget: 800ms}"
        )
        + "    cache: {exact: {ttl: 24h}, semantic: {ttl: 6h, max_wrong_hits: 1%}, share: user}\n"
        + "    expose_headers: off\n"
    ).routes[0]
    assert (route.exact_ttl_s, route.latency_budget_s, route.share) == (86400, 0.8, "user")
    assert route.semantic is not None
    assert (route.semantic.ttl, route.semantic.acceptance) == (21600, Acceptance(None, 0.01))
    assert route.target == light_and_large("light", "large", 0.7)
    assert not route.expose_headers
    assert (route.file, route.line) == ("test.yaml", 3)


def test_without_a_cache_both_caches_are_off() -> None:
    route = policy(rule("one", "{tenant: acme}")).routes[0]
    assert (route.exact_ttl_s, route.semantic, route.target) == (None, None, one_backend("main"))


@pytest.mark.parametrize("off", ["off", "'off'", "false"])
def test_off_is_off_however_yaml_reads_it(off: str) -> None:
    cache = f"    cache: {{exact: {off}, semantic: {off}}}\n    record: {off}\n"
    route = policy(rule("one", "{tenant: acme}", cache)).routes[0]
    assert (route.exact_ttl_s, route.semantic, route.of(RecordRule)) == (None, None, None)


def test_the_text_of_a_policy_decides_its_hash() -> None:
    first, second = policy(), policy(rule("one", "{tenant: acme}"))
    assert first.hash != second.hash
    assert first.hash == policy().hash
    assert len(first.hash) == 12


@given(
    st.lists(st.tuples(*[st.sampled_from(("*", "a", "a*", "?b", "ab"))] * 3, st.sampled_from(("", "x", "y*")))),
    st.lists(
        st.tuples(
            *[st.sampled_from(("a", "ab", "bb", "b" * MAX_CACHED_NAME_CHARS))] * 3, st.sampled_from(("x", "yy", ""))
        )
    ),
)
def test_names_that_come_again_take_the_route_that_the_rules_give_one_by_one(rules: Any, asked: Any) -> None:
    written = [
        rule(f"r{i}", f"{{path: '{p}', model: '{m}', tenant: '{t}'" + (f", headers: {{h: '{h}'}}}}" if h else "}"))
        for i, (p, m, t, h) in enumerate(rules)
        if {p, m, t} != {"*"} or h
    ]
    found = policy(*written)
    for path, model, tenant, header in [*asked, *asked]:
        headers = CIMultiDict({"H": header} if header else {})
        one_by_one = (
            r for r in found.routes if r.match.names(path, model, tenant) and r.match.matches_headers(headers)
        )
        assert found.match(path, model, tenant, headers) is next(one_by_one)


def test_what_clients_name_takes_no_memory_without_bound() -> None:
    found = policy(rule("one", "{model: 'gpt-*'}"))
    for number in range(3 * MAX_CACHED_MATCHES):
        found.match(CHAT, f"m{number}", "acme", {})
        found.match(CHAT, "m" * (MAX_CACHED_NAME_CHARS + number), "acme", {})
    assert len(found._match_cache) <= MAX_CACHED_MATCHES
    assert all(sum(map(len, names)) <= MAX_CACHED_NAME_CHARS for names in found._match_cache)
