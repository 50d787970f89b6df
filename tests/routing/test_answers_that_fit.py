"""An answer must fit the JSON Schema of its request: to be stored, and to end a cascade."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.config.policy.load import policy_from_text
from tests.features.cascade.test_cascade import saying
from tests.fixtures.gateways import Answer
from tests.fixtures.several import behind, counted, policy_of
from tests.fixtures.upstream import completion
from tests.routing.test_dispatch import HARD, backend_of, reasons

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OTHER = {"type": "object", "properties": {"town": {"type": "string"}}}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}}
ROME, ROMA = '{"city": "Rome"}', '{"city": 7}'
SCHEMA = "light: small, large: big, escalate_above: 0.5, cascade: {check: schema}"
GRADED = "light: small, large: big, escalate_above: 0.5, cascade: {check: consistency, accept_above: 0.1, samples: 2}"
SIMILAR = "cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.5}%s}"
TOOLS = {"tools": [{"type": "function", "function": {"name": "track", "parameters": {"type": "object"}}}]}


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")


def calling(arguments: Mapping[str, Any], name: str = "track") -> Any:
    """Answers with a tool call."""

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        whole = completion(call, "")
        function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
        made = {"id": "c", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [made]}
        whole["choices"][0] |= {"message": message, "finish_reason": "tool_calls"}
        return web.json_response(whole)

    return answer


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_does_not_fit_is_served_unchanged_and_not_stored(tmp_path: Path, streamed: bool) -> None:
    async with behind(tmp_path, policy_of("backend: main"), "main") as (served, upstreams):
        upstreams["main"].answer = saying(ROMA, ROME)
        first = await served.chat("Where?", stream=streamed, **FORM)
        second = await served.chat("Where?", stream=streamed, **FORM)
        third = await served.chat("Where?", stream=streamed, **FORM)
        assert [is_hit(answer) for answer in (first, second, third)] == [False, False, True]
        assert first.status == 200
        assert counted(served, "admissions") == {"schema": 1, "stored": 1}
        assert counted(served, "schema_checks") == {"invalid": 1, "valid": 1}


async def test_a_schema_that_is_not_valid_is_the_clients_affair(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "http://127.0.0.1:9/x"}}}
    async with behind(tmp_path, policy_of("backend: main"), "main") as (served, upstreams):
        upstreams["main"].answer = saying("free text")
        assert (await served.chat("Where?", response_format=form)).status == 200
        assert is_hit(await served.chat("Where?", response_format=form))
        assert counted(served, "schema_checks") == {"bad-schema": 1}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("route", "light", "outcome"),
    [
        (SCHEMA, [ROME], "accepted"),
        (SCHEMA, [ROMA], "misfit"),
        (GRADED, [ROME, ROME], "accepted"),
        (GRADED, [ROMA, ROMA], "misfit"),
    ],
)
async def test_a_cascade_escalates_what_does_not_fit(
    tmp_path: Path, route: str, light: list[str], outcome: str, streamed: bool
) -> None:
    async with behind(tmp_path, policy_of(route), "small", "big") as (served, upstreams):
        upstreams["small"].answer, upstreams["big"].answer = saying(*light), saying('{"city": "Paris"}')
        answer = await served.chat(HARD, stream=streamed, **FORM)
        assert backend_of(answer) == ("small" if outcome == "accepted" else "big")
        tier, why = ("light", "accepted") if outcome == "accepted" else ("large", "misfit")
        assert reasons(served) == {(tier, f"cascade-{why}"): 1}
        assert counted(served, "cascade") == {outcome: 1}
        assert is_hit(await served.chat(HARD, stream=streamed, **FORM))


async def test_where_the_large_model_fails_too_its_answer_is_served_and_not_stored(tmp_path: Path) -> None:
    async with behind(tmp_path, policy_of(SCHEMA), "small", "big") as (served, upstreams):
        upstreams["small"].answer, upstreams["big"].answer = saying(ROMA), saying("no JSON")
        answer = await served.chat(HARD, **FORM)
        assert answer.json["choices"][0]["message"]["content"] == "no JSON"
        assert (backend_of(answer), counted(served, "admissions")) == ("big", {"schema": 1})


async def test_a_check_by_schema_leaves_other_requests_alone(tmp_path: Path) -> None:
    async with behind(tmp_path, policy_of(SCHEMA), "small", "big") as (served, upstreams):
        assert backend_of(await served.chat(HARD)) == "big"
        assert (len(upstreams["small"].calls), counted(served, "cascade")) == (0, {})


async def test_a_light_tool_call_whose_arguments_do_not_fit_is_escalated(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "track", "parameters": CITY}}]
    async with behind(tmp_path, policy_of(SCHEMA), "small", "big") as (served, upstreams):
        upstreams["small"].answer, upstreams["big"].answer = calling({"city": 7}), calling({"city": "Rome"})
        assert backend_of(await served.chat(HARD, tools=tools)) == "big"
        upstreams["small"].answer = calling({"city": "Rome"})
        assert backend_of(await served.chat(HARD, tools=tools, seed=1)) == "small"


async def test_a_similar_question_gets_an_answer_only_under_the_same_schema_and_tools(tmp_path: Path) -> None:
    policy = policy_of("backend: main", cache=SIMILAR % "")
    async with behind(tmp_path, policy, "main") as (served, upstreams):
        upstreams["main"].answer = saying(ROME, ROME, ROME, ROME, ROME)
        other = {"type": "json_schema", "json_schema": {"name": "a", "schema": OTHER}}
        first, again = "where is the capital of Italy today", "where is the capital of Italy right today"
        assert not is_hit(await served.chat(first, **FORM))
        assert not is_hit(await served.chat(again, response_format=other))
        assert not is_hit(await served.chat(again))
        assert not is_hit(await served.chat(again, **FORM, **TOOLS))
        assert (await served.chat(again, **FORM)).cache_status.startswith("nearhit; hit; detail=semantic")


@pytest.mark.parametrize(
    ("tools", "arguments", "reason"),
    [
        ("", {"day": "today"}, "tools"),
        (", admit: {tools: [other]}", {"day": "today"}, "tools"),
        (", admit: {tools: [tra*]}", {"day": "today"}, "stored"),
        (", admit: {tools: on}", {"order": "A-1001"}, "stored"),
        (", admit: {tools: on}", {"order": "A-1002"}, "foreign-id"),
    ],
)
async def test_the_policy_says_which_tool_calls_are_stored(
    tmp_path: Path, tools: str, arguments: dict[str, Any], reason: str
) -> None:
    cache = f"cache: {{exact: {{ttl: 1h}}{tools}}}"
    async with behind(tmp_path, policy_of("backend: main", cache=cache), "main") as (served, upstreams):
        upstreams["main"].answer = calling(arguments)
        await served.chat("where is order A-1001 today", **TOOLS)
        assert is_hit(await served.chat("where is order A-1001 today", **TOOLS)) is (reason == "stored")
        assert set(counted(served, "admissions")) == {reason}


async def test_a_similar_question_about_another_order_never_gets_the_tool_call(tmp_path: Path) -> None:
    policy = policy_of("backend: main", cache=SIMILAR % ", admit: {tools: on}")
    async with behind(tmp_path, policy, "main") as (served, upstreams):
        upstreams["main"].answer = calling({"order": "A-1001"})
        await served.chat("please tell me where the order A-1001 is today", **TOOLS)
        again = await served.chat("please tell me where the order A-1001 is right today", **TOOLS)
        assert again.cache_status.startswith("nearhit; hit; detail=semantic")
        assert not is_hit(await served.chat("please tell me where the order A-1002 is today", **TOOLS))
        assert counted(served, "refusals").get("tool-call") == 1


async def test_a_stored_tool_call_is_not_served_once_the_policy_names_it_no_more(tmp_path: Path) -> None:
    allowed = policy_of("backend: main", cache=SIMILAR % ", admit: {tools: [track]}")
    async with behind(tmp_path, allowed, "main") as (served, upstreams):
        upstreams["main"].answer = calling({"day": "today"})
        question = "tell me where the parcel is today"
        await served.chat(question, **TOOLS)
        assert is_hit(await served.chat(question, **TOOLS))
        forbidden = policy_from_text(policy_of("backend: main", cache=SIMILAR % ""), "p", served.gateway.config)
        served.gateway.apply(forbidden)
        assert not is_hit(await served.chat(question, **TOOLS))
