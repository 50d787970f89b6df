"""The admin operations that simulate a policy, and tell what other models would have cost and kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.policy import YAML, FileQuery, PolicyError, PolicyFaults, body_of, file_of, policy_errors
from gateway.admin.responses import json_errors, json_response
from gateway.features.simulation.alternatives import AlternativesReport
from gateway.features.simulation.runner import DEFAULT_WINDOW, WINDOW, SimulationRunner

Window = Annotated[str, Field(pattern=f"^{WINDOW.pattern}$", default=DEFAULT_WINDOW)]


class SimulateQuery(FileQuery, total=False):
    traffic: Window
    """The window of recorded traffic."""


class AlternativesQuery(TypedDict, total=False):
    traffic: Window
    """The window of recorded traffic."""


class SimulationReport(TypedDict):
    ok: Literal[True]
    traffic: dict[str, Any]
    """The requests of the window: `requests`, `from`, `to`, `seconds` and `notes`."""
    present: dict[str, Any]
    """The forecast for the policy in force."""
    new: dict[str, Any]
    """The forecast for the new policy."""
    recorded: dict[str, float | None]
    """The outcome that was recorded."""
    changed: dict[str, Any]
    """The requests with another outcome: their number and examples."""


class SimulationAdmin:
    """`SimulationAdmin` serves both operations. One of them runs at a time."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core
        self._runner = SimulationRunner(core.config, self._flush, self._embedder, core.clock.wall)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/admin/simulate", self._answer),
            web.get("/admin/report/alternatives", json_errors(self._alternatives)),
        ]

    @operation(AlternativesReport, query=AlternativesQuery)
    async def _alternatives(self, request: web.Request) -> web.StreamResponse:
        """Estimate from recorded traffic what another light model or threshold would have cost and kept.

        It needs `record` on the route. Audits and shadows tell how good the answers of a model are. The traffic is that
        of this gateway.
        """
        policy = self._core.policy()
        found = await self._runner.of(policy, policy, request.query.get("traffic"), "alternatives")
        return json_response({name: found[name] for name in ("traffic", "routes")})

    @operation(SimulationReport, query=SimulateQuery, **{**YAML, "errors": {422: PolicyFaults | PolicyError}})
    async def _answer(self, request: web.Request) -> web.Response:
        """Replay recorded traffic under a policy file and forecast hits, cost and latency. Nothing changes.

        The response is the output of `nearhit simulate --json`. One simulation runs at a time.
        """
        return await policy_errors(self._simulate)(request)

    async def _simulate(self, request: web.Request) -> web.Response:
        staged = await self._core.policies.validate(file_of(request), await body_of(request))
        return json_response(await self._runner.of(self._core.policy(), staged.policy, request.query.get("traffic")))

    async def _flush(self) -> None:
        await self._core.parts().recorder.flush()

    def _embedder(self) -> str:
        spaces = self._core.parts().spaces
        return spaces.serving.embedder.fingerprint if spaces.is_open else ""
