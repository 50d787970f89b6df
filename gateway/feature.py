"""Features: what a route may have besides the core. Each is a folder of `gateway.features`, or a package of its own.

A `Feature` has a key in a route, the model of its rule, its steps, and its answers to `explain`, `doctor`, `simulate`
and `erase`. Every feature answers each of these, or says `Unsupported`. `Features` opens a feature when the first route
uses it. A feature that no route uses is not imported.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.adapters.redis.store import RedisStore
from gateway.cache.flight import SharedCall
from gateway.cache.stored_parts import Part, StoredPart
from gateway.calls import Call
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.features import FEATURES
from gateway.config.policy.model import Policy, Route
from gateway.config.validation import Extension, Problem
from gateway.context import Handler, RequestContext
from gateway.entries import Entry
from gateway.messages import Provenance
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.prices import Tariff
from gateway.steps.guard import Recovery, skip
from gateway.steps.parse_and_route import Reader, apply_route
from gateway.steps.recording import Recording
from gateway.steps.route_ports import OnEnd, RoutePorts
from gateway.subjects import SubjectDigests
from gateway.upstream.backend import UpstreamPool

if TYPE_CHECKING:  # only explanations need it
    from gateway.cache.explanation import ExplainedPair

LOG = logging.getLogger("nearhit")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The reason why a feature has no answer, as a sentence without a full stop."""

    reason: str


class Place(StrEnum):
    """A place of the pipeline in which steps of features stand. `gateway.pipeline` has them in order."""

    KEYS = "which answers a request may get"
    LOOKUP = "lookups before the exact cache"
    ANSWERS = "answers of backends, before they are stored"


