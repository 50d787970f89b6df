"""Turn a route's limits into demands of a request, and their outcome into error messages and headers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.features.limits.demands import (
    MICROS,
    SLACK_US,
    Cost,
    Demand,
    LimitPart,
    LimitState,
    PacedLimit,
    Return,
    Slot,
    TakeResult,
    could_fit,
    is_soft,
    left,
    wait_us,
    window_of,
)
from gateway.limits import Cap, Limits, Pace, Per

# The usage of a call is reserved before the call and settled after it.

FIRST_GUESS = 256  # output tokens, before any answer was seen

# Before any answer was seen a call is reserved as a large one, so that the first one goes alone where a limit is small.
# Output: the longest answers of most models. Input: the instructions that an application may add.
UNKNOWN_OUTPUT, UNKNOWN_INPUT = 32_768, 8_192

MAX_KINDS = 256  # kinds of calls of a route whose lengths are remembered

FORGETTING = 0.02  # part of the distance by which an estimate falls with each shorter answer


class TypicalLength:
    """Running estimates of the lengths of one kind of call.

    The typical output rises ten times as fast as it falls. So it settles where the excess of longer answers is a tenth
    of the shortfall of shorter ones (an expectile). The upper ones rise to each new maximum at once, and fall slowly.
    """

    __slots__ = ("_beyond", "_excess", "_highest", "_typical", "learned")

    def __init__(self) -> None:
        self.learned = False
        self._typical = float(FIRST_GUESS)
        self._highest = float(UNKNOWN_OUTPUT)
        self._excess = float(UNKNOWN_INPUT)  # of the input over its estimate
        self._beyond = 0.0  # of the output over the client's limit: some backends do not count reasoning

    def observe(self, estimated_input: int, max_output: int | None, input_count: int, output_count: int) -> None:
        """Learn from a call."""
        excess = max(0, input_count - estimated_input)
        if max_output is not None:
            beyond = max(0, output_count - max_output)
            self._beyond = max(beyond, self._beyond + FORGETTING * (beyond - self._beyond))
        if not self.learned:
            self.learned, self._typical, self._highest, self._excess = True, output_count, output_count, excess
            return
        error = output_count - self._typical
        self._typical += (0.2 if error > 0 else FORGETTING) * error
        self._highest = max(output_count, self._highest + FORGETTING * (output_count - self._highest))
        self._excess = max(excess, self._excess + FORGETTING * (excess - self._excess))

    def reserve(self, estimated_input: int, max_output: int | None, *, answers: bool = True) -> Tokens:
        """Return the tokens to reserve. `max_output` is the client's limit. With `answers` the call has output
        tokens."""
        if not answers:
            return Tokens(estimated_input + round(self._excess), 0, estimated_input, 0, estimated_input, 0)
        highest = max(1, round(self._highest)) if max_output is None else max_output + round(self._beyond)
        typical = max(1, round(self._typical))
        least = typical if self.learned else 1
        return Tokens(
            upper_input=estimated_input + round(self._excess),
            upper_output=highest,
            likely_input=estimated_input,
            likely_output=typical if max_output is None else max_output,
            least_input=estimated_input,
            least_output=least if max_output is None else min(least, max_output),
        )


class Tokens(NamedTuple):
    """The tokens of a call that has not begun: at most, likely, and what it needs if no other call is in flight."""

    upper_input: int
    upper_output: int
    likely_input: int
    likely_output: int
    least_input: int
    least_output: int


ALL_ROUTES = "*"  # stands for the route; no route can have this name

MAX_CLIENT_RETRY_S = 60  # seconds; beyond it, clients that retry on their own are told not to

PERIOD = {"s": "second", "min": "minute", "h": "hour", "day": "day"}

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The cost of a call."""

    tokens: int = 0
    micros: int = 0  # millionths of a US dollar

    def __add__(self, other: CostEstimate) -> CostEstimate:
        return CostEstimate(self.tokens + other.tokens, self.micros + other.micros)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The cost of a call that has not begun. It needs `least` if no other call is in flight."""

    upper: CostEstimate = CostEstimate()
    likely: CostEstimate = CostEstimate()
    least: CostEstimate = CostEstimate()

    @classmethod
    def of(cls, estimate: CostEstimate) -> Reservation:
        return cls(estimate, estimate, estimate)


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """One limit, and the demand of a request on it."""

    limit: str  # requests | tokens | concurrency | large_share | cost: the label of the metric
    per: Per
    subject: str
    rule_text: str  # the limit as an operator writes it
    demand: Demand
    pace: Pace | None = None
    likely: float = 1.0  # of a rate: the units that clients are shown

    @property
    def is_global(self) -> bool:
        """True for an API key's own limit, which counts over all routes."""
        return self.demand.key.startswith(ALL_ROUTES + ":")


