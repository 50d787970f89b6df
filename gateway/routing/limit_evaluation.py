"""From a route's limits to what a request asks of them, and from what became of that to words and headers. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.limits import (
    MICROS,
    Cap,
    Cost,
    Demand,
    LimitPart,
    Limits,
    LimitState,
    Pace,
    PacedLimit,
    Per,
    Return,
    Slot,
    TakeResult,
    is_soft,
    left,
    wait_us,
    window_of,
)
from gateway.messages import Call

# What a call will take of a limit, before it is made; put right when it has been. Pure.

# OpenAI's rule of thumb for English text; bytes, so that other scripts are not taken for much cheaper than they are.
BYTES_A_TOKEN = 4

FIRST_GUESS = 256  # output tokens, while nothing has been seen


def input_tokens(call: Call) -> int:
    """At least 1. What is no text (images, tools) is not seen: the backend's own count puts it right."""
    texts = call.questions if call.operation == "embeddings" else (call.prompt,)
    return max(1, sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_A_TOKEN)


class Typical:
    """How long the answers of a route are: it rises ten times as fast as it falls, and so lies where one answer in
    eleven is longer, by the weight of what they exceed it (an expectile)."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = float(FIRST_GUESS)

    def saw(self, tokens: int) -> None:
        error = tokens - self._tokens
        self._tokens += (0.2 if error > 0 else 0.02) * error

    def output_tokens(self, call: Call) -> int:
        """At most what the client allows."""
        if call.operation == "embeddings":
            return 0
        typical = max(1, round(self._tokens))
        return typical if call.max_tokens is None else min(typical, call.max_tokens)


ALL_ROUTES = "*"  # in place of a route, which cannot be called so

MAX_CLIENT_RETRY_S = 60  # clients that retry by themselves are told not to, where it takes longer

PERIOD = {"s": "second", "min": "minute", "h": "hour", "day": "day"}

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What a call is taken to cost before it is made."""

    tokens: int = 0
    micros: int = 0  # millionths of a dollar


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """One limit, and what a request demands of it."""

    limit: str  # requests | tokens | concurrency | large_share | cost: the label of the metric
    per: Per
    subject: str
    said: str  # the limit as an operator writes it
    demand: Demand
    pace: Pace | None = None

    @property
    def is_global(self) -> bool:
        """It counts over all routes: an API key's own."""
        return self.demand.key.startswith(ALL_ROUTES + ":")


def subjects(tenant: str, user: str | None, key: str | None) -> Mapping[Per, str]:
    """Who a request counts for, by what a limit is `per`. Keys and users are hashed: both are secrets of somebody."""
    return {
        "tenant": tenant,
        "key": tenant if key is None else _hashed("key", key),
        "user": _hashed("user", f"{tenant}\n{user or ''}"),
        "route": "all",
    }


def limit_requests(
    route: str, limits: Sequence[Limits], whose: Mapping[Per, str], estimate: CostEstimate, member: str
) -> list[LimitRequest]:
    """All that a call demands before it is sent to a backend."""
    return [asked for rule in limits for asked in _limit_requests(route, rule, whose[rule.per], estimate, member)]


def requests_of(route: str, limits: Sequence[Limits], whose: Mapping[Per, str]) -> list[LimitRequest]:
    """What every request demands, hits included, of the rules that count them."""
    return [asked for rule in limits if rule.count_hits for asked in _requests(route, rule, whose[rule.per])]


def _requests(route: str, rule: Limits, subject: str) -> Iterator[LimitRequest]:
    for pace in rule.requests:
        yield _paced(route, rule.per, subject, "requests", pace, 1)


def _limit_requests(
    route: str, rule: Limits, subject: str, estimate: CostEstimate, member: str
) -> Iterator[LimitRequest]:
    where = f"{route}:{rule.per}:{subject}:"
    if not rule.count_hits:
        yield from _requests(route, rule, subject)
    for pace in rule.tokens:
        yield _paced(route, rule.per, subject, "tokens", pace, estimate.tokens)
    if rule.concurrency is not None:
        slot = Slot(where + "concurrency", rule.concurrency, member)
        yield LimitRequest("concurrency", rule.per, subject, str(rule.concurrency), slot)
    if rule.large_share is not None:
        part = LimitPart(where + "large_share", rule.large_share)
        yield LimitRequest("large_share", rule.per, subject, f"{100 * rule.large_share:g}%", part)
    for cap in rule.caps:
        spend = Cost(_cap_key(where, cap), cap.micros, estimate.micros, cap.window, cap.light)
        yield LimitRequest("cost", rule.per, subject, f"{cap.micros / MICROS:.2f} USD a {cap.window}", spend)


def _paced(route: str, per: Per, subject: str, limit: str, pace: Pace, units: int) -> LimitRequest:
    key = f"{route}:{per}:{subject}:{limit}/{pace.period}"
    demand = PacedLimit(key, pace.period_s * MICROS / pace.amount, pace.burst, units)
    return LimitRequest(limit, per, subject, str(pace), demand, pace)


def _cap_key(where: str, cap: Cap) -> str:
    return f"{where}cost/{cap.window}{'/light' if cap.light else ''}"


