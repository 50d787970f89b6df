"""The policy in force: routes in order, ready to be asked. Immutable; a reload replaces the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import PurePath
from typing import Literal

from gateway.config.errors import ConfigError
from gateway.config.policy.targets import Cascade, Shadow, TierPart
from gateway.config.policy.tests import Expectation
from gateway.limits import Limits
from gateway.ports import Acceptance
from gateway.priority import Priority

Pattern = Callable[[str], object]
"""Truthy for a text that matches."""
Names = tuple[str, str, str]  # path, model and tenant
MAX_CACHED_MATCHES, MAX_CACHED_NAME_CHARS = 1024, 512  # names that are kept, and their characters: a megabyte at most


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The requests of a route. A None matches whatever is there, nothing included."""

    path: Pattern | None = None
    model: Pattern | None = None
    tenant: Pattern | None = None
    headers: tuple[tuple[str, Pattern], ...] = ()  # lower-case names

    def names(self, path: str, model: str, tenant: str) -> bool:
        """Whether it matches but for the headers."""
        return (
            (self.path is None or bool(self.path(path)))
            and (self.model is None or bool(self.model(model)))
            and (self.tenant is None or bool(self.tenant(tenant)))
        )

    def matches_headers(self, headers: Mapping[str, str]) -> bool:
        return all(_has_header(headers, name, compile_glob) for name, compile_glob in self.headers)


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Which answers are checked against a fresh one, and what that may cost: semantic hits, or the light model's."""

    share: float = 0.0  # of them, in [0, 1]
    per_hour: int | None = None  # calls, those of the judge included; None: no bound
    cost_per_day: float | None = None  # US dollars, the judge's included; None: no bound
    judge: str | None = None  # the backend that is asked where the comparison cannot tell


@dataclass(frozen=True, slots=True)
class Semantic:
    """How the semantic cache works on a route."""

    ttl_s: float
    acceptance: Acceptance
    audit: AuditSettings = AuditSettings()
    learn: bool = True  # whether labels move the threshold; off: they measure alone
    coalesce: bool = False  # whether a question waits for one in flight that asks the same in other words

    @property
    def learns(self) -> bool:
        """A plain `min_similarity` is what it says: nothing moves it."""
        return self.learn and self.acceptance.max_wrong_hits is not None


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Which complete and successful answers are stored; None: no bound."""

    max_temperature: float | None = None  # of the request, in [0, 2]
    tools: bool = False  # whether answers that call tools are
    min_tokens: int | None = None  # of the answer
    max_tokens: int | None = None
    max_size: int | None = None  # bytes
    min_cost: float | None = None  # US dollars that the call cost
    roles: tuple[str, ...] | None = None  # that the messages of the request may have
    after: int = 1  # how often the question must have been asked lately


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How hits are played back."""

    paced: bool = False  # streams at the pace of a model rather than at once
    rate: float | None = None  # tokens a second; None: the pace at which each answer came
    fresh_ids: bool = False  # each hit under an id and a time of its own, rather than byte for byte


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What of a route's requests is kept for `nearhit simulate`."""

    share: float = 1.0  # of the questions, in (0, 1]: of one that is drawn every request is kept
    prompts: bool = False  # whether the questions themselves are


Late = Literal["soonest", "light", "stale", "refuse"]


@dataclass(frozen=True, slots=True)
class SloSettings:
    """What a latency budget is worth."""

    confidence: float = 0.95  # share of the budgets that are to be kept, in (0, 1)
    per_request: bool = False  # asked of each request, rather than of all that were promised
    late: Late = "soonest"  # where no backend is predicted to keep it


@dataclass(frozen=True, slots=True)
class Tier:
    """One step between the lightest model and the best one."""

    name: str  # light | large, or what lies between them by the name of its backend
    backend: str  # where its calls are divided, the one with the largest share, or what a request was given
    parts: tuple[TierPart, ...] = ()  # whom its calls are divided among; empty: all go to `backend`

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(part.backend for part in self.parts) or (self.backend,)