def limit_requests(
    route: str, limits: Sequence[Limits], whose: Mapping[Per, str], reserved: Reservation, member: str
) -> list[LimitRequest]:
    """Return all demands of a call, before it goes to a backend."""
    return [request for rule in limits for request in _limit_requests(route, rule, whose[rule.per], reserved, member)]


def is_amount(request: LimitRequest) -> bool:
    """Return whether a limit is on what a call uses up: tokens or costs."""
    return isinstance(request.demand, PacedLimit | Cost) and bool(request.demand.member)


def limits_calls(rule: Limits) -> bool:
    """Return whether a rule has a limit of calls to backends, not only of requests."""
    of_requests = rule.requests and not rule.count_hits
    return bool(of_requests or rule.tokens or rule.caps or rule.concurrency or rule.large_share)


def requests_of(route: str, limits: Sequence[Limits], whose: Mapping[Per, str]) -> list[LimitRequest]:
    """Return the demands of every request, hits included, by the rules that count hits."""
    return [request for rule in limits if rule.count_hits for request in _requests(route, rule, whose[rule.per])]


def _requests(route: str, rule: Limits, subject: str) -> Iterator[LimitRequest]:
    for pace in rule.requests:
        yield _paced(route, rule.per, subject, "requests", pace)


def _limit_requests(
    route: str, rule: Limits, subject: str, reserved: Reservation, member: str
) -> Iterator[LimitRequest]:
    where = f"{route}:{rule.per}:{subject}:"
    if not rule.count_hits:
        yield from _requests(route, rule, subject)
    for pace in rule.tokens:
        yield _paced(route, rule.per, subject, "tokens", pace, reserved, member)
    if rule.concurrency is not None:
        slot = Slot(where + "concurrency", rule.concurrency, member)
        yield LimitRequest("concurrency", rule.per, subject, str(rule.concurrency), slot)
    if rule.large_share is not None:
        part = LimitPart(where + "large_share", rule.large_share)
        yield LimitRequest("large_share", rule.per, subject, f"{100 * rule.large_share:g}%", part)
    for cap in rule.caps:
        # A soft cap refuses nothing, so it need not hold against a burst.
        upper, least = (reserved.likely if cap.light else reserved.upper).micros, reserved.least.micros
        spend = Cost(_cap_key(where, cap), cap.micros, upper, cap.window, cap.light, least, member)
        yield LimitRequest("cost", rule.per, subject, f"{cap.micros / MICROS:.2f} USD a {cap.window}", spend)


def _paced(
    route: str, per: Per, subject: str, limit: str, pace: Pace, reserved: Reservation | None = None, member: str = ""
) -> LimitRequest:
    key = f"{route}:{per}:{subject}:{limit}/{pace.period}"
    interval_us = pace.period_s * MICROS / pace.amount
    if reserved is None:
        return LimitRequest(limit, per, subject, str(pace), PacedLimit(key, interval_us, pace.burst, 1), pace)
    demand = PacedLimit(key, interval_us, pace.burst, reserved.upper.tokens, reserved.least.tokens, member)
    return LimitRequest(limit, per, subject, str(pace), demand, pace, reserved.likely.tokens)


def _cap_key(where: str, cap: Cap) -> str:
    return f"{where}cost/{cap.window}{'/light' if cap.light else ''}"


def waitable(requests: Sequence[LimitRequest], taken: TakeResult) -> str | None:
    """Return the key of a limit for which a refused call may wait until calls in flight have settled. Return None if it
    is refused whatever they cost."""
    failed = [
        (a.demand, observed)
        for a, observed in zip(requests, taken.observed, strict=True)
        if not observed.ok and not is_soft(a.demand)
    ]
    return failed[0][0].key if failed and all(could_fit(*pair) for pair in failed) else None


def light_only(requests: Sequence[LimitRequest], taken: TakeResult) -> str | None:
    """Return the first limit that leaves only the lightest model, or None."""
    return next((a.limit for a, observed in zip(requests, taken.observed, strict=True) if not observed.ok), None)


def refused(route: str, requests: Sequence[LimitRequest], taken: TakeResult) -> tuple[LimitRequest, str, int]:
    """Return the refusing limit with the longest wait, a sentence about it, and the wait in seconds, at least 1."""
    failed = [
        (a, observed)
        for a, observed in zip(requests, taken.observed, strict=True)
        if not observed.ok and not is_soft(a.demand)
    ]
    waits = [wait_us(a.demand, observed, taken.at_us) for a, observed in failed]
    at = max(range(len(failed)), key=waits.__getitem__)
    slowest, observed = failed[at]
    seconds = max(1, math.ceil(waits[at] / MICROS))
    return slowest, f"{_sentence(route, slowest, observed)}; try again in {seconds} s", seconds


