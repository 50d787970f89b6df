"""The sections of a policy file. Field names are the keys of the file; durations are in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.errors import format_value
from gateway.config.fields import HeaderName, Name, Text, Version, optional_section
from gateway.config.policy.features import FeatureSection, feature_problems
from gateway.config.policy.targets import (
    OptionalTierParts,
    Parts,
    Steps,
    TierParts,
    tier_problems,
)
from gateway.config.policy.tests import MAX_EXPECTATIONS, ExpectationRule
from gateway.config.schema_types import OFF, ON_OR_OFF, SWITCH, FileForm, or_schemas
from gateway.config.units import (
    SHARE,
    Duration,
    PositiveDuration,
    PositiveShare,
    Rate,
    Share,
    Size,
    Switch,
    format_share,
    parse_share,
)
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.ports import Acceptance


class ExactRule(Section):
    """The exact cache, which serves the stored response to an identical request."""

    ttl: PositiveDuration = Field(examples=["1h"])
    """How long an entry stays fresh."""


class AuditRule(Section):
    """Audits, which compare semantic hits, or answers of the light model, with a second answer."""

    share: Share = Field(examples=["2%"])
    """The share of the answers to check, such as `2%`."""
    per_hour: Annotated[int, Field(ge=1)] | None = None
    """Calls per hour that audits may make, those of the judge included. Without it, no bound."""
    cost_per_day: Annotated[float, Field(gt=0)] | None = None
    """US dollars per day that audits may cost, by the `price` of the backends. Without it, no bound."""
    judge: Text | None = None
    """The backend that decides if the comparison cannot tell. It gets the question and both answers."""


NO_AUDIT = AuditRule(share=0.0)


def _share_or_rule(value: object) -> object:
    """Return the mapping that a share stands for: `2%` is `{share: 2%}`."""
    if isinstance(value, dict | AuditRule):
        return value
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return {"share": parse_share(value)}
    raise ValueError(f"expected a share such as 2%, or {{share: 2%}}, got {format_value(value)}")


class LearnRule(Section):
    """Learning from the labels of a route."""

    keep: PositiveDuration | None = None
    """How long each label is kept with the texts of its two questions in `data_dir/labels`, such as `30d`, for
    `nearhit tune`. Without it, no text is kept."""


class SemanticRule(Section):
    """The semantic cache, which serves the stored response to the same question in other words."""

    ttl: PositiveDuration = Field(examples=["1h"])
    """How long an entry stays fresh."""
    max_wrong_hits: PositiveShare | None = None
    """The promise: the share of all requests of the route that may get a wrong semantic hit, such as `1%`. It sets the
    threshold."""
    min_similarity: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of `max_wrong_hits`: a fixed threshold for the similarity, such as 0.93. Nothing moves it."""
    audit: Annotated[AuditRule | None, BeforeValidator(_share_or_rule), or_schemas(SHARE)] = None
    """The share of the semantic hits to check against a fresh answer, such as `2%` or `{share: 2%, per_hour: 200}`."""
    learn: Annotated[
        LearnRule | None, BeforeValidator(optional_section(LearnRule, "{keep: 30d}")), or_schemas(SWITCH), ON_OR_OFF
    ] = LearnRule()
    """`off`: misses, audits and feedback are counted. They move neither the threshold nor what the gateway knows about
    a question's neighbourhood. Or `{keep: 30d}`, for `nearhit tune`."""
    coalesce: Switch = False
    """`on`: a question waits for one in flight, in the same gateway, that asks the same in other words. Then it is
    looked up as usual."""
    conversations: Switch = True
    """`on`: after a semantic hit the conversation goes on as that of the stored question, so that its next turns are
    looked up there, too. `off`: each wording of the first turn is a conversation of its own."""
    screen: Switch = True
    """`on`: a question that nothing stored resembles goes to its backend at once, and is embedded later. At most 1 % of
    the hits are lost. `off`: every question is embedded and looked up first."""

    @cached_property
    def acceptance(self) -> Acceptance:
        """The promise or the threshold."""
        return Acceptance(self.min_similarity, self.max_wrong_hits)

    @property
    def audits(self) -> AuditRule:
        """The audits of hits; a share of 0 means none."""
        return self.audit or NO_AUDIT

    @property
    def learns(self) -> bool:
        """Whether labels move the threshold. Nothing moves a plain `min_similarity`."""
        return self.learn is not None and self.max_wrong_hits is not None

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        promise, threshold = settings.get("max_wrong_hits"), settings.get("min_similarity")
        if promise is None and threshold is None:
            yield Problem(None, "one of max_wrong_hits and min_similarity is required, e.g. max_wrong_hits: 1%")
        elif promise is not None and threshold is not None:
            yield Problem("min_similarity", "max_wrong_hits already sets the threshold, expected only one of the two")


