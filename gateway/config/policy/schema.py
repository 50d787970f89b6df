"""What a file of `policies/` may say. Field names are the keys of the file; durations are seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.errors import format_value
from gateway.config.fields import Name, Text, Version, optional_section
from gateway.config.policy.limits import LimitRules, duplicate_limit_problems, tier_limit_problems
from gateway.config.policy.targets import CascadeRule, Parts, ShadowRule, Steps, TierParts, tier_problems
from gateway.config.policy.tests import MAX_EXPECTATIONS, ExpectationRule
from gateway.config.schema_types import OFF, SWITCH, or_schemas
from gateway.config.units import (
    SHARE,
    Duration,
    PositiveDuration,
    PositiveShare,
    Rate,
    Share,
    Size,
    Switch,
    parse_share,
)
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of


class ExactRule(Section):
    """Answers to the very same request are served again."""

    ttl: PositiveDuration = Field(examples=["1h"])


class AuditRule(Section):
    """Which answers are checked against a fresh one, and what that may cost: semantic hits, or the light model's."""

    share: Share = Field(examples=["2%"])
    per_hour: Annotated[int, Field(ge=1)] | None = None
    cost_per_day: Annotated[float, Field(gt=0)] | None = None  # US dollars
    judge: Text | None = None


def _share_or_rule(value: object) -> object:
    """`2%` stands for `{share: 2%}`."""
    if isinstance(value, dict | AuditRule):
        return value
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return {"share": parse_share(value)}
    raise ValueError(f"expected a share such as 2%, or {{share: 2%}}, got {format_value(value)}")


class SemanticRule(Section):
    """Answers to the same question in other words are served again."""

    ttl: PositiveDuration = Field(examples=["1h"])
    max_wrong_hits: PositiveShare | None = None  # wrong semantic hits over all requests of the route
    min_similarity: Annotated[float, Field(gt=0, le=1)] | None = None
    audit: Annotated[AuditRule | None, BeforeValidator(_share_or_rule), or_schemas(SHARE)] = None
    learn: Switch = True
    coalesce: Switch = False

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        promise, threshold = given.get("max_wrong_hits"), given.get("min_similarity")
        if promise is None and threshold is None:
            yield Problem(None, "one of max_wrong_hits and min_similarity is required, e.g. max_wrong_hits: 1%")
        elif promise is not None and threshold is not None:
            yield Problem("min_similarity", "max_wrong_hits sets the threshold already, expected one of the two")


def _section_or_off(example: str) -> BeforeValidator:
    """YAML 1.1 reads a bare `off` as false; in quotes it stays text. Both mean off."""

    def check(value: object) -> object:
        if value is False or value == "off":
            return None
        if isinstance(value, dict | Section):
            return value
        raise ValueError(f"expected off or {{{example}}}, got {format_value(value)}")

    return BeforeValidator(check)


class AdmitRule(Section):
    """Which answers are stored."""

    max_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    tools: Switch = False
    min_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_size: Size | None = None
    min_cost: Annotated[float, Field(gt=0)] | None = None  # US dollars
    roles: Annotated[tuple[Text, ...] | None, Field(strict=False)] = None
    after: Annotated[int, Field(ge=1, le=100)] = 1

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        low, high = given.get("min_tokens"), given.get("max_tokens")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Problem("min_tokens", f"no answer has at least {low} and at most {high} tokens")


class CacheRule(Section):
    """What may be served again, to whom, and how old."""

    exact: Annotated[ExactRule | None, _section_or_off("ttl: 1h"), or_schemas(OFF)] = None
    semantic: Annotated[SemanticRule | None, _section_or_off("ttl: 1h, max_wrong_hits: 1%"), or_schemas(OFF)] = None
    share: Annotated[Literal["user", "tenant", "global"], one_of("user", "tenant", "global")] = "tenant"
    jitter: Share = 0.0
    stale_while_revalidate: Duration = 0.0
    stale_if_error: Duration = 0.0
    admit: AdmitRule = Field(default_factory=AdmitRule)
    replay: Annotated[Literal["full", "paced"], one_of("full", "paced")] = "full"
    replay_rate: Rate | None = None  # tokens a second
    fresh_ids: Switch = False

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if given.get("replay_rate") is not None and given.get("replay", "full") == "full":
            yield Problem("replay_rate", "has no meaning at full speed, expected replay: paced beside it")


