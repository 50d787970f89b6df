"""The pipeline: every request takes these steps, outermost first. A step answers, hands the request on to the next one,
or waits; what a route's policy turns off is absent. `nearhit explain REQUEST.json --steps` prints the pipeline of a
route as it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.config import Config
from gateway.config.policy.model import Policy, Route
from gateway.context import Handler, RequestContext
from gateway.messages import Response
from gateway.steps.assembly import RouteSteps, SharedSteps
from gateway.steps.parse_and_route import RouteTable

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What of the configuration, beside a route, decides which steps there are."""

    api_keys: bool  # clients show API keys, which may have limits of their own
    shared_store: bool  # other gateways are on the store

    @classmethod
    def of(cls, config: Config) -> Deployment:
        return cls(config.auth.mode == "keys", config.store.url != "embedded" or config.server.workers > 1)


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
    return deployment.api_keys or any(rule.count_hits for rule in route.limits)


def _limited(route: Route, deployment: Deployment) -> bool:
    return deployment.api_keys or bool(route.limits)


def _leased(route: Route, deployment: Deployment) -> bool:
    return route.caches and deployment.shared_store


@dataclass(frozen=True, slots=True)
class Step(Generic[B]):
    """`build` makes it around the next one; `applies`: whether a route has it; `for_jobs`: whether a
    job takes it when it runs."""

    name: str
    build: Callable[[B, Handler], Handler]
    reason: str
    applies: Applies = _always
    for_jobs: bool = False


SHARED: Sequence[Step[SharedSteps]] = (
    Step("ExactFastPath", SharedSteps.exact_fast_path, "bytes that were just answered need not be read again"),
    Step("Observe", SharedSteps.observe, "metrics, access log, span: sees every outcome exactly once", for_jobs=True),
    Step("ErrorBoundary", SharedSteps.error_boundary, "errors in the client's protocol; sheds load", for_jobs=True),
    Step("Authenticate", SharedSteps.authenticate, "before the body is read: strangers cost nothing", for_jobs=True),
    Step("ControlEndpoints", SharedSteps.control_endpoints, "feedback, jobs, batches: no policy is asked"),
    Step("ParseAndRoute", SharedSteps.parse_and_route, "protocol -> call, policy -> route, cache keys", for_jobs=True),
)
PER_ROUTE: Sequence[Step[RouteSteps]] = (
    Step("CountRequests", RouteSteps.count_requests, "limits that count hits, too", _counts_hits),
    Step("Negotiate", RouteSteps.negotiate, "stream or whole, split or joined, whichever was stored"),
    Step("ExactCache", RouteSteps.exact_cache, "memory, then store: the cheapest answer first", _exact),
    Step("SingleFlight", RouteSteps.single_flight, "identical misses make one call", _cached),
    Step("SemanticCache", RouteSteps.semantic_cache, "embed, search, verify: the same in other words", _semantic),
    Step("ClusterLease", RouteSteps.cluster_lease, "one call over all gateways on a store", _leased),
    Step("StoreResponse", RouteSteps.store_response, "admission, put, index: before the flight lands", _cached),
    Step("RateLimit", RouteSteps.rate_limit, "what a call to a backend takes of its limits", _limited),
    Step("Dispatch", RouteSteps.dispatch, "tier, budget, fallback, retry, hedge, send"),
)  # fmt: skip


def shared_pipeline(steps: SharedSteps, *, for_jobs: bool = False) -> Handler:
    """From a request's first byte to its route, whose own steps follow."""
    return _compose([step for step in SHARED if step.for_jobs or not for_jobs], steps)


def route_table(policy: Policy, deployment: Deployment, steps_of: Callable[[Route], RouteSteps]) -> RouteTable:
    """A policy with the steps of each of its routes."""
    pipelines = {
        route.name: _compose([step for step in PER_ROUTE if step.applies(route, deployment)], steps_of(route))
        for route in policy.routes
    }
    return RouteTable(policy, pipelines)


def steps_of(route: Route, deployment: Deployment) -> list[tuple[str, str]]:
    """Name and reason of each step that a request of this route takes."""
    taken: list[Step[Any]] = [*SHARED]
    taken += (step for step in PER_ROUTE if step.applies(route, deployment))
    return [(step.name, step.reason) for step in taken]


def _compose(steps: Sequence[Step[B]], builder: B) -> Handler:
    handler: Handler = _no_next_step
    for step in reversed(steps):
        handler = step.build(builder, handler)
    return handler


def _no_next_step(_: RequestContext) -> Response:
    raise AssertionError("the last step has none behind it")