class Concern(NamedTuple):
    """A warning of `nearhit doctor`."""

    found: str
    todo: str


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of the gateway that features build on. Features of a policy that is only read get idle ones."""

    clock: Clock
    telemetry: Telemetry
    stack: AsyncExitStack  # closes what a feature opens
    publisher: Callable[[str], Callable[..., None]]  # of events of a topic to the other gateways
    subscribe: Callable[[str, Callable[..., None]], None]  # to the events of a topic
    flights: MutableMapping[str, SharedCall]  # the calls in flight, by fingerprint
    exact_cache: Callable[[Route, Handler], Handler]  # the exact cache of a route, around a handler
    pools: Mapping[str, UpstreamPool] = field(default_factory=dict)  # the backends
    prices: Mapping[str, Tariff] = field(default_factory=dict)  # of the backends
    draw: Callable[[], float] = random.random  # numbers in [0, 1)
    recording: Recording | None = None  # the recorder's place; None: no request is served
    store: RedisStore | None = None  # for keys of a feature's own; None: no request is served
    subjects: SubjectDigests | None = None  # the digests by which an erasure names subjects
    reader: Callable[[Route], Reader | None] = lambda _: None  # of all features of a route: see `Features.reader`


NO_PORTS = RoutePorts()

HasEntry = Callable[[Callable[[Entry], bool]], Awaitable[bool]]


class Runtime:
    """The shared parts of a feature while a gateway runs. A feature overrides what it has."""

    def reader(self, route: Route) -> Reader | None:
        """Return what reads the calls of a route before their cache keys are computed, or None if nothing does."""
        return None

    def apply(self, request: RequestContext, call: Call, route: Route) -> Call:
        """Make the decisions on a request that the steps make before a lookup, and return its call as it goes on. Tests
        of policies and `explain` use it, as well as the steps."""
        return call

    def ports(self, route: Route) -> RoutePorts:
        """Return the decisions that the feature makes inside steps of the core."""
        return NO_PORTS

    def end_listener(self, route: Route) -> OnEnd | None:
        """Return what is told of each request of a route that is over, exact hits of the shortest path included. None:
        nothing is. It makes up no answer, so it may not raise."""
        return None

    def in_force(self, policy: Policy) -> None:
        """Act on a policy that comes into force, or on a change of the embedding model under the same policy."""

    def stored_parts(self) -> Sequence[StoredPart]:
        """Return an object for each part in `Feature.stores`. An erasure goes through them."""
        return ()


@dataclass(frozen=True, slots=True)
class FeatureStep:
    """A step of a feature. `build` wraps it around the next step. `recovery` tells how a request goes on after the step
    has failed (`gateway.steps.guard`); with None the request fails. `reason` is shown by `nearhit explain --steps`."""

    name: str
    place: Place
    reason: str
    build: Callable[[Any, Route, Handler], Handler]  # the first argument is the `Runtime` of the feature
    recovery: Recovery | None = skip


class Feature(ABC):
    """A feature of routes."""

    key: str
    """Its path in a route, such as `session` or `cache.mcp`."""
    after: str = ""
    """The key that it follows in lists of keys; empty: it comes last."""
    summary: str
    """The description of its key, for editors and the table of settings."""
    backend_fields: Sequence[str] = ()
    """The fields of its section in `route` that name backends."""
    among_tiers: bool = False
    """Whether its key, in the section `route`, means nothing on a route with one backend."""
    meters: bool = False
    """Whether the calls of its routes are metered, whatever their limits and prices."""
    embeds: bool = False
    """Whether a route with it needs the embedding model."""
    steps: Sequence[FeatureStep] = ()
    metrics: type | None = None
    """A class without arguments whose objects have the feature's metrics as attributes: `open` includes one in the
    telemetry of the core."""

    @property
    @abstractmethod
    def form(self) -> Any:
        """The annotated type of the values that a file may write: usually an optional `Section`, which is both the
        schema and the compiled form. A value of None turns the feature off."""

    further: Sequence[Extension] = ()
    """Its other keys, in the same section. Each is in `FEATURES`, too."""

    def shows_prompts(self, route: Route) -> bool:
        """Return whether operators may read the prompts of a route, because its policy has them recorded."""
        return False

    def applies(self, route: Route) -> bool:
        """Return whether its keys change anything on a route that has them."""
        return True

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the contradictions between the feature and the other keys of a route. `route` is as written."""
        return iter(())

    def warnings(self, route: Mapping[str, Any], adapters: Mapping[str, str]) -> Iterator[Problem]:
        """Yield what is valid and unlikely to be meant. `adapters` has the known adapters of backends."""
        return iter(())

    @abstractmethod
    def open(self, core: Core) -> Runtime:
        """Build the shared parts. Called once, before a policy that uses the feature comes into force."""

    @property
    @abstractmethod
    def stores(self) -> Sequence[Part] | Unsupported:
        """The parts that store something of requests, besides entries. Each says how erase and export reach it."""

    @abstractmethod
    def explain(self, request: RequestContext, route: Route) -> Mapping[str, str] | Unsupported:
        """Return the lines of `nearhit explain` about a request, by their title."""

    def explain_fields(self, request: RequestContext, route: Route) -> Mapping[str, Any]:
        """Return the values of those fields of `gateway.admin.explanation.Explanation` that are the feature's."""
        return {}

    async def explain_pair(self, pair: ExplainedPair, route: Route, has_entry: HasEntry) -> ExplainedPair:
        """Return the explanation of a pair of questions with what the feature says of it. `has_entry` tells whether the
        store has an entry of the stored question that fulfils a condition."""
        return pair

    @abstractmethod
    def doctor(self, route: Route) -> Iterable[Concern] | Unsupported:
        """Yield what is likely to go wrong on a route."""

    @abstractmethod
    def simulate(self) -> Unsupported | None:
        """Return None if a simulation makes the feature's decisions again, otherwise why it does not."""


def all_features() -> Iterator[Feature]:
    """Yield the features of this wheel and of installed packages. It imports all of them."""
    yield from dict.fromkeys(map(FEATURES.load, FEATURES.names()))


def features_of(route: Route) -> Iterator[Feature]:
    """Yield the features that a route uses, in the order of their steps."""
    keys = FEATURES.names() if len(route.rules) > 1 else route.rules
    used: dict[Feature, None] = dict.fromkeys(FEATURES.load(key) for key in keys if key in route.rules)
    yield from (feature for feature in used if feature.applies(route))


def embeds(route: Route) -> bool:
    """Return whether a route needs the embedding model: it compares questions or answers, or scores complexity."""
    if route.semantic is not None or has_tiers(route):
        return True
    return any(feature.embeds for feature in features_of(route))


def has_tiers(route: Route) -> bool:
    """Return whether a route chooses among tiers by complexity."""
    return len(route.target.tiers) > 1


