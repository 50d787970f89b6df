"""The groups of fields of a request. Each group has one writer, or the few steps that its docstring names.

A request replaces a group as a whole, so requests that agree in one share the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.credentials import NONE_SHOWN, Credentials
from gateway.latency_forecast import LatencyForecast
from gateway.principal import Principal
from gateway.scores import ScoredPrompt, TierDecision


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