@dataclass(frozen=True, slots=True)
class Target:
    """Who answers what the caches do not."""

    tiers: tuple[Tier, ...]  # from the lightest to the best; one: nothing to choose between
    escalate_above: tuple[float, ...] = ()  # complexities in [0, 1], ascending: above each, one tier further
    # Instead of a threshold that stands, one that follows the traffic; one of them at most.
    large_share: float | None = None  # share of the misses that the large one answers, in [0, 1]
    quality: float | None = None  # part of the gap between both models' answers that is kept, in [0, 1]
    audit: AuditSettings = AuditSettings()  # which of the light model's answers are compared with the large one's
    learn: bool = True  # whether labels move what scores are taken to mean; off: as it stands
    fallback: tuple[str, ...] = ()  # backends that are asked, in order, when all tiers have failed
    shadow: Shadow | None = None
    cascade: Cascade | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """One a tier."""
        return tuple(tier.backend for tier in self.tiers)

    @property
    def members(self) -> tuple[str, ...]:
        """All that may answer, each once."""
        return tuple(dict.fromkeys([*(name for tier in self.tiers for name in tier.members), *self.fallback]))

    def tier_with_backend(self, backend: str) -> str | None:
        """None where there is nothing to choose."""
        if len(self.tiers) == 1:
            return None
        return next((tier.name for tier in self.tiers if backend in (tier.backend, *tier.members)), None)


def tier_from_parts(name: str | None, parts: tuple[TierPart, ...]) -> Tier:
    """`name` None: that of its backend."""
    main = max(parts, key=lambda part: part.share).backend
    return Tier(name or main, main, parts if len(parts) > 1 else ())


@dataclass(frozen=True, slots=True)
class Route:
    """What happens to a request that matches. Durations are seconds."""

    name: str
    target: Target
    match: RouteMatch = RouteMatch()
    exact_ttl_s: float | None = None  # None: off
    semantic: Semantic | None = None  # None: off
    share: Literal["user", "tenant", "global"] = "tenant"
    jitter: float = 0.0  # share of a TTL by up to which an entry's own is shorter, in [0, 1]
    stale_while_revalidate_s: float = 0.0
    stale_if_error_s: float = 0.0
    admission: AdmissionRules = AdmissionRules()
    replay: ReplaySettings = ReplaySettings()
    latency_budget_s: float | None = None
    slo: SloSettings = SloSettings()
    limits: tuple[Limits, ...] = ()
    priority: Priority = Priority.NORMAL
    client_priority: bool = False  # whether clients may ask for more than that; less they always may
    record: RecordSettings | None = None  # None: off
    expose_headers: bool = True
    file: str = ""  # where the rule is written
    line: int = 0
    caches: bool = field(init=False)  # any of its caches is on

    def __post_init__(self) -> None:
        object.__setattr__(self, "caches", self.exact_ttl_s is not None or self.semantic is not None)


@dataclass(frozen=True, slots=True)
class PolicySource:
    """One file as it was read: its name as faults show it, and its bytes."""

    file: str
    content: bytes

    @property
    def name(self) -> str:
        """Within its folder."""
        return PurePath(self.file).name


@dataclass(frozen=True, slots=True)
class Policy:
    """Routes in the order in which they are tried; the last one matches everything."""

    routes: tuple[Route, ...]
    hash: str  # first 12 hex digits of a SHA-256 over the sources
    warnings: tuple[ConfigError, ...] = ()  # what is accepted but does not work yet, or hardly as it was meant
    texts: tuple[PolicySource, ...] = ()  # what it was read from
    expectations: tuple[Expectation, ...] = ()  # what it is to do, by its own account
    # What the routes say to names that were asked for before: 64 routes are 100 us of globs, this is 0.3 us.
    _match_cache: dict[Names, tuple[Route, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def match(self, path: str, model: str, tenant: str, headers: Mapping[str, str]) -> Route:
        """The first route that matches. `model` is empty where a request names none."""
        names = path, model, tenant
        for route in self._match_cache.get(names) or self._match_names(names):
            if not route.match.headers or route.match.matches_headers(headers):
                return route
        return self.routes[-1]

    def _match_names(self, names: Names) -> tuple[Route, ...]:
        """The routes that match but for the headers, up to one that wants none."""
        found = []
        for route in self.routes:
            if route.match.names(*names):
                found.append(route)
                if not route.match.headers:
                    break
        if sum(map(len, names)) <= MAX_CACHED_NAME_CHARS:  # clients choose them
            if len(self._match_cache) >= MAX_CACHED_MATCHES:
                self._match_cache.clear()
            self._match_cache[names] = tuple(found)
        return tuple(found)


def compile_glob(glob: str | None) -> Pattern | None:
    """A glob (`*`, `?`, `[...]`, case-sensitive), compiled; None for one that matches everything."""
    if glob is None or glob == "*":
        return None
    return re.compile(translate(glob)).match if any(c in glob for c in "*?[") else glob.__eq__


def _has_header(headers: Mapping[str, str], name: str, value_matches: Pattern) -> bool:
    # A header may come more than once and in any case: a plain lookup would miss both.
    return any(key.lower() == name and value_matches(value) for key, value in headers.items())
