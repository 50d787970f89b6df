"""The groups of fields of a request. Each group has one writer, or the few steps that its docstring names.

A request replaces a group as a whole, so requests that agree in one share the object.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.calls import Inspection
from gateway.credentials import NONE_SHOWN, Credentials
from gateway.latency_forecast import LatencyForecast
from gateway.messages import Affinity
from gateway.ports import Claim, Judgement
from gateway.principal import Principal
from gateway.scores import ScoredPrompt, TierDecision, TrafficFacts
from gateway.tracing import UpstreamCall


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request. `Authenticate` sets it. Requests with the same head share it."""

    tenant: str = ""
    """The party whose stored answers it may see."""
    account: str = ""
    """The party that limits and shares of a backend count for: see `gateway.credentials.Credentials`."""
    credentials: Credentials = NONE_SHOWN
    permit: Principal | None = None
    """The rights of its API key, if the gateway requires one."""
    read_only: bool = False
    """Its requests may have hits, and change neither the cache nor what routes learn."""


UNKNOWN_CLIENT = Client()  # of a request that no step has authenticated


class Exposure(NamedTuple):
    """The facts about an answer that its headers show. `ParseAndRoute` sets it by the route."""

    headers: bool
    """How the request was answered."""
    timings: bool
    """How long its steps took. On a route whose answers anybody may share, this would reveal earlier questions."""


EXPOSED, WITHOUT_TIMINGS, HIDDEN = Exposure(True, True), Exposure(True, False), Exposure(False, False)


class Deadlines(NamedTuple):
    """The latency budget of a request, as times on the monotonic clock. None is no limit. `ParseAndRoute` sets it from
    the request's headers and its route."""

    whole: float | None = None
    """When the whole answer is due."""
    first_token: float | None = None
    """When the first token is due."""
    tpot_s: float | None = None
    """The maximum of seconds per output token."""


NO_DEADLINES = Deadlines()  # of a request without a latency budget


class Estimates(NamedTuple):
    """The estimates that decide the choice of a backend. `BackendChoice` sets them."""

    scored_prompt: ScoredPrompt | None = None
    """The prompt that routes learn from."""
    complexity: float | None = None
    """In [0, 1], by the score in force on the route."""
    tier_decision: TierDecision | None = None
    """The tier that the light/large rule prefers."""
    outlook: LatencyForecast | None = None
    """The predicted latency of the backends, for a request with a latency budget."""


NO_ESTIMATES = Estimates()  # of a request whose route has no choice, or has not chosen yet


class Constraints(NamedTuple):
    """Limits the choice of a backend and of one of its upstreams."""

    light_only: bool = False
    """A limit of the policy leaves it the lightest model only. `RateLimit` sets it."""
    affinity: Affinity | None = None
    """The backend that made the resource that the request names: no other has it. `ResourceAffinity` sets it."""
    pinned_upstream: str | None = None
    """The address to call while it is in service. The session sets it."""
    preferred_upstream: str | None = None
    """The address to prefer while it is not overloaded. The session sets it."""
    stale_available: bool = False
    """A stale entry may be served if no backend answers. `ExactCache` sets it."""


NO_CONSTRAINTS = Constraints()


class UpstreamCalls:
    """The calls to backends that a request has made. `UpstreamPool` records them. The request of a tier with parameters
    shares them.

    Each request that calls a backend has one. It has no `__init__`, since its creation then takes half the time.
    """

    since: float = 0.0
    """When the first call began; 0 before it."""
    due: float = math.inf
    """When the calls together must be over: see `timeouts.total`."""
    address: str | None = None
    """The address called last, if the backend has several."""
    last: UpstreamCall | None = None
    """The last call, if the request is traced."""

    def of_child(self) -> UpstreamCalls:
        """Return the calls of a request for side work, whose total time begins with that of this one."""
        calls = UpstreamCalls()
        calls.since, calls.due, calls.address = self.since, self.due, self.address
        return calls


class _NoCalls(UpstreamCalls):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("this object is shared by all requests that have called no backend")


NO_CALLS: UpstreamCalls = _NoCalls()


class InspectedAnswer(NamedTuple):
    """A fresh answer, before the policy decides whether to store it."""

    inspection: Inspection
    dollars: float
    size: int  # bytes
    seconds: float  # from before the backend call to the end of the answer


@dataclass(slots=True)
class TrafficNotes:
    """The notes on a request for the traffic log. There are none on a request that the log leaves out."""

    facts: TrafficFacts
    """As they are before any decision. `ParseAndRoute` notes them."""
    considered: Sequence[Judgement] = ()
    """All neighbours with their scores. `SemanticLookup` notes them."""
    inspected: InspectedAnswer | None = None
    """The fresh answer. `StoreResponse` notes it, or else `RateLimit`."""


@dataclass(slots=True)
class Lease:
    """The lease on the backend call, for a request on a store that other gateways use. The steps of the feature
    `replicas` set it, and `StoreResponse` stores under it."""

    claim: Claim | None = None
    """The store's reply about the lease, until a step uses it."""
    token: int = 0
    """The fencing token; 0 before the lease is granted."""
    writing: asyncio.Task[bool] | None = None
    """The write of the answer, if the client does not wait for it."""
