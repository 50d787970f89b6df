"""The limits of a rule: the sections of the policy file, and the `Limits` that they compile to.

`gateway.features.limits` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from gateway.config.errors import format_value
from gateway.config.schema_types import ScalarForm, Schema, Shorthand, any_of
from gateway.config.units import PositiveShare, Switch
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.limits import Cap, Limits, Pace, Per

_PACE = ScalarForm(r"(\d{1,9}(?:\.\d{1,3})?)(k|M)?/(s|min|h|day)", "a rate such as 20/s, 600/min, 5k/h or 1M/day")

_MULTIPLIERS = {None: 1, "k": 1_000, "M": 1_000_000}

_DOLLARS = ScalarForm(r"(\d{1,9}(?:\.\d{1,6})?) ?USD", "an amount such as 20 USD or 0.5 USD")

_MAX_AMOUNT = 10**12


def parse_pace(value: object) -> Pace:
    """Parse `600/min` or `100k/day`; the burst is the whole amount. Raise `ValueError`."""
    match = _PACE.read(value)
    amount = float(match[1]) * _MULTIPLIERS[match[2]]
    if amount != int(amount) or not 1 <= amount <= _MAX_AMOUNT:
        raise ValueError(f"expected a whole number between 1 and {_MAX_AMOUNT} per period, got {format_value(value)}")
    return Pace(int(amount), match[3], int(amount))


def parse_micros(value: object) -> int:
    """Return the millionths of a dollar of `20 USD`. Raise `ValueError`."""
    micros = round(float(_DOLLARS.read(value)[1]) * 1e6)
    if micros <= 0:
        raise ValueError(f"expected {_DOLLARS.expected}, got {format_value(value)}")
    return micros


_PaceField = Annotated[Pace, PlainValidator(parse_pace), WithJsonSchema(_PACE.schema)]

_Micros = Annotated[int, BeforeValidator(parse_micros), WithJsonSchema(_DOLLARS.schema)]


class PaceRule(Section):
    """A rate with its burst."""

    rate: _PaceField = Field(examples=["600/min"])
    """The amount per time, such as `600/min`."""
    burst: Annotated[int, Field(ge=1, le=_MAX_AMOUNT)] | None = None
    """The amount that may come at once. Without it, the whole amount of `rate`."""


def _parse_paces(value: object) -> object:
    """Return a list of rate mappings, from one rate or several, each as text or as a mapping."""
    items = value if isinstance(value, list) else [value]
    return [item if isinstance(item, dict | PaceRule) else {"rate": item} for item in items]


def _one_or_more_paces(inner: Schema) -> Schema:
    item = any_of(_PACE.schema, inner["items"])
    return any_of(*item["anyOf"], {"type": "array", "items": item})


_Paces = Annotated[
    tuple[PaceRule, ...],
    BeforeValidator(_parse_paces),
    Field(strict=False),
    NOT_EMPTY,
    Shorthand(_one_or_more_paces),
]


class CostRule(Section):
    """Caps on cost, by the `price` of the backends."""

    per_day: _Micros | None = None
    """The cap for a UTC day, such as `20 USD`."""
    per_month: _Micros | None = None
    """The cap for a UTC month, such as `400 USD`."""
    then: Annotated[Literal["refuse", "light"], one_of("refuse", "light")] = "refuse"
    """Beyond the cap: `refuse` answers 429, except for hits. `light` lets the lightest model answer, and counts on."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if settings.get("per_day") is None and settings.get("per_month") is None:
            yield Problem(None, "one of per_day and per_month is required, e.g. per_day: 20 USD")