TIER_THRESHOLDS = ("escalate_above", "large_share", "quality")  # by which the large model is chosen


class TargetRule(Section):
    """Who answers what the caches do not: one backend, a light and a large one, or more tiers; each of them a backend
    or parts of the calls for several."""

    backend: Parts = None
    light: Parts = None
    large: Parts = None
    tiers: Annotated[tuple[TierParts, ...] | None, Field(strict=False)] = None
    escalate_above: Steps = None
    large_share: Share | None = None
    quality: Share | None = None
    audit: Annotated[AuditRule | None, BeforeValidator(_share_or_rule), or_schemas(SHARE)] = None
    learn: Switch = True
    latency_budget: PositiveDuration | None = None
    confidence: Annotated[float, BeforeValidator(parse_share), Field(ge=0.5, le=0.999), WithJsonSchema(SHARE)] = 0.95
    confidence_of: Annotated[Literal["route", "request"], one_of("route", "request")] = "route"
    late: Annotated[Literal["soonest", "light", "stale", "refuse"], one_of("soonest", "light", "stale", "refuse")] = (
        "soonest"
    )
    priority: Annotated[Literal["high", "normal", "low"], one_of("high", "normal", "low")] = "normal"
    client_priority: Switch = False
    fallback: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    shadow: ShadowRule | None = None
    cascade: CascadeRule | None = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from tier_problems(given, TIER_THRESHOLDS)


class RecordRule(Section):
    """What of the route's requests is kept for `nearhit simulate`."""

    share: PositiveShare = 1.0
    prompts: Switch = False


class MatchRule(Section):
    """Which requests a route is for. Every pattern given must match; `{}` matches all."""

    path: Text | None = None
    model: Text | None = None
    tenant: Text | None = None
    headers: Mapping[Text, Text] = Field(default={})


def _enabled_caches(cache: object) -> bool:
    """Whether answers are stored. `cache` as written."""
    return isinstance(cache, dict) and any(isinstance(cache.get(kind), dict) for kind in ("exact", "semantic"))


class RouteRule(Section):
    """One rule of a file."""

    name: Name = Field(examples=["support"])
    match: MatchRule = Field(examples=["{}"])
    cache: CacheRule = Field(default_factory=CacheRule)
    route: TargetRule = Field(examples=["{backend: main}"])
    limits: LimitRules = ()
    record: Annotated[
        RecordRule | None, BeforeValidator(optional_section(RecordRule, "{share: 10%}")), or_schemas(SWITCH)
    ] = None
    expose_headers: Switch = True

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        target, limits = given.get("route"), given.get("limits")
        if isinstance(target, dict) and target.get("backend") is not None:
            yield from tier_limit_problems(limits)
        cache = given.get("cache")
        if isinstance(target, dict) and target.get("audit") is not None and not _enabled_caches(cache):
            yield Problem("route", "audit compares answers that are stored, expected cache.exact or cache.semantic on")
        stale = isinstance(cache, dict) and cache.get("stale_if_error")
        if isinstance(target, dict) and target.get("late") == "stale" and not stale:
            yield Problem("route", "late: stale has nothing to serve, expected cache.stale_if_error beside it")
        yield from duplicate_limit_problems(limits)


class PolicyFile(Section):
    """A file of `policies/`."""

    version: Version = Field(examples=["1"])
    routes: Annotated[tuple[RouteRule, ...], Field(strict=False), NOT_EMPTY] = Field(
        examples=["[{name: default, match: {}, route: {backend: main}}]"]
    )
    tests: Annotated[tuple[ExpectationRule, ...], Field(strict=False)] = ()

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        tests = given.get("tests")
        if isinstance(tests, list) and len(tests) > MAX_EXPECTATIONS:
            yield Problem("tests", f"{len(tests)} tests in a file, expected at most {MAX_EXPECTATIONS}")