def section_or_off(example: str) -> BeforeValidator:
    """Return a validator for `off` or a mapping. YAML 1.1 reads a bare `off` as false; in quotes it stays text."""

    def check(value: object) -> object:
        if value is False or value == "off":
            return None
        if isinstance(value, dict | Section):
            return value
        raise ValueError(f"expected off or {{{example}}}, got {format_value(value)}")

    return BeforeValidator(check)


class AdmitRule(FeatureSection):
    """Admission: the responses that are stored."""

    prefix = "cache.admit."

    max_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """The highest temperature of a request whose response is stored, in [0, 2]. A request without one counts as 1."""
    min_tokens: Annotated[int, Field(ge=1)] | None = None
    """The fewest tokens of a response to store. A response without a token count is stored."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a response to store. A response without a token count is stored."""
    max_size: Size | None = None
    """The largest response to store, such as `64KiB`. `store.max_entry` is the upper bound, and the default."""
    min_cost: Annotated[float, Field(gt=0)] | None = None
    """The lowest cost of a call whose response is stored, in US dollars, by the `price` of the backend."""
    roles: Annotated[tuple[Text, ...] | None, Field(strict=False)] = None
    """The only roles that messages may have, such as `[system, user]`: no conversations, no tools. Without it, any."""
    after: Annotated[int, Field(ge=1, le=100)] = 1
    """Store a response only after the same question went to a backend this often lately. 2 suits routes where most
    questions come once."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        low, high = settings.get("min_tokens"), settings.get("max_tokens")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield Problem("min_tokens", f"is above max_tokens, expected at most {high}, got {low}")


ADMIT_ALL = AdmitRule()


class CacheRule(FeatureSection):
    """The caches of a route: what they serve, to whom, and for how long."""

    prefix = "cache."

    exact: Annotated[ExactRule | None, section_or_off("ttl: 1h"), or_schemas(OFF), ON_OR_OFF] = None
    """`{ttl: 24h}`: serve the stored response to an identical request. `off`: no exact cache."""
    semantic: Annotated[
        SemanticRule | None, section_or_off("ttl: 1h, max_wrong_hits: 1%"), or_schemas(OFF), ON_OR_OFF
    ] = None
    """`{ttl: 6h, max_wrong_hits: 1%}`: serve the stored response to the same question in other words. `off`: no
    semantic cache."""
    share: Annotated[Literal["user", "tenant", "global"], one_of("user", "tenant", "global")] = "tenant"
    """The clients that share entries: one `user` of a tenant, one `tenant`, or all (`global`)."""
    vary: Annotated[tuple[HeaderName, ...], Field(strict=False)] = ()
    """Request headers that change an answer, such as `[accept-language]`: only requests with equal values share
    entries. `anthropic-beta`, `anthropic-version` and `openai-beta` always count."""
    jitter: Share = 0.0
    """The share of the TTL by which an entry may expire earlier, such as `10%`. Entries stored together then do not
    expire together."""
    stale_while_revalidate: Duration = 0.0
    """How long after its TTL an exact entry is served at once, while one call fetches a fresh one."""
    stale_if_error: Duration = 0.0
    """How long after its TTL an exact entry is served if the backend fails: no response, or a 5xx other than
    501 and 505."""
    admit: AdmitRule = Field(default_factory=AdmitRule)
    """The responses that are stored."""
    replay: Annotated[Literal["full", "paced"], one_of("full", "paced")] = "full"
    """How hits are streamed: `full` at full speed, `paced` like a model."""
    replay_rate: Rate | None = None
    """For `replay: paced`: tokens per second, such as `50/s`. Without it, the pace at which each response came."""
    fresh_ids: Switch = False
    """`on`: each hit has its own `id` and `created`. `off`: a hit is byte for byte the stored response."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if settings.get("replay_rate") is not None and settings.get("replay", "full") == "full":
            yield Problem("replay_rate", "has no effect with replay: full, expected replay: paced")


TIER_THRESHOLDS = ("escalate_above", "large_share", "quality")  # by which the large model is chosen