def _sentence(route: str, request: LimitRequest, observed: LimitState) -> str:
    whose = f"this {request.per}" if request.per != "route" else "all clients"
    remaining = left(request.demand, observed, taken=False)
    where = "" if request.is_global else f" on route {route}"
    if isinstance(request.demand, PacedLimit):
        amount, _, period = request.rule_text.partition("/")
        needs = f", this request takes about {request.demand.units:.0f}" if request.limit == "tokens" else ""
        what = f"limit of {amount} {request.limit} a {PERIOD[period]}"
        return f"the {what} for {whose}{where} is reached: {remaining:.0f} left{needs}"
    if isinstance(request.demand, Slot):
        calls = f"{request.rule_text} concurrent calls"
        return f"the limit of {calls} for {whose}{where} is reached: {observed.level} in flight"
    return f"the cap of {request.rule_text} for {whose}{where} is reached: {remaining / MICROS:.4f} USD left"


def rate_limit_headers(requests: Sequence[LimitRequest], taken: TakeResult) -> Headers:
    """Return the rate limit headers, with OpenAI's `x-ratelimit-*` for the window with the least left.

    The others are `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
    """
    rates = [
        (a, a.pace, a.demand, observed)
        for a, observed in zip(requests, taken.observed, strict=True)
        if isinstance(a.demand, PacedLimit)
    ]
    policies, states = [], []
    tightest: dict[str, tuple[float, Pace, float]] = {}
    for a, pace, demand, observed in rates:
        assert pace is not None and isinstance(demand, PacedLimit)
        likely_us = min(a.likely, demand.burst) * demand.interval_us if taken.granted else 0.0
        backlog_us = observed.level + likely_us
        remaining = max(0.0, (demand.burst_us + SLACK_US - backlog_us) // demand.interval_us)
        name = f'"{a.limit}-{pace.period}"'
        policies.append(f"{name};q={pace.amount};w={pace.period_s}")
        states.append(f"{name};r={remaining:.0f};t={math.ceil(backlog_us / MICROS)}")
        if a.limit not in tightest or remaining < tightest[a.limit][0]:
            tightest[a.limit] = (remaining, pace, backlog_us / MICROS)
    if not rates:
        return ()
    headers = [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(states))]
    for limit, (remaining, pace, seconds) in tightest.items():
        headers.append((f"x-ratelimit-limit-{limit}", str(pace.amount)))
        headers.append((f"x-ratelimit-remaining-{limit}", f"{remaining:.0f}"))
        headers.append((f"x-ratelimit-reset-{limit}", f"{seconds:.3f}s"))
    return tuple(headers)


def with_headers(headers: Headers, more: Headers) -> Headers:
    """Add headers, and drop a backend's headers of the same names, which describe another limit."""
    names = {name.lower() for name, _ in more}
    return (*((name, value) for name, value in headers if name.lower() not in names), *more)


def returns_of(requests: Sequence[LimitRequest], taken: TakeResult, real: CostEstimate) -> list[Return]:
    """Return the corrections after a call, with its real usage. `returns_without_large` corrects large shares."""
    returns = []
    for a in requests:
        demand = a.demand
        if isinstance(demand, PacedLimit) and a.limit == "tokens":
            returns.append(Return("pace", demand.key, real.tokens * demand.interval_us, "", demand.reservation))
        elif isinstance(demand, Slot):
            returns.append(Return("place", demand.key, of=demand.member))
        elif isinstance(demand, Cost):
            window = window_of(demand.window, taken.at_us)
            returns.append(Return("spend", demand.key, real.micros, window, demand.reservation))
    return returns


def is_near(requests: Sequence[LimitRequest], taken: TakeResult, real: CostEstimate) -> bool:
    """Return whether an amount has room for at most two more calls like this one."""
    for a, observed in zip(requests, taken.observed, strict=True):
        demand = a.demand
        if isinstance(demand, Cost):
            used, whole = float(observed.level + 3 * real.micros), float(demand.cap)
        elif isinstance(demand, PacedLimit) and demand.member:
            used, whole = observed.level + 3 * real.tokens * demand.interval_us, demand.burst_us
        else:
            continue
        if used >= whole:
            return True
    return False


def returns_without_large(requests: Sequence[LimitRequest], taken: TakeResult) -> list[Return]:
    """Return the corrections for a call that was expected to use a large model and did not."""
    observed = zip(requests, taken.observed, strict=True)
    return [Return("part", a.demand.key) for a, t in observed if isinstance(a.demand, LimitPart) and t.ok]


def returns_without_call(requests: Sequence[LimitRequest], taken: TakeResult) -> list[Return]:
    """Return the corrections for a request that reached no backend: it used no call and no large model."""
    calls = [
        Return("pace", a.demand.key, -a.demand.cost_us)
        for a in requests
        if isinstance(a.demand, PacedLimit) and a.limit == "requests"
    ]
    return calls + returns_without_large(requests, taken)
