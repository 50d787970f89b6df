"""What a tenant may have of a route: the limits of a rule, as they are written and as they are asked.

Field names of the sections are the keys of the file. `gateway.limits` does the arithmetic.
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
    """`600/min`, `100k/day`; the burst is the whole amount."""
    match = _PACE.read(value)
    amount = float(match[1]) * _MULTIPLIERS[match[2]]
    if amount != int(amount) or not 1 <= amount <= _MAX_AMOUNT:
        raise ValueError(f"expected a whole number between 1 and {_MAX_AMOUNT} a period, got {format_value(value)}")
    return Pace(int(amount), match[3], int(amount))


def parse_micros(value: object) -> int:
    """Millionths of a dollar, from `20 USD`."""
    micros = round(float(_DOLLARS.read(value)[1]) * 1e6)
    if micros <= 0:
        raise ValueError(f"expected {_DOLLARS.expected}, got {format_value(value)}")
    return micros


_PaceField = Annotated[Pace, PlainValidator(parse_pace), WithJsonSchema(_PACE.schema)]

_Micros = Annotated[int, BeforeValidator(parse_micros), WithJsonSchema(_DOLLARS.schema)]


class PaceRule(Section):
    """A rate whose burst is not the whole amount."""

    rate: _PaceField = Field(examples=["600/min"])
    burst: Annotated[int, Field(ge=1, le=_MAX_AMOUNT)] | None = None


def _parse_paces(value: object) -> object:
    """One rate or several, each in text or with its burst."""
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
    """Caps on what the backends' prices come to."""

    per_day: _Micros | None = None
    per_month: _Micros | None = None
    then: Annotated[Literal["refuse", "light"], one_of("refuse", "light")] = "refuse"

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if given.get("per_day") is None and given.get("per_month") is None:
            yield Problem(None, "one of per_day and per_month is required, e.g. per_day: 20 USD")


class LimitRule(Section):
    """What everybody of a kind may have of a route."""

    per: Annotated[Per, one_of("tenant", "key", "user", "route")] = "tenant"
    requests: _Paces | None = None
    tokens: _Paces | None = None
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    large_share: PositiveShare | None = None
    cost: CostRule | None = None
    count_hits: Switch = False

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        limits = ("requests", "tokens", "concurrency", "large_share", "cost")
        if not any(given.get(key) is not None for key in limits):
            yield Problem(None, f"a limit is required, expected one of: {', '.join(limits)}, e.g. requests: 600/min")
        elif given.get("count_hits") in (True, "on") and given.get("requests") is None:
            yield Problem("count_hits", "has no meaning without requests, expected e.g. requests: 600/min beside it")


def as_list(value: object) -> object:
    """A lone rule stands for a list of it."""
    return [value] if isinstance(value, dict | LimitRule) else value


LimitRules = Annotated[
    tuple[LimitRule, ...],
    BeforeValidator(as_list),
    Field(strict=False),
    Shorthand(lambda inner: any_of(inner["items"], inner)),
]


def tier_limit_problems(limits: object) -> Iterator[Problem]:
    """Limits that choose between models, on a route that has one. `limits` as written."""
    for rule in limits if isinstance(limits, list) else [limits]:
        if not isinstance(rule, dict):
            continue
        cost = rule.get("cost")
        if rule.get("large_share") is not None:
            yield Problem("limits", "large_share has no meaning with one backend, expected light and large in route")
        if isinstance(cost, dict) and cost.get("then") == "light":
            yield Problem("limits", "then: light has no meaning with one backend, expected light and large in route")


def duplicate_limit_problems(limits: object) -> Iterator[Problem]:
    """Limits of one kind for the same ones over the same time. `limits` as written."""
    seen: set[tuple[object, ...]] = set()
    for rule in limits if isinstance(limits, list) else [limits]:
        for limit in _limit_keys(rule) if isinstance(rule, dict) else ():
            if limit in seen:
                yield Problem("limits", f"{limit[1]} per {limit[0]} is limited twice over the same time, expected once")
            seen.add(limit)


def _limit_keys(rule: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    per = str(rule.get("per", "tenant"))
    for kind in ("requests", "tokens"):
        given = rule.get(kind)
        for item in given if isinstance(given, list) else [given]:
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
    """From what was written to what is asked."""
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
