"""The port of a feature that tries the lightest backend of a route first and checks its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.cache.schema_checks import SchemaChecks
from gateway.calls import Call
from gateway.context import RequestContext
from gateway.ports import Embedder
from gateway.routing.fallback import BackendAnswer, Fallback
from gateway.routing.selection import Decision
from gateway.upstream.backend import UpstreamPool

CallBackends = Callable[[RequestContext, Decision], Awaitable[BackendAnswer]]
"""Sends a request to the backends of a decision. Raises `GatewayError`."""


@dataclass(frozen=True, slots=True)
class TrialParts:
    """The parts of the core that trials use. `in_time` returns whether a backend is predicted to meet the rest of the
    request's budget. `on_check` is called with the result of a check: whether the light model's answer passed."""

    fallback: Fallback
    pools: Mapping[str, UpstreamPool]
    embedder: Embedder
    schemas: SchemaChecks
    in_time: Callable[[RequestContext, str], bool]
    on_check: Callable[[RequestContext, bool], None]


class Trials(Protocol):
    """The trials of one route."""

    def can_check(self, call: Call) -> bool:
        """Return whether an answer to such a call can be checked."""

    def caller(self, parts: TrialParts) -> CallBackends:
        """Return what calls the backends of a decision, that of its `trial` first."""
