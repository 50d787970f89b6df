"""The parameters of a tier, on a call of each dialect."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.policy.parameters import Parameters
from gateway.dialects.tuning import effort_of, tuned_call
from tests.features.answer_schemas.test_validator import CHAT, MESSAGES, RESPONSES, call_of

LOW, BUDGET, SHORT = Parameters("low"), Parameters(thinking_budget=2048), Parameters(max_tokens=300)
THINKING = {"type": "enabled", "budget_tokens": 2048}
OPENAI, ANTHROPIC = "openai", "anthropic"


@pytest.mark.parametrize(
    ("path", "speaks", "client", "parameters", "expected"),
    [
        # the tier's value, where the client says nothing
        (CHAT, OPENAI, {}, LOW, {"reasoning_effort": "low"}),
        (RESPONSES, "openai-responses", {}, LOW, {"reasoning": {"effort": "low"}}),
        (MESSAGES, ANTHROPIC, {}, LOW, {"output_config": {"effort": "low"}}),
        (MESSAGES, ANTHROPIC, {}, Parameters("minimal"), {"output_config": {"effort": "low"}}),
        (MESSAGES, ANTHROPIC, {}, Parameters("none"), {"thinking": {"type": "disabled"}}),
        (CHAT, OPENAI, {}, SHORT, {"max_completion_tokens": 300}),
        (RESPONSES, "openai-responses", {}, SHORT, {"max_output_tokens": 300}),
        # the lower of both
        (CHAT, OPENAI, {"reasoning_effort": "high"}, LOW, {"reasoning_effort": "low"}),
        (CHAT, OPENAI, {"reasoning_effort": "minimal"}, LOW, {"reasoning_effort": "minimal"}),
        (CHAT, OPENAI, {"reasoning_effort": "turbo"}, LOW, {"reasoning_effort": "turbo"}),
        (RESPONSES, "x", {"reasoning": {"summary": "auto"}}, LOW, {"reasoning": {"summary": "auto", "effort": "low"}}),
        (MESSAGES, ANTHROPIC, {"output_config": {"effort": "max"}}, LOW, {"output_config": {"effort": "low"}}),
        (MESSAGES, ANTHROPIC, {"thinking": {"type": "disabled"}}, LOW, {"output_config": None}),
        (CHAT, OPENAI, {"max_tokens": 100}, SHORT, {"max_tokens": 100, "max_completion_tokens": None}),
        (CHAT, OPENAI, {"max_tokens": 900}, SHORT, {"max_tokens": 300}),
        (MESSAGES, ANTHROPIC, {"max_tokens": 900}, SHORT, {"max_tokens": 300}),
        # a limit below the client's own budget for thinking
        (
            MESSAGES,
            ANTHROPIC,
            {"max_tokens": 9000, "thinking": THINKING},
            Parameters(max_tokens=1500),
            {"max_tokens": 1500, "thinking": {**THINKING, "budget_tokens": 1499}},
        ),
        (MESSAGES, ANTHROPIC, {"max_tokens": 9000, "thinking": THINKING}, SHORT, {"thinking": {"type": "disabled"}}),
        # budgets for thinking
        (MESSAGES, ANTHROPIC, {"max_tokens": 9000}, BUDGET, {"thinking": THINKING}),
        (CHAT, ANTHROPIC, {}, BUDGET, {"thinking": THINKING, "reasoning_effort": None}),
        (CHAT, OPENAI, {}, BUDGET, {"reasoning_effort": "medium", "thinking": None}),
        (MESSAGES, OPENAI, {}, BUDGET, {"output_config": {"effort": "medium"}, "thinking": None}),
        (MESSAGES, ANTHROPIC, {"max_tokens": 1500}, BUDGET, {"thinking": {**THINKING, "budget_tokens": 1499}}),
        (MESSAGES, ANTHROPIC, {"max_tokens": 900}, BUDGET, {"thinking": None}),
        (MESSAGES, ANTHROPIC, {"max_tokens": 9000, "temperature": 0.2}, BUDGET, {"thinking": None}),
        (MESSAGES, ANTHROPIC, {"max_tokens": 9000, "tool_choice": {"type": "any"}}, BUDGET, {"thinking": None}),
        (MESSAGES, ANTHROPIC, {"thinking": {"type": "disabled"}}, BUDGET, {"thinking": {"type": "disabled"}}),
        (
            MESSAGES,
            ANTHROPIC,
            {"max_tokens": 9000, "thinking": {**THINKING, "budget_tokens": 1100}},
            BUDGET,
            {"thinking": {**THINKING, "budget_tokens": 1100}},
        ),
        (
            MESSAGES,
            ANTHROPIC,
            {"max_tokens": 9000, "thinking": {**THINKING, "budget_tokens": 8000}},
            BUDGET,
            {"thinking": THINKING},
        ),
        (MESSAGES, ANTHROPIC, {"max_tokens": 9000}, Parameters(thinking_budget=0), {"thinking": {"type": "disabled"}}),
        # both at once, for a protocol without budgets: the lower one
        (CHAT, OPENAI, {}, Parameters("high", 1024), {"reasoning_effort": "low"}),
    ],
)
def test_a_tier_bounds_the_effort_of_a_request(
    path: str, speaks: str, client: dict[str, Any], parameters: Parameters, expected: dict[str, Any]
) -> None:
    call = call_of(path, **client)
    tuned = tuned_call(call, parameters, speaks)
    assert {key: tuned.body.get(key) for key in expected} == expected
    assert (tuned.tuning, tuned.body_bytes) == (str(parameters), None)
    assert (tuned.canonical, tuned.context) == (call.canonical, call.context)  # the keys are the client's
    assert {**call.body} == {**call_of(path, **client).body}  # unchanged


def test_a_result_of_a_tool_that_was_called_without_thinking_is_answered_without_it() -> None:
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "7"}]}
    call = call_of(MESSAGES, max_tokens=9000, messages=[result])
    assert "thinking" not in tuned_call(call, BUDGET, ANTHROPIC).body


def test_the_limit_of_a_tier_is_known_to_predictions() -> None:
    assert tuned_call(call_of(CHAT), SHORT, OPENAI).max_tokens == 300
    assert tuned_call(call_of(CHAT, max_tokens=100), SHORT, OPENAI).max_tokens == 100


def test_embeddings_have_no_effort() -> None:
    call = call_of(CHAT)
    call.operation = "embeddings"
    assert tuned_call(call, LOW, OPENAI) is call


@pytest.mark.parametrize(
    ("budget", "effort"), [(0, "none"), (1024, "low"), (2048, "medium"), (4096, "high"), (64_000, "high")]
)
def test_a_budget_has_an_effort_that_comes_nearest(budget: int, effort: str) -> None:
    assert effort_of(budget) == effort
