"""Which results of MCP servers are stored, for how long, and for whom."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.bounded_cache import BoundedCache
from gateway.calls import CacheHints, Call
from gateway.entries import NO_DIRECTIVES, CacheDirectives
from gateway.features.mcp.dialect import MCP, VERSION_KEY
from gateway.features.mcp.results import (
    NEVER,
    McpKnowledge,
    ResultTerms,
    changed_subjects,
    place_result,
    read_only_tools,
    refusal_of,
    since_change,
    subject_of,
)
from gateway.features.mcp.rule import McpRule
from gateway.outcomes import Admission, Bypass

RULE = McpRule.model_validate(
    {
        "results": {"tools/list": {"ttl": "60s", "scope": "public"}, "prompts/get": {"ttl": "30s"}},
        "tools": {"search": {"ttl": "20s"}, "weather": {"ttl": "20s", "scope": "public", "read_only": True}},
    }
)


def call_of(method: str, *, modern: bool = True, **params: Any) -> Call:
    if modern:
        params["_meta"] = {VERSION_KEY: "2026-07-28"}
    return MCP().parse("/mcp", orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}), {})


@pytest.mark.parametrize(
    ("call", "listed", "refusal"),
    [
        (call_of("resources/read", uri="a"), False, None),
        (call_of("resources/read", modern=False, uri="a"), False, Bypass.POLICY),
        (call_of("tools/list", modern=False), False, None),
        (call_of("tools/call", name="weather"), False, None),
        (call_of("tools/call", name="search"), False, Bypass.TOOL),
        (call_of("tools/call", name="search"), True, None),
        (call_of("tools/call", name="write"), True, Bypass.TOOL),
        (call_of("tools/call", name=["search"]), True, Bypass.TOOL),
    ],
)
def test_a_call_is_looked_up_if_something_says_so(call: Call, listed: bool, refusal: Bypass | None) -> None:
    assert refusal_of(RULE, call, lambda _: listed) is refusal


STORED, NO_TTL = Admission.STORED, Admission.NO_TTL


@pytest.mark.parametrize(
    ("call", "hints", "private", "placement"),
    [
        (call_of("resources/read"), CacheHints(), False, ResultTerms(NO_TTL)),
        (call_of("resources/read"), CacheHints(9.0), False, ResultTerms(STORED, 9.0, False)),
        (call_of("resources/read"), CacheHints(9.0, public=True), False, ResultTerms(STORED, 9.0, True)),
        (call_of("resources/read"), CacheHints(9.0, public=True), True, ResultTerms(STORED, 9.0, False)),
        # the server's words count before the policy's
        (call_of("tools/list"), CacheHints(), False, ResultTerms(STORED, 60.0, True)),
        (call_of("tools/list"), CacheHints(0.0), False, ResultTerms(NO_TTL)),
        (call_of("tools/list"), CacheHints(90.0, public=False), False, ResultTerms(STORED, 90.0, False)),
        (call_of("prompts/get"), CacheHints(), False, ResultTerms(STORED, 30.0, False)),
        # of a tool, the shorter lifetime does
        (call_of("tools/call", name="weather"), CacheHints(90.0), False, ResultTerms(STORED, 20.0, True)),
        (call_of("tools/call", name="weather"), CacheHints(5.0), False, ResultTerms(STORED, 5.0, True)),
        (call_of("tools/call", name="search"), CacheHints(), False, ResultTerms(STORED, 20.0, False)),
    ],
)
def test_a_result_lives_as_server_and_policy_say(
    call: Call, hints: CacheHints, private: bool, placement: ResultTerms
) -> None:
    assert place_result(RULE, call, hints, private=private) == placement


@pytest.mark.parametrize(
    ("message", "subjects"),
    [
        ({"method": "notifications/tools/list_changed"}, ("tools/list", "tools/call")),
        ({"method": "notifications/prompts/list_changed"}, ("prompts/list", "prompts/get")),
        ({"method": "notifications/resources/list_changed"}, ("resources/list", "resources/templates/list")),
        ({"method": "notifications/resources/updated", "params": {"uri": "a"}}, ("resources/read\0a",)),
        ({"method": "notifications/resources/updated"}, ()),
        ({"method": "notifications/progress"}, ()),
        ({"method": 1}, ()),
        ({"result": {}}, ()),
    ],
)
def test_a_notification_names_what_is_stale(message: dict[str, Any], subjects: tuple[str, ...]) -> None:
    assert changed_subjects(message) == subjects


def test_an_update_and_a_reading_of_it_have_one_name() -> None:
    update = {"method": "notifications/resources/updated", "params": {"uri": "note://a"}}
    assert changed_subjects(update) == (subject_of(call_of("resources/read", uri="note://a")),)


def test_a_list_says_which_tools_only_read() -> None:
    tools = [
        {"name": "a", "annotations": {"readOnlyHint": True}},
        {"name": "b", "annotations": {"readOnlyHint": "yes"}},
        {"name": "c", "annotations": {"readOnlyHint": False}},
        {"name": "d"},
        {"name": 1, "annotations": {"readOnlyHint": True}},
        7,
    ]
    assert read_only_tools({"tools": tools}) == {"a"}
    assert read_only_tools({"tools": {}}) is None


def test_only_the_last_list_counts() -> None:
    knowledge = McpKnowledge()
    assert not knowledge.record_tools("r", "alice", frozenset({"a"}), further_page=False)
    assert not knowledge.record_tools("r", "alice", frozenset({"b"}), further_page=True)
    assert knowledge.only_reads("r", "alice", "a")
    assert knowledge.only_reads("r", "alice", "b")
    assert not knowledge.only_reads("r", "bob", "a")
    assert not knowledge.only_reads("s", "alice", "a")
    assert knowledge.record_tools("r", "alice", frozenset({"b"}), further_page=False), "one is gone"
    assert not knowledge.only_reads("r", "alice", "a")


def test_a_change_concerns_one_owner_and_one_subject() -> None:
    published: list[str] = []
    knowledge, other = McpKnowledge(published.append), McpKnowledge()
    knowledge.record_change("r", "alice", "tools/list", 100.0)
    assert knowledge.changed_at("r", "alice", "tools/list") == 100.0
    assert knowledge.changed_at("r", "bob", "tools/list") == NEVER
    assert knowledge.changed_at("r", "alice", "prompts/list") == NEVER
    other.apply_change(published[0], 101.0)
    assert other.changed_at("r", "alice", "tools/list") == 101.0
    assert "alice" not in published[0]


def test_what_is_forgotten_counts_as_changed() -> None:
    knowledge = McpKnowledge()
    knowledge._changes = BoundedCache(2, evicted=knowledge._forget)
    for at, subject in enumerate(("a", "b", "c")):
        knowledge.record_change("r", "alice", subject, float(at))
    assert knowledge.changed_at("r", "alice", "c") == 2.0
    assert knowledge.changed_at("r", "alice", "a") == 0.0
    assert knowledge.changed_at("r", "bob", "z") == 0.0


def test_after_a_change_only_younger_results_are_accepted() -> None:
    assert since_change(NO_DIRECTIVES, NEVER, 100.0) is NO_DIRECTIVES
    assert since_change(NO_DIRECTIVES, 90.0, 100.0).max_age_s == 10.0
    assert since_change(CacheDirectives(max_age_s=3.0, no_cache=True), 90.0, 100.0) == CacheDirectives(
        max_age_s=3.0, no_cache=True
    )
    assert since_change(NO_DIRECTIVES, 101.0, 100.0).max_age_s == 0.0
