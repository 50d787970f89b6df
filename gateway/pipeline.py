"""The pipeline: the steps of every request, outermost first.

A step answers the request, passes it to the next step, or waits. Steps that a route's policy turns off are absent.
`nearhit explain REQUEST.json --steps` prints the pipeline of a route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from gateway.config import Config
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.parameters import untuned
from gateway.containment import Containment, StepFailures
from gateway.context import Handler, RequestContext
from gateway.feature import Feature, Features, FeatureStep, Place, all_features, features_of
from gateway.limits import RouteLimits
from gateway.messages import Response
from gateway.steps.assembly import RouteSteps, SharedSteps
from gateway.steps.guard import Guard, Recovery, ask_backend, call_alone, skip, skip_lookup
from gateway.steps.parse_and_route import RouteTable
from gateway.upstream.tariffs import tariffs_of

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Deployment:
    """The configuration that decides, together with a route, which steps exist."""

    api_keys: bool  # clients authenticate with API keys, which may have limits
    shared_store: bool  # other gateways use the store
    several_upstreams: bool = False  # so a resource may be at any of them
    priced: frozenset[str] = frozenset()  # the backends whose calls have a price

    @classmethod
    def of(cls, config: Config) -> Deployment:
        return cls(
            config.auth.mode == "keys",
            config.store.url != "embedded" or config.server.workers > 1,
            sum(max(1, len(backend.addresses)) for backend in config.backends.values()) > 1,
            frozenset(name for name, tariff in tariffs_of(config).items() if tariff.charges),
        )


Applies = Callable[[Route, Deployment], bool]


def _always(_: Route, __: Deployment) -> bool:
    return True


def _exact(route: Route, _: Deployment) -> bool:
    return route.exact_ttl_s is not None


def _semantic(route: Route, _: Deployment) -> bool:
    return route.semantic is not None


def _cached(route: Route, _: Deployment) -> bool:
    return route.caches


def _counts_hits(route: Route, deployment: Deployment) -> bool:
    limits = route.of(RouteLimits)
    return deployment.api_keys or (limits is not None and any(rule.count_hits for rule in limits.rules))


def _limited(route: Route, deployment: Deployment) -> bool:
    """Return whether calls have limits, or are metered for the metrics or the traffic log."""
    if deployment.api_keys or route.metered or route.of(RouteLimits) is not None:
        return True
    return any(untuned(name) in deployment.priced for name in route.target.members)


def _leased(route: Route, deployment: Deployment) -> bool:
    return route.caches and deployment.shared_store


def _several(_: Route, deployment: Deployment) -> bool:
    return deployment.several_upstreams


@dataclass(frozen=True, slots=True)
class Step(Generic[B]):
    """A step of the pipeline. `build` wraps it around the next step, `applies` tells whether a route has it, and
    `for_jobs` whether it also runs for jobs. `recovery` tells how a request goes on after the step has failed
    (`gateway.steps.guard`). Without it a failure ends the request, unless the step contains it itself."""

    name: str
    build: Callable[[B, Handler], Handler]
    reason: str
    applies: Applies = _always
    for_jobs: bool = False
    recovery: Recovery | None = None


SHARED: Sequence[Step[SharedSteps]] = (
    Step("ExactFastPath", SharedSteps.exact_fast_path, "a repeated request is answered without parsing it again"),
    Step("Observe", SharedSteps.observe, "metrics, access log, span: sees every outcome exactly once", for_jobs=True,
         recovery=skip),
    Step("ErrorBoundary", SharedSteps.error_boundary, "errors in the client's protocol; sheds load", for_jobs=True),
    Step("Authenticate", SharedSteps.authenticate, "before the body: unknown clients cost nothing", for_jobs=True),
    Step("ControlEndpoints", SharedSteps.control_endpoints, "feedback, jobs, batches: no policy applies"),
    Step("ParseAndRoute", SharedSteps.parse_and_route, "protocol -> call, policy -> route, cache keys", for_jobs=True),
)  # fmt: skip
PER_ROUTE: Sequence[Step[RouteSteps] | Place] = (
    Step("CountRequests", RouteSteps.count_requests, "limits that also count hits", _counts_hits),
    Place.KEYS,
    Step("Negotiate", RouteSteps.negotiate, "stream or whole, split or joined, from either stored form",
         recovery=ask_backend),
    Place.LOOKUP,
    Step("ExactCache", RouteSteps.exact_cache, "memory, then store: the cheapest answer first", _exact, recovery=skip),
    Step("SingleFlight", RouteSteps.single_flight, "identical misses make one call", _cached,
         recovery=call_alone),
    Step("SemanticCache", RouteSteps.semantic_cache, "embed, search, verify: paraphrased questions", _semantic,
         recovery=skip_lookup),
    Step("ClusterLease", RouteSteps.cluster_lease, "one call over all gateways on a store", _leased, recovery=skip),
    Step("StoreResponse", RouteSteps.store_response, "admission, put, index: before the flight lands", _cached,
         recovery=skip),
    Place.ANSWERS,
    Step("RateLimit", RouteSteps.rate_limit, "limits on calls to backends", _limited),
    Step("ResourceAffinity", RouteSteps.resource_affinity, "a resource is served by the backend that made it", _several,
         recovery=skip),
    Step("Dispatch", RouteSteps.dispatch, "tier, budget, fallback, retry, hedge, send"),
)  # fmt: skip


class BuiltStep(NamedTuple):
    """A step of the core or of a feature, with the function that wraps it around the next step."""

    name: str
    reason: str
    recovery: Recovery | None
    build: Callable[[Handler], Handler]


def shared_pipeline(steps: SharedSteps, failures: StepFailures, *, for_jobs: bool = False) -> Handler:
    """Return the steps from a request's first byte to its route. The route's own steps follow."""
    taken = (step for step in SHARED if step.for_jobs or not for_jobs)
    return compose(
        [BuiltStep(step.name, step.reason, step.recovery, partial(step.build, steps)) for step in taken], failures
    )


def route_table(
    policy: Policy,
    deployment: Deployment,
    steps_of: Callable[[Route], RouteSteps],
    features: Features,
    failures: StepFailures,
) -> RouteTable:
    """Return a policy with the pipeline of each of its routes. Open the features that it uses."""
    pipelines = {
        route.name: compose(_route_steps(route, deployment, steps_of(route), features), failures, len(SHARED))
        for route in policy.routes
    }
    readers = {route.name: read for route in policy.routes if (read := features.reader(route)) is not None}
    return RouteTable(policy, pipelines, readers)


def _route_steps(route: Route, deployment: Deployment, core: RouteSteps, features: Features) -> list[BuiltStep]:
    """Return the steps of a route, each with what it is built from."""
    runtimes, steps = dict(features.of(route)), list[BuiltStep]()
    for step, feature in _in_order(runtimes, lambda step: step.applies(route, deployment)):
        if isinstance(step, Step):
            build: Callable[[Handler], Handler] = partial(step.build, core)
        else:
            assert feature is not None  # that of the step
            build = partial(step.build, runtimes[feature], route)
        steps.append(BuiltStep(step.name, step.reason, step.recovery, build))
    return steps


def steps_of(route: Route, deployment: Deployment) -> list[tuple[str, str]]:
    """Return the name and reason of each step that requests of this route take."""
    shared = [(step.name, step.reason) for step in SHARED]
    return shared + _named(features_of(route), lambda step: step.applies(route, deployment))


def steps_of_any_route() -> list[tuple[str, str]]:
    """Return the name and reason of each step that a route may have, with those of all features."""
    return _named(all_features(), lambda _: True)


def _named(features: Iterable[Feature], is_taken: Callable[[Step[RouteSteps]], bool]) -> list[tuple[str, str]]:
    """Return the name and reason of each step that is taken."""
    return [(step.name, step.reason) for step, _ in _in_order(features, is_taken)]


def _in_order(
    features: Iterable[Feature], is_taken: Callable[[Step[RouteSteps]], bool]
) -> Iterator[tuple[Step[RouteSteps] | FeatureStep, Feature | None]]:
    """Yield the steps of the core that are taken, and those of the features in their places, each with its feature."""
    used = list(features)
    for step in PER_ROUTE:
        if isinstance(step, Place):
            yield from ((each, feature) for feature in used for each in feature.steps if each.place is step)
        elif is_taken(step):
            yield step, None


def compose(steps: Sequence[BuiltStep], failures: StepFailures, depth: int = 0) -> Handler:
    """Build the steps, the innermost first. `depth` is the number of steps around them.

    Each optional step has a guard. So has each step right inside one: its guard tells the outer one that the request
    was passed on.
    """
    handler: Handler = _no_next_step
    outer: Sequence[BuiltStep | None] = (None, *steps)
    for number, step in reversed([*enumerate(steps)]):
        built, around, recovery = step.build(handler), outer[number], step.recovery
        reports = around is not None and around.recovery is not None
        if recovery is not None or reports:
            containment = Containment(step.name, failures, optional=recovery is not None)
            handler = Guard(built, handler, depth + number, containment, recovery or skip, reports=reports).__call__
        else:
            handler = built
    return handler


def _no_next_step(_: RequestContext) -> Response:
    raise AssertionError("no step follows the last one")