class LimitRule(Section):
    """A limit on a route, for each tenant, key or user, or for the route as a whole."""

    per: Annotated[Per, one_of("tenant", "key", "user", "route")] = "tenant"
    """The unit that the limit applies to: each `tenant`, `key` (API key) or `user`, or the `route` as a whole."""
    requests: _Paces | None = None
    """Calls to a backend per time, such as `600/min`. A list has several windows: `[20/s, 600/min]`."""
    tokens: _Paces | None = None
    """Tokens of calls per time, in and out, such as `100k/min`, or a list."""
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Calls in flight."""
    large_share: PositiveShare | None = None
    """The share of calls that may go to the largest model, such as `30%`. Beyond it the lightest model answers."""
    cost: CostRule | None = None
    """Caps on cost, such as `{per_day: 20 USD}`."""
    count_hits: Switch = False
    """`on`: `requests` also counts hits. Each hit then costs a request to the store."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        limits = ("requests", "tokens", "concurrency", "large_share", "cost")
        if not any(settings.get(key) is not None for key in limits):
            yield Problem(None, f"a limit is required, expected one of: {', '.join(limits)}; e.g. requests: 600/min")
        elif settings.get("count_hits") in (True, "on") and settings.get("requests") is None:
            yield Problem("count_hits", "has no effect without requests, expected e.g. requests: 600/min")


def as_list(value: object) -> object:
    """Return a list of rules; a single rule stands for a list of one."""
    return [value] if isinstance(value, dict | LimitRule) else value


LimitRules = Annotated[
    tuple[LimitRule, ...],
    BeforeValidator(as_list),
    Field(strict=False),
    Shorthand(lambda inner: any_of(inner["items"], inner)),
]


def tier_limit_problems(limits: object) -> Iterator[Problem]:
    """Yield the limits that choose between models, for a route with one backend. `limits` is as written."""
    for rule in limits if isinstance(limits, list) else [limits]:
        if not isinstance(rule, dict):
            continue
        cost = rule.get("cost")
        if rule.get("large_share") is not None:
            yield Problem("limits", "large_share has no effect with one backend, expected light and large in route")
        if isinstance(cost, dict) and cost.get("then") == "light":
            yield Problem("limits", "then: light has no effect with one backend, expected light and large in route")


def duplicate_limit_problems(limits: object) -> Iterator[Problem]:
    """Yield the limits that repeat kind, unit and time of another one. `limits` is as written."""
    seen: set[tuple[object, ...]] = set()
    for rule in limits if isinstance(limits, list) else [limits]:
        for limit in _limit_keys(rule) if isinstance(rule, dict) else ():
            if limit in seen:
                yield Problem("limits", f"two limits on {limit[1]} per {limit[0]} for the same period, expected one")
            seen.add(limit)


def _limit_keys(rule: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    per = str(rule.get("per", "tenant"))
    for kind in ("requests", "tokens"):
        limits = rule.get(kind)
        for item in limits if isinstance(limits, list) else [limits]:
            rate = item.get("rate") if isinstance(item, dict) else item
            if isinstance(rate, str):
                yield per, kind, rate.rpartition("/")[2]
    for kind in ("concurrency", "large_share"):
        if rule.get(kind) is not None:
            yield per, kind
    cost = rule.get("cost")
    caps: dict[str, Any] = cost if isinstance(cost, dict) else {}
    for window in ("per_day", "per_month"):
        if caps.get(window) is not None:
            yield per, f"cost {window}", str(caps.get("then", "refuse"))


def compile_limits(rules: tuple[LimitRule, ...]) -> tuple[Limits, ...]:
    """Return the limits that the rules compile to."""
    return tuple(
        Limits(
            per=rule.per,
            requests=_compile_paces(rule.requests),
            tokens=_compile_paces(rule.tokens),
            concurrency=rule.concurrency,
            large_share=rule.large_share,
            caps=_compile_caps(rule.cost),
            count_hits=rule.count_hits,
        )
        for rule in rules
    )


def _compile_paces(rules: tuple[PaceRule, ...] | None) -> tuple[Pace, ...]:
    return tuple(Pace(r.rate.amount, r.rate.period, r.burst or r.rate.burst) for r in rules or ())


def _compile_caps(rule: CostRule | None) -> tuple[Cap, ...]:
    if rule is None:
        return ()
    light = rule.then == "light"
    day = () if rule.per_day is None else (Cap("day", rule.per_day, light),)
    return day + (() if rule.per_month is None else (Cap("month", rule.per_month, light),))
