"""The port of the meter of calls, which counts them for limits, prices and the traffic log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from gateway.adapters.redis.store import RedisStore
from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext
from gateway.limits import Per
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.prices import Tariff
from gateway.steps.route_ports import OnSpent

MODULE = "gateway.features.limits.step"


@dataclass(frozen=True, slots=True)
class MeterCore:
    """The parts of the gateway that the meter builds on. `stack` closes it, once no call is in flight any more."""

    store: RedisStore
    timeout_s: float
    clock: Clock
    telemetry: Telemetry
    stack: AsyncExitStack


class Meter(Protocol):
    """The counts of calls, which all routes share."""

    def count_requests(self, route: Route, inner: Handler) -> Handler:
        """Return the step of a route that enforces limits which also count hits."""

    def rate_limit(
        self,
        route: Route,
        prices: Mapping[str, Tariff],
        passable: Collection[str],
        inner: Handler,
        on_spent: OnSpent | None,
    ) -> Handler:
        """Return the step of a route that meters calls and enforces limits on them. `prices` are those of its backends.
        `passable` are those of its backends that take requests which no dialect reads. `on_spent` is told the cost of
        each call."""

    def report(self, top: int) -> Mapping[str, Any]:
        """Return the state of the limits for the admin port: at most `top` limits, the most refusals first."""


def meter_opener(core: MeterCore) -> Callable[[], Meter]:
    """Return a function that opens the meter when the first route needs it."""

    @cache
    def opened() -> Meter:
        meter: Meter = import_module(MODULE).open_meter(core)
        return meter

    return opened


def limit_subjects(request: RequestContext) -> Mapping[Per, str]:
    """Return the subject of a request for each `per` of a limit."""
    permit = request.client.permit
    # a key keeps its id over a rotation
    key = permit.id if permit is not None and permit.id else request.client.credentials.key
    return subjects(request.client.account, None if request.call is None else request.call.user, key)


def subjects(tenant: str, user: str | None, key: str | None) -> Mapping[Per, str]:
    """Return the subject for each `per` of a limit. Keys and users are hashed, as both may be secret."""
    return {
        "tenant": tenant,
        "key": tenant if key is None else _hashed("key", key),
        "user": _hashed("user", f"{tenant}\n{user or ''}"),
        "route": "all",
    }


def limit_asker(request: RequestContext) -> str:
    """Return the identity for which a limit was reached: another one may have more left."""
    return "\n".join(limit_subjects(request).values())


def _hashed(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}/{text}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
