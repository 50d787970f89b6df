"""Which answers a route's policy lets be stored, and how often a question has to be asked for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.admission import UseCounts, admit_response, refuse_request, roles_of
from gateway.calls import Inspection
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.schema import AdmitRule
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.features.tool_calls.rule import NamedTools
from gateway.outcomes import Admission
from tests.config.documents import config, rule, text
from tests.fixtures.entries import hexed
from tests.fixtures.gateways import BOTH_CACHES, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.http_server.test_lossless import choice


def asked(*roles: str, **fields: Any) -> Any:
    messages = [{"role": role, "content": "hi"} for role in roles or ("user",)]
    return OpenAI().parse(
        "/v1/chat/completions", json.dumps({"model": "m", "messages": messages, **fields}).encode(), {}
    )


def response(given: Any, **fields: Any) -> Any:
    return OpenAIResponses().parse("/v1/responses", json.dumps({"model": "m", "input": given, **fields}).encode(), {})


@pytest.mark.parametrize(
    ("rules", "call", "reason"),
    [
        (AdmitRule(), asked(temperature=2), None),
        (AdmitRule(max_temperature=0.5), asked(temperature=0.5), None),
        (AdmitRule(max_temperature=0.5), asked(temperature=0.6), Admission.TEMPERATURE),
        (AdmitRule(max_temperature=0.5), asked(), Admission.TEMPERATURE),  # the protocol's default is 1
        (AdmitRule(max_temperature=0.5), asked(temperature=None), Admission.TEMPERATURE),
        (AdmitRule(max_temperature=1.0), asked(), None),
        (AdmitRule(max_temperature=0.0), asked(temperature=0), None),
        (AdmitRule(roles=("system", "user")), asked("system", "user"), None),
        (AdmitRule(roles=("system", "user")), asked("user", "assistant", "user"), Admission.ROLE),
        (AdmitRule(roles=("system", "user")), asked("user", "tool"), Admission.ROLE),
        (AdmitRule(roles=("user",)), response("hi"), None),
        (AdmitRule(roles=("system",)), response("hi"), Admission.ROLE),
        (AdmitRule(roles=("user",)), response("hi", instructions="Be brief."), Admission.ROLE),
        (AdmitRule(roles=("user",)), response([{"role": "user", "content": "hi"}, {"type": "reasoning"}]), None),
        (AdmitRule(roles=("user",)), response([{"role": "developer", "content": "hi"}]), Admission.ROLE),
    ],
)
def test_some_requests_are_not_worth_an_entry(rules: AdmitRule, call: Any, reason: Admission | None) -> None:
    assert refuse_request(rules, call.body.get("temperature"), roles_of(call)) is reason


@pytest.mark.parametrize(
    ("rules", "inspected", "tokens", "dollars", "expected"),
    [
        (AdmitRule(), Admission.STORED, 5, 0.0, Admission.STORED),
        (AdmitRule(), Admission.TOOLS, 5, 0.0, Admission.TOOLS),
        (AdmitRule(min_tokens=5), Admission.STORED, 4, 0.0, Admission.TOO_SHORT),
        (AdmitRule(min_tokens=5), Admission.STORED, 5, 0.0, Admission.STORED),
        (AdmitRule(min_tokens=5), Admission.STORED, 0, 0.0, Admission.STORED),  # it does not tell
        (AdmitRule(max_tokens=5), Admission.STORED, 6, 0.0, Admission.TOO_LONG),
        (AdmitRule(max_tokens=5), Admission.STORED, 5, 0.0, Admission.STORED),
        (AdmitRule(min_cost=0.01), Admission.STORED, 5, 0.009, Admission.TOO_CHEAP),
        (AdmitRule(min_cost=0.01), Admission.STORED, 5, 0.01, Admission.STORED),
    ],
)
def test_some_answers_are_not_worth_an_entry(
    rules: AdmitRule, inspected: Admission, tokens: int, dollars: float, expected: Admission
) -> None:
    assert admit_response(rules, Inspection(inspected, 7, tokens), dollars) is expected


@pytest.mark.parametrize(
    ("inspected", "expected"),
    [(Admission.TOOLS, Admission.STORED), (Admission.INCOMPLETE, Admission.INCOMPLETE)],
)
def test_with_a_rule_on_tools_an_answer_may_call_some(inspected: Admission, expected: Admission) -> None:
    assert admit_response(AdmitRule(), Inspection(inspected, 7, 5), 0.0, tools=True) is expected


@given(st.lists(st.integers(0, 30), max_size=64))
def test_a_question_is_never_counted_too_low_within_the_window(questions: Sequence[int]) -> None:
    frequency, seen = UseCounts(width=16, window=64), Counter[int]()
    for question in questions:
        seen[question] += 1
        assert frequency.add(hexed(str(question))) >= seen[question]


def test_hardly_any_new_question_passes_for_one_that_was_asked() -> None:
    frequency = UseCounts()
    wrong = sum(frequency.add(hexed(str(i))) > 1 for i in range(3 * 65_536))
    assert wrong < 3 * 65_536 / 200


def test_what_was_asked_long_ago_is_forgotten() -> None:
    frequency = UseCounts(width=2**12, window=100)
    first = [frequency.add(hexed("q")) for _ in range(3)]
    for i in range(200):
        frequency.add(hexed(str(i)))
    assert (first, frequency.add(hexed("q"))) == ([1, 2, 3], 1)


async def outcomes(upstream: Upstream, tmp_path: Path, admit: str, asks: Sequence[dict[str, Any]]) -> list[str]:
    """Each ask three times: how it was answered; and the reasons that were counted."""
    backend = {"adapter": "openai", "url": upstream.url, "price": {"output_per_million": 100}}
    policy = BOTH_CACHES.replace("cache: {", f"cache: {{admit: {admit}, ")
    async with gateway_of(config_of(tmp_path, {"main": backend}), policy) as served:
        said: list[str] = []
        for ask in asks:
            answers = [await served.chat("hi", **ask) for _ in range(3)]
            said += [answer.cache_status.split("; ttl")[0].removeprefix("nearhit; ") for answer in answers]
        counted = served.gateway.parts.telemetry.admissions.values
        return [*said, *sorted(outcome for _, outcome in counted)]


HIT = "hit; detail=exact"


@pytest.mark.parametrize(
    ("admit", "ask", "expected"),
    [
        ("{max_temperature: 0.5}", {"temperature": 0.7}, ["fwd=miss"] * 3 + ["temperature"]),
        ("{max_temperature: 0.5}", {"temperature": 0.2}, ["fwd=miss; stored", HIT, HIT, "stored"]),
        ("{roles: [system]}", {}, ["fwd=miss"] * 3 + ["role"]),
        ("{min_tokens: 6}", {}, ["fwd=miss"] * 3 + ["too-short"]),
        ("{max_tokens: 4}", {}, ["fwd=miss"] * 3 + ["too-long"]),
        ("{max_size: 100}", {}, ["fwd=miss"] * 3 + ["too-large"]),
        ("{min_cost: 0.001}", {}, ["fwd=miss"] * 3 + ["too-cheap"]),
        ("{min_cost: 0.0005}", {}, ["fwd=miss; stored", HIT, HIT, "stored"]),
        ("{after: 2}", {}, ["fwd=miss", "fwd=miss; stored", HIT, "rare", "stored"]),
        ("{after: 2}", {"stream": True}, ["fwd=miss", "fwd=miss", HIT, "rare", "stored"]),
    ],
)
async def test_the_policy_says_what_is_stored(
    upstream: Upstream, tmp_path: Path, admit: str, ask: dict[str, Any], expected: list[str]
) -> None:
    assert await outcomes(upstream, tmp_path, admit, [ask]) == expected


async def test_a_tool_call_is_one_entry_for_streams_and_wholes_where_the_policy_allows_it(
    upstream: Upstream, tmp_path: Path
) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2]}'}}]
    said = {**choice(0, ""), "finish_reason": "tool_calls"}
    said["message"] |= {"content": None, "tool_calls": calls}
    body = {"id": "i", "object": "chat.completion", "created": 1, "model": "m", "choices": [said]}

    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response(body)

    upstream.answer = answer
    policy = BOTH_CACHES.replace("cache: {", "cache: {admit: {tools: on}, ")
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        streamed = await served.chat("hi", stream=True)
        whole = await served.chat("hi")
        assert (await served.chat("hi", stream=True)).body == streamed.body
    assert b'"tool_calls":[{"index":0,"function":{"arguments":"{' in streamed.body
    assert whole.json == body
    assert len(upstream.calls) == 1


def test_every_rule_is_read() -> None:
    written = "max_temperature: 1.0, tools: on, min_tokens: 2, max_tokens: 9, max_size: 64KiB, min_cost: 0.01"
    cache = f"    cache: {{exact: {{ttl: 1h}}, admit: {{{written}, roles: [system, user], after: 2}}}}\n"
    policy = policy_from_text(text(rule("default", more=cache)), "p.yaml", config())
    (route,) = policy.routes
    assert route.of(NamedTools) == NamedTools(("*",))
    assert route.admission.model_dump() == {
        "max_temperature": 1.0,
        "min_tokens": 2,
        "max_tokens": 9,
        "max_size": 65536,
        "min_cost": 0.01,
        "roles": ("system", "user"),
        "after": 2,
    }
    assert policy.warnings == ()
