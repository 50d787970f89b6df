"""POST /v1/feedback: a client reports that an answer was right or wrong.

A wrong semantic hit is not served for that question again, by any gateway on this store, even after a restart. Both
verdicts move the route's threshold and its memory of nearby questions. On the answer of a light or a large model, a
verdict tells whether the light model is good enough for questions of that complexity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.cache.embedding_spaces import Spaces
from gateway.cache.feedback import Counterexamples, ServedHit, ServedHits, relation_between
from gateway.cache.links import Links
from gateway.cache.threshold.wrong_hits import Label
from gateway.context import RequestContext
from gateway.dialects.json_body import ABSENT, check_keys, invalid_field, parse_object
from gateway.errors import BadRequest, Forbidden, NotFound
from gateway.messages import FullBody, Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass, Verdict
from gateway.routing.tier_learning import TierLearning

PATH = "/v1/feedback"
# (tenant, request id, verdict) -> the answer to the client, or None if the request id is not known.
ApplyFeedback = Callable[[str, str, str], Awaitable[dict[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class FeedbackState:
    """State that lookups and feedback share."""

    served: ServedHits
    counterexamples: Counterexamples
    links: Links


class FeedbackService:
    """Applies a client's verdict on an answer that this gateway has given."""

    def __init__(self, memory: FeedbackState, spaces: Spaces, escalations: TierLearning, telemetry: Telemetry) -> None:
        self._memory = memory
        self._spaces = spaces
        self._escalations = escalations
        self._telemetry = telemetry

    async def apply_feedback(self, tenant: str, request_id: str, verdict: str) -> dict[str, Any] | None:
        """Apply a verdict and return the answer to the client, or None if no such answer of this tenant is
        remembered."""
        served = self._memory.served.get(tenant, request_id)
        if served is None:
            return self._apply_to_tier(tenant, request_id, verdict)
        self._telemetry.feedback.add(served.route, verdict)
        if not served.has_feedback:
            self._memory.served.report(tenant, request_id)
            self._learn(served, verdict)
        stored = verdict != "wrong" or await self._spaces.serving.labels.refute(relation_between(served.judged))
        return {"request_id": request_id, "verdict": verdict, "route": served.route, "stored": stored}

    def _apply_to_tier(self, tenant: str, request_id: str, verdict: str) -> dict[str, Any] | None:
        """Apply a verdict on a model's answer. The route's next snapshot saves it: it is one label among many."""
        answered = self._escalations.feedback(tenant, request_id, verdict)
        if answered is None:
            return None
        self._telemetry.feedback.add(answered.route, verdict)
        tier = "light" if answered.light else "large"
        return {"request_id": request_id, "verdict": verdict, "route": answered.route, "tier": tier}

    def _learn(self, served: ServedHit, verdict: str) -> None:
        """Teach the space that served the hit. Lookups may use another embedding model by now, with other
        thresholds."""
        space = self._spaces.of(served.embedder)
        if space is None:
            return
        label = Label(verdict)
        space.labels.report(served.route, served.judged, label, "feedback")
        if label is Label.WRONG:
            space.controls.of(served.route).record_complaint()


class FeedbackEndpoint:
    """Answers feedback requests. `forward` asks the other gateways on the store: a client may send its feedback to
    another gateway than the one that answered it."""

    def __init__(self, verdicts: FeedbackService, forward: ApplyFeedback) -> None:
        self._verdicts = verdicts
        self._forward = forward

    def claims(self, request: RequestContext) -> bool:
        return request.path == PATH and request.method == "POST"

    async def answer(self, request: RequestContext) -> Response:
        if request.client.read_only:
            raise Forbidden("this API key is read-only for the cache, so its feedback does not count")
        check_keys(body := await request.body_source.read())
        request_id, verdict = _parse(parse_object(body))
        outcome = await self._verdicts.apply_feedback(request.client.tenant, request_id, verdict)
        if outcome is None:
            outcome = await self._forward(request.client.tenant, request_id, verdict)
        if outcome is None:
            raise NotFound(
                f"no recent answer to you has the request id {request_id[:128]!r}: expected the x-request-id of a "
                "recent answer with Cache-Status 'hit; detail=semantic', or of a miss that a light or a large "
                "model has answered"
            )
        request.route = outcome["route"]
        return _json(outcome)


def _json(body: dict[str, Any]) -> Response:
    provenance = Provenance(Verdict.BYPASS, reason=Bypass.FEEDBACK)
    return Response(200, (("Content-Type", "application/json"),), FullBody(orjson.dumps(body)), provenance)


def _parse(body: dict[str, Any]) -> tuple[str, str]:
    request_id, verdict = body.get("request_id"), body.get("verdict")
    if not isinstance(request_id, str) or not request_id:
        raise invalid_field("request_id", "the x-request-id of an answer", body.get("request_id", ABSENT))
    if verdict is None:
        raise invalid_field("verdict", "'wrong' or 'right'", body.get("verdict", ABSENT))
    if verdict not in ("wrong", "right"):
        raise BadRequest("'verdict': expected 'wrong' or 'right'", param="verdict")
    return request_id, verdict