class Features:
    """The features of a gateway. Each is opened when the first route uses it, and stays open."""

    def __init__(self, core: Core) -> None:
        self._core = replace(core, reader=self.reader)
        self._open: dict[str, Runtime] = {}
        self.ends: dict[str, OnEnd] = {}
        """By route: what is told of its requests that are over, under the policy in force."""

    def open_for(self, policy: Policy) -> None:
        """Open the features of a policy. Raise `ConfigInvalid` with a fault for each route whose features cannot be."""
        faults = []
        for route in policy.routes:
            for feature in features_of(route):
                try:
                    self._runtime(feature)
                except Exception as error:  # the code of another package
                    LOG.warning("a feature cannot be opened", exc_info=error, extra={"fields": {"key": feature.key}})
                    message = f"the feature cannot be opened for route {route.name}: {error or type(error).__name__}"
                    faults.append(ConfigError(route.file, route.line, tuple(feature.key.split(".")), message))
        if faults:
            raise ConfigInvalid(faults)

    def in_force(self, policy: Policy) -> None:
        """Tell all open features of the policy in force, those included that it no longer uses."""
        for runtime in self._open.values():
            runtime.in_force(policy)
        self.ends.clear()
        for route in policy.routes:
            told = [end for _, runtime in self.of(route) if (end := runtime.end_listener(route)) is not None]
            if told:
                self.ends[route.name] = told[0] if len(told) == 1 else partial(_tell_all, told)

    def of(self, route: Route) -> list[tuple[Feature, Runtime]]:
        """Return the features of a route with their shared parts, in the order of their steps."""
        return [(feature, self._runtime(feature)) for feature in features_of(route)]

    def reader(self, route: Route) -> Reader | None:
        """Return what reads the calls of a route before their cache keys are computed, or None if no feature does."""
        readers = [read for _, runtime in self.of(route) if (read := runtime.reader(route)) is not None]
        return partial(_read, readers) if len(readers) > 1 else next(iter(readers), None)

    def apply_route(self, request: RequestContext, call: Call, route: Route) -> Call:
        """Make the decisions on a request that come before its first lookup, those of the route's features included.
        Return its call as it goes on. Raise `BadRequest`."""
        apply_route(request, call, route, self.reader(route))
        call = request.call or call
        for _, runtime in self.of(route):
            call = runtime.apply(request, call, route)
        return call

    def ports(self, route: Route) -> RoutePorts:
        """Return the ports of a route. The first feature that fills a port has it."""
        filled: dict[str, Any] = {}
        for _, runtime in self.of(route):
            own = runtime.ports(route)
            filled |= {
                each.name: value
                for each in fields(own)
                if each.name not in filled and (value := getattr(own, each.name)) is not None
            }
        return RoutePorts(**filled)

    def stored_parts(self) -> list[StoredPart]:
        """Return what features store, those included that no route uses any more: it may still be there."""
        storing = [feature for feature in all_features() if not isinstance(feature.stores, Unsupported)]
        return [part for feature in storing for part in stored_parts_of(feature, self._runtime(feature))]

    def _runtime(self, feature: Feature) -> Runtime:
        runtime = self._open.get(feature.key)
        if runtime is None:
            runtime = self._open[feature.key] = feature.open(self._core)
        return runtime


def stored_parts_of(feature: Feature, runtime: Runtime) -> Sequence[StoredPart]:
    """Return the objects of the parts that a feature declares. Raise `ValueError` if it forgets one."""
    parts = runtime.stored_parts()
    declared = () if isinstance(feature.stores, Unsupported) else feature.stores
    if [each.part for each in parts] != [*declared]:
        raise ValueError(f"expected one object for each stored part of {feature.key}")
    return parts


def _read(readers: Sequence[Reader], request: RequestContext, call: Call) -> Call:
    for read in readers:
        call = read(request, call)
    return call


def _tell_all(told: Sequence[OnEnd], request: RequestContext, provenance: Provenance | None) -> None:
    for each in told:
        each(request, provenance)


def idle_features(clock: Clock, telemetry: Telemetry, stack: AsyncExitStack | None = None) -> Features:
    """Return features for a policy that is only read: without other gateways, calls and caches. `stack` closes what
    they open, such as the connections of a classifier."""
    core = Core(
        clock=clock,
        telemetry=telemetry,
        stack=stack or AsyncExitStack(),
        publisher=lambda _: _ignore,
        subscribe=_ignore,
        flights={},
        exact_cache=lambda _, inner: inner,
    )
    return Features(core)


def _ignore(*_: object) -> None:
    """Do nothing with an event."""