class TargetRule(FeatureSection):
    """The backends that answer a miss: one, or a light and a large one, or more tiers. A tier may be a split."""

    prefix = "route."

    backend: Parts = None
    """The only backend, or a split such as `{current: 95%, next: 5%}`. The alternatives are `light` and `large`, or
    `tiers`."""
    light: OptionalTierParts = None
    """The lighter of two backends, or a split. With `{backend: main, parameters: {reasoning_effort: low}}` its requests
    get parameters."""
    large: OptionalTierParts = None
    """The larger of two backends, or a split, as for `light`."""
    tiers: Annotated[tuple[TierParts, ...] | None, Field(strict=False)] = None
    """Two to eight backends or splits, lightest first, such as `[small, medium, large]`. Each may have parameters, as
    for `light`."""
    escalate_above: Steps = None
    """The complexity in [0, 1] above which the large model answers; 0.5 by default. Three and more tiers need one
    number per step."""
    large_share: Share | None = None
    """Instead of `escalate_above`: the share of the misses that the large model answers, such as `30%`."""
    quality: Share | None = None
    """Instead of `escalate_above`: the share of the quality gap between both models to keep, such as 0.95."""
    audit: Annotated[AuditRule | None, BeforeValidator(_share_or_rule), or_schemas(SHARE)] = None
    """The share of the light model's answers to compare with the large model's, such as `2%`. Needs a cache: stored
    answers are compared."""
    learn: Switch = True
    """`off`: audits, feedback and cascades are counted, and the learnt meaning of the route's scores stays as it is."""
    latency_budget: PositiveDuration | None = None
    """The time from the request's arrival to the end of its answer. The gateway calls the best backend that is
    predicted to keep it."""
    confidence: Annotated[
        float, BeforeValidator(parse_share), Field(ge=0.5, le=0.999), WithJsonSchema(SHARE), FileForm(format_share)
    ] = 0.95
    """The share of latency budgets to keep, from 50% to 99.9%."""
    confidence_of: Annotated[Literal["route", "request"], one_of("route", "request")] = "route"
    """`route`: all budgets count together, so tight ones are kept less often. `request`: each budget counts alone,
    which uses large models less."""
    late: Annotated[Literal["soonest", "light", "stale", "refuse"], one_of("soonest", "light", "stale", "refuse")] = (
        "soonest"
    )
    """If no backend is predicted to keep the budget: call the `soonest` or the `light` backend, serve `stale`, or
    `refuse` with 504."""
    priority: Annotated[Literal["high", "normal", "low"], one_of("high", "normal", "low")] = "normal"
    """The order in which requests get a place if a backend has no room for all: `high`, `normal`, `low`."""
    client_priority: Switch = False
    """`on`: a client's `x-priority` may also raise its requests above `priority`. It may always lower them."""
    fallback: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Backends to try, in this order, if those of all tiers fail before their first byte."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        yield from tier_problems(settings, TIER_THRESHOLDS)


class MatchRule(Section):
    """The requests of a route. Every given pattern must match; `{}` matches all requests."""

    path: Text | None = None
    """A glob for the path in its normal form (RFC 3986, section 6.2.2). Without it, any path."""
    model: Text | None = None
    """A glob for the model. On a path that passes through, its JSON body, form, query or path names the model. Without
    the glob, any model, or none."""
    tenant: Text | None = None
    """A glob for the tenant. Without it, any tenant."""
    headers: Mapping[Text, Text] = Field(default={})
    """Header names, each with a glob for its value. Without it, any headers."""


def enabled_caches(cache: object) -> bool:
    """Return whether a cache is on. `cache` is the section as written."""
    return isinstance(cache, dict) and any(isinstance(cache.get(kind), dict) for kind in ("exact", "semantic"))


class RouteRule(FeatureSection):
    """One rule of a policy file."""

    name: Name = Field(examples=["support"])
    """The unique name of the rule. Metrics have it in the label `route`."""
    match: MatchRule = Field(examples=["{}"])
    """The requests of this rule. `{}` matches all requests."""
    cache: CacheRule = Field(default_factory=CacheRule)
    """The caches of this rule."""
    route: TargetRule = Field(examples=["{backend: main}"])
    """The backends that answer a miss."""
    expose_headers: Switch = True
    """`off`: clients do not see `Cache-Status`, `Age`, `Server-Timing` and `x-nearhit-*`."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        target, cache = settings.get("route"), settings.get("cache")
        if isinstance(target, dict) and target.get("audit") is not None and not enabled_caches(cache):
            yield Problem(
                "route", "audit compares stored answers and no cache is on, expected cache.exact or cache.semantic"
            )
        stale = isinstance(cache, dict) and cache.get("stale_if_error")
        if isinstance(target, dict) and target.get("late") == "stale" and not stale:
            yield Problem("route", "late: stale has nothing to serve, expected cache.stale_if_error")
        yield from feature_problems(settings)


class PolicyFile(Section):
    """One policy file."""

    version: Version = Field(examples=["1"])
    """The version of the file format. The only one is 1."""
    routes: Annotated[tuple[RouteRule, ...], Field(strict=False), NOT_EMPTY] = Field(
        examples=["[{name: default, match: {}, route: {backend: main}}]"]
    )
    """The rules, in order. The first one that matches a request decides."""
    tests: Annotated[tuple[ExpectationRule, ...], Field(strict=False)] = ()
    """Expectations: requests, each with the decision that the policy must make."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        tests = settings.get("tests")
        if isinstance(tests, list) and len(tests) > MAX_EXPECTATIONS:
            yield Problem("tests", f"{len(tests)} tests in a file, expected at most {MAX_EXPECTATIONS}")
