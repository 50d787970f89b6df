"""Operations of the admin port that are imported at their first request, those of features among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from gateway.admin.policy_manager import PolicyManager
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.config.policy.model import Policy
from gateway.extensions import Extensions
from gateway.feature import Features
from gateway.pipeline import Deployment
from gateway.ports import Clock
from gateway.steps.erasures import Erasures
from gateway.steps.parts import Parts

# By method and path: a class that takes an `AdminCore`, and whose objects are `OperationOnDemand`s.
OPERATIONS = Extensions(
    "nearhit.admin",
    {
        "POST /admin/explain": "gateway.admin.explanation:ExplainRequests",
        "POST /admin/cache/explain": "gateway.admin.explain_pair:ExplainHandler",
        "POST /admin/cache/erase": "gateway.features.erasure.admin:EraseAdmin",
        "POST /admin/cache/rekey": "gateway.features.encryption.admin:RekeyAdmin",
        "POST /admin/simulate": "gateway.features.simulation.admin:SimulationAdmin",
    },
)


@dataclass(frozen=True, slots=True)
class AdminCore:
    """The parts of the gateway that these operations build on."""

    config: Config
    clock: Clock
    stores: Stores
    erasures: Erasures | None  # None: there is no secret, so nothing names those who caused it
    deployment: Deployment
    features: Features
    policies: PolicyManager
    policy: Callable[[], Policy]  # returns the one in force
    parts: Callable[[], Parts]  # returns those in force: a reference would keep a former index in memory


class OperationOnDemand(Protocol):
    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request. Its types are declared by `gateway.admin.operations.operation`."""


@dataclass(slots=True)
class _Operation:
    """An operation that does not exist before its first request."""

    name: str
    core: AdminCore
    loaded: OperationOnDemand | None = field(default=None, init=False)

    def route(self) -> web.RouteDef:
        method, path = self.name.split()
        return web.route(method, path, self.answer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.loaded is None:
            kind = await asyncio.to_thread(OPERATIONS.load, self.name)  # the event loop goes on during the import
            if self.loaded is None:  # another request may have built it
                self.loaded = kind(self.core)
        return await self.loaded.answer(request)


def routes_on_demand(core: AdminCore) -> list[web.RouteDef]:
    """Return the routes of these operations."""
    return [_Operation(name, core).route() for name in OPERATIONS.own]
