"""Operations of features on the admin port. A feature is imported at the first request for its operation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from gateway.admin.policy_manager import PolicyManager
from gateway.config import Config
from gateway.config.policy.model import Policy
from gateway.extensions import Extensions
from gateway.ports import Clock

# By method and path: a class that takes an `AdminCore`, and whose objects are `FeatureOperation`s.
OPERATIONS = Extensions("nearhit.admin", {"POST /admin/simulate": "gateway.features.simulation.admin:SimulationAdmin"})


@dataclass(frozen=True, slots=True)
class AdminCore:
    """The parts of the gateway that operations of features build on."""

    config: Config
    clock: Clock
    policies: PolicyManager
    policy: Callable[[], Policy]  # returns the one in force
    embedder: Callable[[], str]  # returns the fingerprint of the embedding model in use
    flush_traffic: Callable[[], Awaitable[None]]  # writes the recorded traffic to disk


class FeatureOperation(Protocol):
    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request. Its types are declared by `gateway.admin.operations.operation`."""


@dataclass(slots=True)
class _LazyOperation:
    """An operation that does not exist before its first request."""

    name: str
    core: AdminCore
    operation: FeatureOperation | None = field(default=None, init=False)

    def route(self) -> web.RouteDef:
        method, path = self.name.split()
        return web.route(method, path, self.answer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.operation is None:
            kind = await asyncio.to_thread(OPERATIONS.load, self.name)  # the event loop goes on during the import
            if self.operation is None:  # another request may have built it
                self.operation = kind(self.core)
        return await self.operation.answer(request)


def feature_routes(core: AdminCore) -> list[web.RouteDef]:
    """Return the routes of the operations of features."""
    return [_LazyOperation(name, core).route() for name in OPERATIONS.own]
