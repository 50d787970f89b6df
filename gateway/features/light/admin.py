"""The admin operations on rollouts of light models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.middleware import ACTOR
from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.responses import json_errors, json_response, parse_object, parse_section, read_body
from gateway.config.fields import Text
from gateway.config.validation import Section, one_of
from gateway.errors import BadRequest
from gateway.features.light.judge import PERCENTILE, Evidence, percentile
from gateway.features.light.runtime import Rollouts, RolloutView
from gateway.features.light.state import MAX_REPORT

Action = Literal["start", "promote", "rollback", "refuse"]
VERSION = r"[1-9][0-9]{0,9}"


class LightQuery(TypedDict, total=False):
    route: str
    """Only this route."""


class RolloutEventReport(TypedDict):
    at: float
    """Seconds since the epoch."""
    change: Literal["started", "advanced", "promoted", "rolled-back", "withdrawn", "refused"]
    version: str
    why: str
    by: str


class EvidenceReport(TypedDict):
    audits: int
    """Questions that the large model answered, too."""
    right: int
    """Audits in which the version that is judged answered as the large model did."""
    right_before: int
    """The same of the version that it is compared with."""
    won: int
    """Audits in which it was right and the other version was not."""
    lost: int
    slower: int
    """Audits in which it took longer than the policy allows, by the time of the other version."""
    faster: int
    calls: int
    errors: int
    calls_before: int
    errors_before: int
    p95_ms: float | None
    p95_ms_before: float | None


class RolloutReport(TypedDict):
    route: str
    model: str
    stable: str | None
    """The version that answers. Null: the server chooses, or the large model answers."""
    candidate: str | None
    previous: str | None
    """The version before, which a rollback puts in force."""
    share: float | None
    """The share of the light model's calls that the candidate gets."""
    managed: bool
    """Whether a version was rolled out yet. Before that the server chooses."""
    judged: str | None
    """The version that the evidence is about."""
    compared_with: str | None
    verdict: str
    """The state of the evidence, in words."""
    evidence: EvidenceReport
    report: dict[str, Any]
    """Figures of the newest training."""
    events: list[RolloutEventReport]
    """The changes, the newest first."""


class LightReport(TypedDict):
    rollouts: list[RolloutReport]


class AnsweredQuestion(TypedDict):
    at: float
    ends: float
    text: str
    label: str


class RowsReport(TypedDict):
    rows: list[AnsweredQuestion]
    """The oldest first."""


class LightBody(Section):
    """A change of a rollout."""

    route: Text
    action: Annotated[Action, one_of("start", "promote", "rollback", "refuse")]
    """`start`: roll a version out. `promote`: give it all calls now. `rollback`: take them from it. `refuse`: record
    that a training made nothing better."""
    version: Annotated[str, Field(pattern=f"^{VERSION}$")] | None = None
    """For `start`: the version in the model repository."""
    why: Annotated[str, Field(max_length=500)] = ""
    report: dict[str, Any] = Field(default_factory=dict)
    """For `start` and `refuse`: figures of the training, 4 KiB at most."""


class LightResult(TypedDict):
    rollout: NotRequired[RolloutReport]


class LightAdmin:
    """`LightAdmin` serves `/admin/light`."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/light", json_errors(self._get)),
            web.post("/admin/light", json_errors(self._post)),
            web.get("/admin/light/rows", json_errors(self._rows)),
        ]

    @operation(LightReport, query=LightQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """List the rollouts of light models, with their evidence and their latest changes."""
        rollouts = self._rollouts()
        if rollouts is None:
            if "route" in request.query:
                raise BadRequest(NO_ROLLOUT)
            return json_response({"rollouts": []})
        route = request.query.get("route")
        views = await rollouts.views() if route is None else [await rollouts.view(route)]
        return json_response({"rollouts": list(map(report_of, views))})

    @operation(LightResult, body=LightBody)
    async def _post(self, request: web.Request) -> web.StreamResponse:
        """Begin the rollout of a version, promote it, or roll it back. All gateways on the store follow in seconds."""
        body = parse_section(LightBody, parse_object(await read_body(request), "a change of a rollout"))
        add_audit_fields(request, route=body.route, action=body.action, version=body.version)
        rollouts = self._require_rollouts()
        actor = request.get(ACTOR)
        await _apply(rollouts, body, "an operator" if actor is None else actor.name)
        return json_response({"rollout": report_of(await rollouts.view(body.route))})

    @operation(RowsReport, query=LightQuery)
    async def _rows(self, request: web.Request) -> web.StreamResponse:
        """Return the questions of a route with the large model's answers, for a training."""
        rows = await self._require_rollouts().rows(request.query.get("route", ""))
        return json_response(
            {"rows": [{"at": row.at, "ends": row.ends, "text": row.text, "label": row.label} for row in rows]}
        )

    def _require_rollouts(self) -> Rollouts:
        rollouts = self._rollouts()
        if rollouts is None:
            raise BadRequest(NO_ROLLOUT)
        return rollouts

    def _rollouts(self) -> Rollouts | None:
        """Return the rollouts of this gateway, or None if no route has one."""
        features = self._core.features
        runtimes = (runtime for route in self._core.policy().routes for _, runtime in features.of(route))
        return next((runtime for runtime in runtimes if isinstance(runtime, Rollouts)), None)


NO_ROLLOUT = "no route of the policy has a rollout: expected rollout: on in the section route"


async def _apply(rollouts: Rollouts, body: LightBody, by: str) -> None:
    if len(orjson.dumps(body.report)) > MAX_REPORT:
        raise BadRequest(f"report: expected at most {MAX_REPORT} bytes")
    if (body.version is None) != (body.action != "start"):
        raise BadRequest("version: expected a number with start, and none with another action")
    if body.action == "start":
        await rollouts.start(body.route, body.version or "", body.report, by)
    elif body.action == "promote":
        await rollouts.promote(body.route, by)
    elif body.action == "rollback":
        await rollouts.roll_back(body.route, body.why, by)
    else:
        await rollouts.refuse(body.route, body.why or "the new version is worse", body.report, by)


def report_of(view: RolloutView) -> dict[str, Any]:
    """Return a `RolloutReport`."""
    rollout = view.rollout
    return {
        "route": view.route,
        "model": view.model,
        "stable": rollout.stable,
        "candidate": rollout.candidate,
        "previous": rollout.previous,
        "share": view.share,
        "managed": rollout.has_begun,
        "judged": rollout.subject,
        "compared_with": rollout.reference,
        "verdict": view.verdict.why,
        "evidence": _evidence(view.evidence),
        "report": rollout.report,
        "events": [asdict(event) for event in reversed(rollout.events)],
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    counts = {name: value for name, value in asdict(evidence).items() if isinstance(value, int) and name != "waited"}
    return counts | {"p95_ms": _p95_ms(evidence.times), "p95_ms_before": _p95_ms(evidence.times_before)}


def _p95_ms(times: Mapping[int, int]) -> float | None:
    seconds = percentile(times, PERCENTILE)
    return None if seconds is None else round(1e3 * seconds, 1)
