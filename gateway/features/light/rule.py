"""The section `route.rollout` of a route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.fields import WebhookUrl, optional_section
from gateway.config.policy.model import Route
from gateway.config.policy.schema import AuditRule
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import PositiveDuration, PositiveShare
from gateway.config.validation import Problem, Section

MAX_STEPS = 10


def _check_steps(steps: tuple[float, ...]) -> tuple[float, ...]:
    if not 1 <= len(steps) <= MAX_STEPS or steps[-1] != 1.0 or any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"expected 1 to {MAX_STEPS} rising shares that end with 100%, such as [5%, 25%, 100%]")
    return steps


class RolloutRule(Section):
    """The rollout of new versions of the light model."""

    steps: Annotated[tuple[PositiveShare, ...], AfterValidator(_check_steps), Field(strict=False)] = (0.05, 0.25, 1.0)
    """The shares of the light model's calls that a new version gets, one after another."""
    audit: PositiveShare = 0.05
    """The share of the light answers that are compared with an answer of the large model. All versions are asked."""
    per_hour: Annotated[int, Field(ge=1)] | None = 500
    """Calls of the large model per hour and gateway for these comparisons."""
    cost_per_day: Annotated[float, Field(gt=0)] | None = None
    """US dollars per day and gateway for these comparisons, by the `price` of the large model. Without it, no bound."""
    margin: PositiveShare = 0.03
    """The loss of agreement with the large model, against the version before, up to which a version counts as equal."""
    agreement: PositiveShare = 0.8
    """The agreement with the large model that a version needs at least. Below it the large model answers."""
    slower: Annotated[float, Field(ge=1, le=100)] = 1.5
    """How many times as long as the version before a new one may take for the same question, in 10 % of its answers at
    most. Differences below 20 ms do not count."""
    give_up_after: PositiveDuration = 86_400.0
    """How long a step waits for its evidence. Then the version before has all calls again."""
    keep: PositiveDuration = 30 * 86_400.0
    """How long questions with the large model's answers are kept in the store, for the training."""
    webhook: WebhookUrl | None = None
    """The URL that is told of each change: a version begins, gets more, is promoted, or is rolled back."""

    @property
    def audits(self) -> AuditRule:
        """The bounds of the comparisons."""
        return AuditRule(share=self.audit, per_hour=self.per_hour, cost_per_day=self.cost_per_day)


RolloutForm = Annotated[
    RolloutRule | None,
    BeforeValidator(optional_section(RolloutRule, "{audit: 5%}")),
    or_schemas(SWITCH),
    ON_OR_OFF,
]
SUMMARY = (
    "`on`, or `{audit: 5%}`: keep the large model's answers for the training of the light one, and roll new versions "
    "of it out step by step (`nearhit light`)."
)


def rule_of(route: Route) -> RolloutRule:
    """Return the rule of a route that has one."""
    rule = route.of(RolloutRule)
    assert rule is not None  # the route uses the feature
    return rule


def rollout_problems(route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the contradictions with the tiers. `route` is as written."""
    target = route.get("route")
    light = target.get("light") if isinstance(target, dict) else None
    if isinstance(light, dict):
        yield Problem(
            ("route", "rollout"),
            "divides the calls of the light model by version, expected one backend in light, such as light: intents",
        )