def light_only(asked: Sequence[LimitRequest], taken: TakeResult) -> str | None:
    """The first limit that leaves only the lightest model; None where none does."""
    return next((a.limit for a, observed in zip(asked, taken.observed, strict=True) if not observed.ok), None)


def refused(route: str, asked: Sequence[LimitRequest], taken: TakeResult) -> tuple[LimitRequest, str, int]:
    """Of a request that was not granted: the limit that takes longest, a sentence about it, and the seconds until
    then, at least 1."""
    failed = [
        (a, observed)
        for a, observed in zip(asked, taken.observed, strict=True)
        if not observed.ok and not is_soft(a.demand)
    ]
    waits = [wait_us(a.demand, observed, taken.at_us) for a, observed in failed]
    at = max(range(len(failed)), key=waits.__getitem__)
    slowest, observed = failed[at]
    seconds = max(1, math.ceil(waits[at] / MICROS))
    return slowest, f"{_sentence(route, slowest, observed)}; try again in {seconds} s", seconds


def _sentence(route: str, asked: LimitRequest, observed: LimitState) -> str:
    whose = f"this {asked.per}" if asked.per != "route" else "everybody"
    remaining = left(asked.demand, observed, taken=False)
    where = "" if asked.is_global else f" on route {route}"
    if isinstance(asked.demand, PacedLimit):
        amount, _, period = asked.said.partition("/")
        needs = f", this request takes about {asked.demand.units:.0f}" if asked.limit == "tokens" else ""
        what = f"limit of {amount} {asked.limit} a {PERIOD[period]}"
        return f"the {what} for {whose}{where} is reached: {remaining:.0f} left{needs}"
    if isinstance(asked.demand, Slot):
        return f"the limit of {asked.said} calls at once for {whose}{where} is reached: {observed.level} in flight"
    return f"the cap of {asked.said} for {whose}{where} is reached: {remaining / MICROS:.4f} USD left"


def rate_limit_headers(asked: Sequence[LimitRequest], taken: TakeResult) -> Headers:
    """`RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10), and OpenAI's `x-ratelimit-*` of the
    window of which least is left."""
    rates = [
        (a, a.pace, a.demand, observed)
        for a, observed in zip(asked, taken.observed, strict=True)
        if isinstance(a.demand, PacedLimit)
    ]
    policies, states = [], []
    tightest: dict[str, tuple[float, Pace, float]] = {}
    for a, pace, demand, observed in rates:
        assert pace is not None and isinstance(demand, PacedLimit)
        remaining = left(demand, observed, taken=taken.granted)
        backlog_us = observed.level + (demand.cost_us if taken.granted else 0.0)
        name = f'"{a.limit}-{pace.period}"'
        policies.append(f"{name};q={pace.amount};w={pace.period_s}")
        states.append(f"{name};r={remaining:.0f};t={math.ceil(backlog_us / MICROS)}")
        if a.limit not in tightest or remaining < tightest[a.limit][0]:
            tightest[a.limit] = (remaining, pace, backlog_us / MICROS)
    if not rates:
        return ()
    found = [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(states))]
    for limit, (remaining, pace, seconds) in tightest.items():
        found.append((f"x-ratelimit-limit-{limit}", str(pace.amount)))
        found.append((f"x-ratelimit-remaining-{limit}", f"{remaining:.0f}"))
        found.append((f"x-ratelimit-reset-{limit}", f"{seconds:.3f}s"))
    return tuple(found)


def with_headers(headers: Headers, more: Headers) -> Headers:
    """A backend's own of the same names give way: they are of another limit."""
    names = {name.lower() for name, _ in more}
    return (*((name, value) for name, value in headers if name.lower() not in names), *more)


def returns_of(asked: Sequence[LimitRequest], taken: TakeResult, real: CostEstimate) -> list[Return]:
    """What is to be put right now that it is known what was used; the shares of large ones have their own time."""
    found = []
    for a in asked:
        demand = a.demand
        if isinstance(demand, PacedLimit) and a.limit == "tokens":
            found.append(Return("pace", demand.key, real.tokens * demand.interval_us - demand.cost_us))
        elif isinstance(demand, Slot):
            found.append(Return("place", demand.key, of=demand.member))
        elif isinstance(demand, Cost):
            window = window_of(demand.window, taken.at_us)
            found.append(Return("spend", demand.key, real.micros - demand.amount, window))
    return found


def returns_without_large(asked: Sequence[LimitRequest], taken: TakeResult) -> list[Return]:
    """Of a call that might have been a large one and was none."""
    observed = zip(asked, taken.observed, strict=True)
    return [Return("part", a.demand.key) for a, t in observed if isinstance(a.demand, LimitPart) and t.ok]


def returns_without_call(asked: Sequence[LimitRequest], taken: TakeResult) -> list[Return]:
    """Of a request that was put to no backend: it was no call, and none of a large model."""
    calls = [
        Return("pace", a.demand.key, -a.demand.cost_us)
        for a in asked
        if isinstance(a.demand, PacedLimit) and a.limit == "requests"
    ]
    return calls + returns_without_large(asked, taken)


def _hashed(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}/{text}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
