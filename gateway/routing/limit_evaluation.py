"""Turn a route's limits into demands of a request, and their outcome into error messages and headers. Pure."""

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

# The usage of a call is estimated before the call and corrected after it.

# OpenAI's rule of thumb for English text. It counts bytes, so that other scripts are not underestimated much.
BYTES_A_TOKEN = 4

FIRST_GUESS = 256  # output tokens, before any answer was seen


def input_tokens(call: Call) -> int:
    """Estimate the input tokens, at least 1.

    Images and tools are not counted; the backend's own count corrects that.
    """
    texts = call.questions if call.operation == "embeddings" else (call.prompt,)
    return max(1, sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_A_TOKEN)


class TypicalLength:
    """A running estimate of the length of a route's answers.

    It rises ten times as fast as it falls. So it settles where the excess of longer answers is a tenth of the shortfall
    of shorter ones (an expectile).
    """

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = float(FIRST_GUESS)

    def saw(self, tokens: int) -> None:
        error = tokens - self._tokens
        self._tokens += (0.2 if error > 0 else 0.02) * error

    def output_tokens(self, call: Call) -> int:
        """Return the estimate, limited by the client's `max_tokens`."""
        if call.operation == "embeddings":
            return 0
        typical = max(1, round(self._tokens))
        return typical if call.max_tokens is None else min(typical, call.max_tokens)


ALL_ROUTES = "*"  # stands for the route; no route can have this name

MAX_CLIENT_RETRY_S = 60  # seconds; beyond it, clients that retry on their own are told not to

PERIOD = {"s": "second", "min": "minute", "h": "hour", "day": "day"}

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The expected cost of a call."""

    tokens: int = 0
    micros: int = 0  # millionths of a US dollar


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """One limit, and the demand of a request on it."""

    limit: str  # requests | tokens | concurrency | large_share | cost: the label of the metric
    per: Per
    subject: str
    rule_text: str  # the limit as an operator writes it
    demand: Demand
    pace: Pace | None = None

    @property
    def is_global(self) -> bool:
        """True for an API key's own limit, which counts over all routes."""
        return self.demand.key.startswith(ALL_ROUTES + ":")


def subjects(tenant: str, user: str | None, key: str | None) -> Mapping[Per, str]:
    """Return the subject for each `per` of a limit. Keys and users are hashed, as both may be secret."""
    return {
        "tenant": tenant,
        "key": tenant if key is None else _hashed("key", key),
        "user": _hashed("user", f"{tenant}\n{user or ''}"),
        "route": "all",
    }


def limit_requests(
    route: str, limits: Sequence[Limits], whose: Mapping[Per, str], estimate: CostEstimate, member: str
) -> list[LimitRequest]:
    """Return all demands of a call, before it goes to a backend."""
    return [asked for rule in limits for asked in _limit_requests(route, rule, whose[rule.per], estimate, member)]


def requests_of(route: str, limits: Sequence[Limits], whose: Mapping[Per, str]) -> list[LimitRequest]:
    """Return the demands of every request, hits included, by the rules that count hits."""
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
    """Return the first limit that leaves only the lightest model, or None."""
    return next((a.limit for a, observed in zip(asked, taken.observed, strict=True) if not observed.ok), None)


def refused(route: str, asked: Sequence[LimitRequest], taken: TakeResult) -> tuple[LimitRequest, str, int]:
    """Return the refusing limit with the longest wait, a sentence about it, and the wait in seconds, at least 1."""
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
    whose = f"this {asked.per}" if asked.per != "route" else "all clients"
    remaining = left(asked.demand, observed, taken=False)
    where = "" if asked.is_global else f" on route {route}"
    if isinstance(asked.demand, PacedLimit):
        amount, _, period = asked.rule_text.partition("/")
        needs = f", this request takes about {asked.demand.units:.0f}" if asked.limit == "tokens" else ""
        what = f"limit of {amount} {asked.limit} a {PERIOD[period]}"
        return f"the {what} for {whose}{where} is reached: {remaining:.0f} left{needs}"
    if isinstance(asked.demand, Slot):
        return (
            f"the limit of {asked.rule_text} concurrent calls for {whose}{where} is reached: {observed.level} in flight"
        )
    return f"the cap of {asked.rule_text} for {whose}{where} is reached: {remaining / MICROS:.4f} USD left"


def rate_limit_headers(asked: Sequence[LimitRequest], taken: TakeResult) -> Headers:
    """Return the rate limit headers, with OpenAI's `x-ratelimit-*` for the window with the least left.

    The others are `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
    """
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
    """Add headers, and drop a backend's headers of the same names, which describe another limit."""
    names = {name.lower() for name, _ in more}
    return (*((name, value) for name, value in headers if name.lower() not in names), *more)


def returns_of(asked: Sequence[LimitRequest], taken: TakeResult, real: CostEstimate) -> list[Return]:
    """Return the corrections after a call, with its real usage. `returns_without_large` corrects large shares."""
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
    """Return the corrections for a call that was expected to use a large model and did not."""
    observed = zip(asked, taken.observed, strict=True)
    return [Return("part", a.demand.key) for a, t in observed if isinstance(a.demand, LimitPart) and t.ok]


def returns_without_call(asked: Sequence[LimitRequest], taken: TakeResult) -> list[Return]:
    """Return the corrections for a request that reached no backend: it used no call and no large model."""
    calls = [
        Return("pace", a.demand.key, -a.demand.cost_us)
        for a in asked
        if isinstance(a.demand, PacedLimit) and a.limit == "requests"
    ]
    return calls + returns_without_large(asked, taken)


def _hashed(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}/{text}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
