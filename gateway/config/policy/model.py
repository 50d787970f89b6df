"""The compiled policy: routes in order. It is immutable, and a reload replaces it as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from gateway.config.errors import ConfigError
from gateway.config.policy.parameters import TunedBackend
from gateway.config.policy.schema import ADMIT_ALL, NO_AUDIT, AdmitRule, AuditRule, SemanticRule
from gateway.config.policy.targets import TierPart
from gateway.config.policy.tests import Expectation
from gateway.priority import Priority

R = TypeVar("R")
Pattern = Callable[[str], object]
"""Truthy for a text that matches."""
Names = tuple[str, str, str]  # path, model and tenant
MAX_CACHED_MATCHES, MAX_CACHED_NAME_CHARS = 1024, 512  # cached names and their characters: at most a megabyte


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The requests of a route. None matches any value, and a missing one."""

    path: Pattern | None = None
    model: Pattern | None = None
    tenant: Pattern | None = None
    headers: tuple[tuple[str, Pattern], ...] = ()  # lower-case names

    def names(self, path: str, model: str, tenant: str) -> bool:
        """Return whether path, model and tenant match. A final slash of the path is no difference for most servers."""
        return (
            (self.path is None or bool(self.path(path)) or bool(self.path(path.rstrip("/"))))
            and (self.model is None or bool(self.model(model)))
            and (self.tenant is None or bool(self.tenant(tenant)))
        )

    def matches_headers(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers match."""
        return all(_has_header(headers, name, compile_glob) for name, compile_glob in self.headers)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The replay of hits."""

    paced: bool = False  # hits stream at the pace of a model, not at once
    rate: float | None = None  # tokens per second, or None for the pace of the original response
    fresh_ids: bool = False  # each hit has its own id and time; off: byte for byte


Late = Literal["soonest", "light", "stale", "refuse"]


@dataclass(frozen=True, slots=True)
class SloSettings:
    """The handling of latency budgets."""

    confidence: float = 0.95  # share of the budgets to keep, in (0, 1)
    per_request: bool = False  # applies to each request, not to all budgets together
    late: Late = "soonest"  # if no backend is predicted to keep the budget


@dataclass(frozen=True, slots=True)
class Tier:
    """One step between the lightest model and the best one."""

    name: str  # light | large; a middle tier has the name of its backend
    backend: str  # in a split, the one with the largest share, or the one that a request was given
    parts: tuple[TierPart, ...] = ()  # the split, or () if all calls go to `backend`

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(part.backend for part in self.parts) or (self.backend,)


@dataclass(frozen=True, slots=True)
class Target:
    """The backends that answer a miss."""

    tiers: tuple[Tier, ...]  # from the lightest to the best; one: no choice
    escalate_above: tuple[float, ...] = ()  # complexities in [0, 1], ascending: above each, one tier further
    # Instead of a fixed threshold, one that follows the traffic; at most one of the two.
    large_share: float | None = None  # share of the misses that the large model answers, in [0, 1]
    quality: float | None = None  # share of the quality gap between both models to keep, in [0, 1]
    audit: AuditRule = NO_AUDIT  # comparisons of the light model's answers with the large model's
    learn: bool = True  # whether labels change the learnt meaning of scores
    fallback: tuple[str, ...] = ()  # backends to try, in order, if all tiers have failed
    tuned: tuple[TunedBackend, ...] = ()  # the backends of tiers with parameters

    @property
    def backends(self) -> tuple[str, ...]:
        """The backend of each tier."""
        return tuple(tier.backend for tier in self.tiers)

    @property
    def members(self) -> tuple[str, ...]:
        """All backends that may answer, each once."""
        return tuple(dict.fromkeys([*(name for tier in self.tiers for name in tier.members), *self.fallback]))

    def tier_with_backend(self, backend: str) -> str | None:
        """Return the name of the tier with a backend, or None if the route has one tier."""
        if len(self.tiers) == 1:
            return None
        return next((tier.name for tier in self.tiers if backend in (tier.backend, *tier.members)), None)


def tier_from_parts(name: str | None, parts: tuple[TierPart, ...]) -> Tier:
    """Return the tier of a split. Without `name` it has the name of its largest part."""
    main = max(parts, key=lambda part: part.share).backend
    return Tier(name or main, main, parts if len(parts) > 1 else ())


# Request headers by which model endpoints choose a version or a beta feature: part of every cache key.
VERSION_HEADERS = ("anthropic-beta", "anthropic-version", "openai-beta")


class Generational:
    """The rule of a feature that decides which answers may be stored. Answers of one `generation` are not found under
    another: it is part of every cache key."""

    @property
    def generation(self) -> str:
        """Its name; empty if all stored answers may be served."""
        return ""


@dataclass(frozen=True, slots=True)
class Route:
    """The decisions about a request that matches. Durations are in seconds."""

    name: str
    target: Target
    match: RouteMatch = RouteMatch()
    exact_ttl_s: float | None = None  # None turns it off
    semantic: SemanticRule | None = None  # None turns it off
    share: Literal["user", "tenant", "global"] = "tenant"
    vary: tuple[str, ...] = VERSION_HEADERS  # request headers that are part of the cache keys; lower-case names
    jitter: float = 0.0  # share of the TTL by which an entry may expire earlier, in [0, 1]
    stale_while_revalidate_s: float = 0.0
    stale_if_error_s: float = 0.0
    admission: AdmitRule = ADMIT_ALL
    replay: ReplaySettings = ReplaySettings()
    latency_budget_s: float | None = None
    slo: SloSettings = SloSettings()
    priority: Priority = Priority.NORMAL
    client_priority: bool = False  # whether clients may raise the priority; they may always lower it
    metered: bool = False  # calls are metered, whatever their limits and prices
    expose_headers: bool = True
    rules: Mapping[str, Any] = field(default_factory=dict)  # the rule of each feature that is on, by its key
    file: str = ""  # the file of the rule
    line: int = 0
    caches: bool = field(init=False)  # whether a cache is on
    generation: str = field(init=False)  # of the answers that its features let it serve: see `Generational`

    def __post_init__(self) -> None:
        object.__setattr__(self, "caches", self.exact_ttl_s is not None or self.semantic is not None)
        generations = [rule.generation for rule in self.rules.values() if isinstance(rule, Generational)]
        object.__setattr__(self, "generation", "\n".join(filter(None, generations)))

    def of(self, rule: type[R]) -> R | None:
        """Return the rule of a feature by its type, or None if the feature is off."""
        return next((each for each in self.rules.values() if isinstance(each, rule)), None)


@dataclass(frozen=True, slots=True)
class PolicySource:
    """One policy file: its name as faults show it, and its bytes."""

    file: str
    content: bytes

    @property
    def name(self) -> str:
        """The name within the folder."""
        return PurePath(self.file).name


@dataclass(frozen=True, slots=True)
class Policy:
    """The routes in their order. The last one matches every request."""

    routes: tuple[Route, ...]
    hash: str  # first 12 hex digits of a SHA-256 over the sources
    warnings: tuple[ConfigError, ...] = ()  # valid, but unlikely to be meant
    texts: tuple[PolicySource, ...] = ()  # its files
    expectations: tuple[Expectation, ...] = ()  # its tests
    # Names seen before -> their routes. The globs of 64 routes take 100 us, a lookup here takes 0.3 us.
    _match_cache: dict[Names, tuple[Route, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def match(self, path: str, model: str, tenant: str, headers: Mapping[str, str]) -> Route:
        """Return the first route that matches. `model` is empty if the request has none."""
        names = path, model, tenant
        for route in self._match_cache.get(names) or self._match_names(names):
            if not route.match.headers or route.match.matches_headers(headers):
                return route
        return self.routes[-1]

    def of(self, route: str, rule: type[R]) -> R | None:
        """Return a rule of a route by its type, or None if the route has none, or there is no such route."""
        return next((each.of(rule) for each in self.routes if each.name == route), None)

    def _match_names(self, names: Names) -> tuple[Route, ...]:
        """Return the routes whose names match, up to the first without headers."""
        routes = []
        for route in self.routes:
            if route.match.names(*names):
                routes.append(route)
                if not route.match.headers:
                    break
        if sum(map(len, names)) <= MAX_CACHED_NAME_CHARS:  # clients choose them
            if len(self._match_cache) >= MAX_CACHED_MATCHES:
                self._match_cache.clear()
            self._match_cache[names] = tuple(routes)
        return tuple(routes)


def compile_glob(glob: str | None) -> Pattern | None:
    """Compile a glob (`*`, `?`, `[...]`, case-sensitive). Return None for one that matches everything."""
    if glob is None or glob == "*":
        return None
    return re.compile(translate(glob)).match if any(c in glob for c in "*?[") else glob.__eq__


def _has_header(headers: Mapping[str, str], name: str, value_matches: Pattern) -> bool:
    # A header may occur more than once and in any case; a plain lookup would miss both.
    return any(key.lower() == name and value_matches(value) for key, value in headers.items())
