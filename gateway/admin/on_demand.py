"""Operations of the admin port that are imported at their first request, those of features among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from aiohttp import web

from gateway.admin.policy_manager import PolicyManager
from gateway.admin.responses import Handler
from gateway.admin.stats import Stats
from gateway.cache.purge import Purge
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.config.policy.model import Policy
from gateway.extensions import Extensions
from gateway.feature import Features
from gateway.observability.live_events import LiveEvents
from gateway.pipeline import Deployment
from gateway.ports import Clock
from gateway.steps.erasures import Erasures
from gateway.steps.key_lookup import ApiKeys
from gateway.steps.parts import Parts

OPERATIONS = Extensions(
    "nearhit.admin",
    {
        "GET /admin/jobs": "gateway.features.jobs.admin:JobsAdmin",
        "GET /admin/jobs/{job}": "gateway.features.jobs.admin:JobsAdmin",
        "POST /admin/jobs/retry": "gateway.features.jobs.admin:JobsAdmin",
        "POST /admin/jobs/drop": "gateway.features.jobs.admin:JobsAdmin",
        "GET /admin/keys": "gateway.features.keys.admin:KeysAdmin",
        "POST /admin/keys": "gateway.features.keys.admin:KeysAdmin",
        "GET /admin/keys/{key}": "gateway.features.keys.admin:KeysAdmin",
        "POST /admin/keys/{key}": "gateway.features.keys.admin:KeysAdmin",
        "POST /admin/keys/{key}/rotate": "gateway.features.keys.admin:KeysAdmin",
        "POST /admin/keys/{key}/revoke": "gateway.features.keys.admin:KeysAdmin",
        "GET /admin/audit": "gateway.features.audit.admin:AuditAdmin",
        "GET /admin/spend": "gateway.features.spend.admin:SpendAdmin",
        "GET /admin/budgets": "gateway.features.spend.report_admin:ReportAdmin",
        "GET /admin/report": "gateway.features.spend.report_admin:ReportAdmin",
        "GET /admin/report/alternatives": "gateway.features.simulation.admin:SimulationAdmin",
        "GET /admin/light": "gateway.features.light.admin:LightAdmin",
        "POST /admin/light": "gateway.features.light.admin:LightAdmin",
        "GET /admin/light/rows": "gateway.features.light.admin:LightAdmin",
        "GET /admin/limits": "gateway.features.limits.admin:LimitsAdmin",
        "GET /admin/policy": "gateway.admin.policy:PolicyAdmin",
        "POST /admin/policy": "gateway.admin.policy:PolicyAdmin",
        "POST /admin/policy/validate": "gateway.admin.policy:PolicyAdmin",
        "GET /admin/policy/history": "gateway.admin.policy:PolicyAdmin",
        "GET /admin/policy/history/{version}": "gateway.admin.policy:PolicyAdmin",
        "POST /admin/policy/rollback": "gateway.admin.policy:PolicyAdmin",
        "GET /admin/decisions": "gateway.admin.event_stream:LiveAdmin",
        "GET /dashboard": "gateway.admin.static_files:StaticFiles",
        "GET /dashboard/{name:.+}": "gateway.admin.static_files:StaticFiles",
        "POST /admin/explain": "gateway.admin.explanation:ExplainAdmin",
        "POST /admin/cache/explain": "gateway.admin.explain_pair:ExplainPairAdmin",
        "POST /admin/cache/erase": "gateway.features.erasure.admin:EraseAdmin",
        "POST /admin/cache/purge": "gateway.admin.cache:CacheAdmin",
        "GET /admin/cache/entries": "gateway.admin.cache:CacheAdmin",
        "GET /admin/cache/entries/{fingerprint}": "gateway.admin.entries:EntriesAdmin",
        "GET /admin/cache/top": "gateway.admin.entries:EntriesAdmin",
        "GET /admin/cache/export": "gateway.features.export.admin:ExportAdmin",
        "POST /admin/cache/import": "gateway.features.export.admin:ExportAdmin",
        "POST /admin/cache/rekey": "gateway.features.encryption.admin:RekeyAdmin",
        "POST /admin/simulate": "gateway.features.simulation.admin:SimulationAdmin",
    },
)
"""By method and path: a class that takes an `AdminCore`, and whose objects are `AdminHandler`s."""


@dataclass(frozen=True, slots=True)
class AdminCore:
    """The parts of the gateway that these operations build on."""

    config: Config
    clock: Clock
    stores: Stores
    removal: Purge
    erasures: Erasures | None  # None: there is no secret, so nothing names those who caused it
    deployment: Deployment
    features: Features
    keys: ApiKeys
    policies: PolicyManager
    policy: Callable[[], Policy]  # returns the one in force
    parts: Callable[[], Parts]  # returns those in force: a reference would keep a former index in memory
    stats: Stats
    decisions: LiveEvents


class AdminHandler(Protocol):
    def routes(self) -> list[web.RouteDef]:
        """Return the operations. Their types are declared by `gateway.admin.operations.operation`."""


def _route(method: str, path: str, handler: Handler) -> web.RouteDef:
    """Return a route. That of a GET answers HEAD, too."""
    return web.get(path, handler) if method == "GET" else web.route(method, path, handler)


@dataclass(slots=True)
class OnDemand:
    """Operations that do not exist before the first request for them. One object may have several."""

    core: AdminCore
    handlers: dict[str, Handler] = field(default_factory=dict)  # by method and path

    def routes(self, *, jobs: bool = True) -> list[web.RouteDef]:
        """Return the routes of these operations. `jobs` tells whether jobs are on: otherwise theirs do not exist."""
        return [
            _route(method, path, partial(self._answer, f"{method} {path}"))
            for method, path in (name.split() for name in OPERATIONS.own)
            if jobs or not path.startswith("/admin/jobs")
        ]

    async def _answer(self, name: str, request: web.Request) -> web.StreamResponse:
        if name not in self.handlers:
            kind = await asyncio.to_thread(OPERATIONS.load, name)  # the event loop goes on during the import
            if name not in self.handlers:  # another request may have built them
                handler: AdminHandler = kind(self.core)
                self.handlers |= {f"{route.method} {route.path}": route.handler for route in handler.routes()}
        return await self.handlers[name](request)
