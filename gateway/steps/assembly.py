"""Builds each step of the pipeline around the next one. `gateway.pipeline` lists the steps in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from gateway.cache.freshness import exact_lifetime, longest_lifetime_s
from gateway.cache.tool_calls import ToolCallRule
from gateway.config.policy.model import Route
from gateway.config.policy.parameters import untuned
from gateway.context import Handler, RequestContext
from gateway.dialects.known import error_dialect, imported_dialect
from gateway.entries import Entry, Lifetime
from gateway.observability.observer import Observer
from gateway.principal import Principal
from gateway.routing.backend_choice import BackendChoice
from gateway.routing.fallback import BackendAnswer, Fallback
from gateway.routing.selection import Decision
from gateway.routing.trials import TrialParts
from gateway.routing.tuned_pool import pools_of, prices_of
from gateway.scores import TierLabel
from gateway.steps.base_url_hint import BaseUrlHint
from gateway.steps.control_endpoints import ControlEndpoints, Endpoint
from gateway.steps.dispatch import Call, Dispatch, Mirror
from gateway.steps.error_boundary import ErrorBoundary, Inflight
from gateway.steps.exact_cache import EmbeddingPrefetch, ExactCache, LeasedLookup
from gateway.steps.exact_fast_path import ExactFastPath
from gateway.steps.list_models import ModelList
from gateway.steps.negotiate import Negotiate
from gateway.steps.observe import Observe
from gateway.steps.parse_and_route import ParseAndRoute, RouteTable
from gateway.steps.parts import Parts
from gateway.steps.route_ports import RoutePorts
from gateway.steps.single_flight import SingleFlight
from gateway.steps.split_inputs import SplitInputs
from gateway.steps.store_response import CacheWriter, StoreResponse
from gateway.steps.token_counts import TokenCounts
from gateway.upstream.backend import UpstreamPool

# Imported when a policy comes into force that compares questions.
SEMANTIC = "gateway.steps.semantic_assembly"


@dataclass(frozen=True, slots=True)
class SharedSteps:
    """The steps that run before a route is known. `table` returns the policy in force. `inflight` is None if the
    requests are jobs, because the number of workers bounds those."""

    parts: Parts
    table: Callable[[], RouteTable]
    observer: Observer
    is_valid: Callable[[Principal], bool]  # tells whether a principal is as good as when it was found
    authentication: Callable[[Handler], Handler]
    endpoints: Sequence[Endpoint] = ()
    inflight: Inflight | None = None

    def exact_fast_path(self, inner: Handler) -> Handler:
        parts = self.parts
        return ExactFastPath(
            inner,
            parts.store,
            self.table,
            self.observer,
            parts.clock,
            self.is_valid,
            self.inflight,
            parts.telemetry.failures,
        ).__call__

    def observe(self, inner: Handler) -> Handler:
        return Observe(inner, self.observer).__call__

    def error_boundary(self, inner: Handler) -> Handler:
        return ErrorBoundary(inner, self.parts.telemetry, self.inflight, error_dialect).__call__

    def authenticate(self, inner: Handler) -> Handler:
        return self.authentication(inner)

    def control_endpoints(self, inner: Handler) -> Handler:
        return ControlEndpoints(inner, self.endpoints).__call__

    def parse_and_route(self, inner: Handler) -> Handler:
        parts = self.parts
        step = ParseAndRoute(
            self.table,
            imported_dialect,
            parts.recorder,
            parts.telemetry,
            parts.subjects_of,
            parts.max_body_keys,
            parts.max_body,
        )
        return step.__call__


@dataclass(frozen=True, slots=True)
class RouteSteps:
    """The steps of one route."""

    route: Route
    parts: Parts
    ports: RoutePorts

    def count_requests(self, inner: Handler) -> Handler:
        return self.parts.meter().count_requests(self.route, inner)

    def negotiate(self, inner: Handler) -> Handler:
        route, parts = self.route, self.parts
        inputs = SplitInputs(route.share, parts.evictions.used) if route.caches else None
        members = dict.fromkeys(untuned(name) for tier in route.target.tiers for name in tier.members)
        models = ModelList([parts.pools[name] for name in members])
        return Negotiate(inner, route.replay, parts.clock, parts.split_cache, inputs, models).__call__

    def exact_cache(self, inner: Handler) -> Handler:
        parts = self.parts
        prefetch = None if self.route.semantic is None else import_module(SEMANTIC).prefetch_of(self.route, parts)
        leased = None
        if (leasing := parts.fleet.leasing) is not None:
            leased = leasing.lookup(parts.store, parts.unstorable, self.ports.placement)
        return exact_lookup(self.route, parts, inner, prefetch, leased)

    def single_flight(self, inner: Handler) -> Handler:
        parts = self.parts
        return SingleFlight(inner, parts.flights, parts.unstorable, parts.unread, parts.telemetry).__call__

    def semantic_cache(self, inner: Handler) -> Handler:
        step = import_module(SEMANTIC).semantic_cache(inner, self.route, self.parts)
        return cast(Handler, step)

    def cluster_lease(self, inner: Handler) -> Handler:
        route, parts, leasing = self.route, self.parts, self.parts.fleet.leasing
        assert leasing is not None  # else the step is absent
        lifetime = exact_lifetime(route) or Lifetime(longest_lifetime_s(route), route.jitter)
        exact, placement = route.exact_ttl_s is not None, self.ports.placement
        return leasing.step(inner, parts.store, parts.clock, parts.unstorable, lifetime, placement, exact=exact)

    def store_response(self, inner: Handler) -> Handler:
        route, parts = self.route, self.parts
        writer = CacheWriter(
            parts.store,
            None if route.semantic is None else parts.space.index,
            parts.clock,
            parts.telemetry,
            route,
            parts.unstorable,
            self._on_stored(),
            None if route.semantic is None else parts.space.late,
            behind=parts.fleet.leasing is not None,
        )
        return StoreResponse(
            inner,
            writer,
            parts.clock,
            parts.telemetry,
            route,
            max_entry=parts.max_entry,
            prices=prices_of(route.target, parts.prices),
            unstorable=parts.unstorable,
            frequency=parts.frequency,
            placement=self.ports.placement,
            schemas=parts.schemas,
        ).__call__

    def rate_limit(self, inner: Handler) -> Handler:
        route, parts = self.route, self.parts
        prices = prices_of(route.target, parts.prices)
        passable = [name for name in route.target.members if parts.pools[untuned(name)].http]
        return parts.meter().rate_limit(route, prices, passable, inner, self.ports.on_spent)

    def resource_affinity(self, inner: Handler) -> Handler:
        parts = self.parts
        members = dict.fromkeys(untuned(name) for name in self.route.target.members)
        others = [parts.pools[name] for name in members]
        shared = self.route.caches and self.route.share == "global"
        return parts.resources().step(inner, parts.pools, others, shared=shared)

    def dispatch(self, inner: Handler) -> Handler:
        route, parts = self.route, self.parts
        backend_choice = backend_choice_of(route, parts, self.ports)
        return Dispatch(
            route,
            backend_choice,
            self._call(backend_choice),
            parts.promises,
            parts.escalations,
            parts.telemetry,
            BaseUrlHint(),
            TokenCounts({name: pool.speaks for name, pool in parts.pools.items()}),
            self._mirror(),
            self._sole(backend_choice),
        ).__call__

    def _sole(self, backend_choice: BackendChoice) -> UpstreamPool | None:
        """Return the only backend, or None if there are several, or conversations choose among its upstreams."""
        if backend_choice.single_backend is None:
            return None
        pool = self.parts.pools[backend_choice.single_backend]
        return pool if self.ports.conversations is None or pool.single is not None else None

    def _on_stored(self) -> Callable[[RequestContext, Entry], None]:
        route, parts = self.route, self.parts
        compares = route.semantic is not None and route.semantic.acceptance.max_wrong_hits is not None
        audits = parts.light_audits() if route.target.audit.share > 0 else None
        follow = self.ports.on_stored

        def stored(request: RequestContext, entry: Entry) -> None:
            parts.evictions.stored(entry, None if request.embedding is None else request.embedding.vector)
            if compares and _may_teach(request):  # a plain threshold has nothing to learn from misses
                parts.space.comparisons.enqueue_miss(request, entry)
            if follow is not None:
                follow(request, entry, parts.space.comparisons, parts.store)
            if audits is not None:
                audits.consider(request, entry, route.target, parts.space.comparisons)

        return stored

    def _call(self, backend_choice: BackendChoice) -> Call:
        route, parts = self.route, self.parts
        fallback = Fallback(pools_of(route.target, parts.pools), parts.clock, parts.telemetry)
        trials = self.ports.trials
        if trials is not None:
            embedder, in_time = parts.space.embedder, backend_choice.in_time
            return trials.caller(
                TrialParts(fallback, parts.pools, embedder, parts.schemas, in_time, self._record_check)
            )

        def call(request: RequestContext, decision: Decision) -> Awaitable[BackendAnswer]:
            return fallback.first_answer(request, decision.backends)

        return call

    def _record_check(self, request: RequestContext, passed: bool) -> None:
        """Count the check, with no weight for learning: a check does not compare two answers. A check that is too
        strict would soon teach the route that all requests are hard."""
        prompt = request.estimates.scored_prompt
        if prompt is not None and not request.work.internal:
            label = TierLabel.EQUAL if passed else TierLabel.WORSE
            self.parts.escalations.observe(request.route, prompt, label, source="cascade", weight=0.0)

    def _mirror(self) -> Mirror | None:
        mirror = self.ports.mirror
        if mirror is None:
            return None
        comparisons = self.parts.space.comparisons
        return lambda request, response: mirror(request, response, comparisons)


def _may_teach(request: RequestContext) -> bool:
    """Return whether the miss may move the threshold for all. Under a narrower trust a client could otherwise make up
    pairs with answers of its own."""
    asker, judged = request.asker, request.judged
    return asker is None or (judged is not None and asker.confirms(judged.entry))


def exact_lookup(
    route: Route,
    parts: Parts,
    inner: Handler,
    prefetch: EmbeddingPrefetch | None = None,
    leased: LeasedLookup | None = None,
) -> Handler:
    """Return the exact cache of a route around a handler."""
    lifetime = exact_lifetime(route)
    assert lifetime is not None  # else the step is absent
    return ExactCache(
        inner,
        parts.store,
        parts.evictions.is_absent,
        parts.clock,
        parts.telemetry,
        lifetime,
        route.of(ToolCallRule),
        parts.background,
        prefetch,
        leased,
    ).__call__


def backend_choice_of(route: Route, parts: Parts, ports: RoutePorts) -> BackendChoice:
    return BackendChoice(
        route,
        pools_of(route.target, parts.pools),
        parts.promises,
        parts.escalations,
        parts.clock,
        parts.space.complexity if len(route.target.tiers) > 1 else None,
        conversations=ports.conversations,
        trials=ports.trials,
        classifier=None if ports.classifier is None else ports.classifier(),
    )
