"""Keep the tier controllers and the scores of all routes, and their labels. They survive a reload of the policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from gateway.bounded_cache import BoundedCache
from gateway.config.policy.model import Policy, Target
from gateway.context import RequestContext
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.scores import ScoredPrompt, TierDecision, TierLabel

if TYPE_CHECKING:  # imported with the first route that compares questions, or has tiers
    from gateway.cache.threshold.route_control import LearningEvent
    from gateway.routing.route_score import RouteScore
    from gateway.routing.tier_controller import TierController

LOG = logging.getLogger("nearhit.quality")

CONTROLLER, SCORE = "gateway.routing.tier_controller", "gateway.routing.route_score"

MAX_ANSWERED = 5_000  # answers that feedback can still refer to: 7 MB
REFIT_EVERY_S = 60.0  # seconds between two looks for routes with enough new labels
# Weight of feedback on the light model: half of a comparison. Users who complain are no sample, and the large model
# might give the same wrong answer.
LIGHT_WEIGHT = 0.5
# Weights of feedback on the large model. Where it was wrong, the light one would hardly have been worse. Where it was
# right, nothing follows for the light one.
LARGE_WRONG_WEIGHT, LARGE_RIGHT_WEIGHT = 0.25, 0.0


class RouteScores:
    """The scores by route. `basis` names the shipped score and its inputs."""

    def __init__(self, basis: str) -> None:
        self._basis = basis
        self._routes: dict[str, RouteScore] = {}

    def rebase(self, basis: str) -> None:
        """Begin with another score."""
        self._basis = basis
        self._routes.clear()

    def of(self, route: str) -> RouteScore:
        """Return the score of a route."""
        score = self._routes.get(route)
        if score is None:
            score = self._routes[route] = import_module(SCORE).RouteScore(self._basis)
        return score

    def all(self) -> Iterator[tuple[str, RouteScore]]:
        """Yield every route that was used so far."""
        return ((route, self.of(route)) for route in tuple(self._routes))


@dataclass(frozen=True, slots=True)
class TierAnswer:
    """A miss that either model could have answered."""

    route: str
    prompt: ScoredPrompt
    light: bool
    has_feedback: bool = False  # a client gave feedback on it, which counts once


class TierLearning:
    """The tier controllers and scores by route. They are imported by `apply`, with the first policy that has tiers.

    `basis` names the shipped score, and is empty until a route needs it. `publish` gets a route's events for other
    gateways.
    """

    def __init__(
        self,
        basis: str,
        clock: Clock,
        telemetry: Telemetry,
        publish: Callable[[str, str, LearningEvent], None] = lambda *_: None,
    ) -> None:
        self.basis = basis
        self._publish = publish
        self._clock = clock
        self._telemetry = telemetry
        self._routes: dict[str, TierController] = {}
        self.scores = RouteScores(basis)
        self._answers: BoundedCache[tuple[str, str], TierAnswer] = BoundedCache(MAX_ANSWERED)

    def rebase(self, basis: str) -> None:
        """Begin with a score. Nothing was learnt without one."""
        if basis != self.basis:
            self.basis = basis
            self._routes.clear()
            self.scores.rebase(basis)

    def of(self, route: str) -> TierController:
        control = self._routes.get(route)
        if control is None:
            control = self._routes[route] = import_module(CONTROLLER).TierController(self.basis)
        return control

    def all(self) -> Iterator[tuple[str, TierController]]:
        """Yield every route that was used so far."""
        return ((route, self.of(route)) for route in tuple(self._routes))

    def apply(self, policy: Policy) -> None:
        """Apply a new policy. Routes with tiers get a controller at once, before any request."""
        for route in policy.routes:
            if len(route.target.tiers) > 1:
                self.of(route.name).learning = route.target.learn
                self.scores.of(route.name)

    def reset(self, route: str) -> None:
        """Forget all that a route has learned. The spent share stays."""
        self.of(route).reset()
        self.scores.of(route).reset()

    # One request

    def score(self, route: str, prompt: ScoredPrompt) -> float:
        """Return the complexity in [0, 1], by the route's own fit if it has one."""
        return self.scores.of(route).score(prompt)

    def decide(self, route: str, target: Target, score: float) -> TierDecision:
        return self.of(route).decide(target, score, self._clock.monotonic())

    def record_dispatch(self, request: RequestContext, tier_decision: TierDecision, *, large: bool) -> None:
        """Count a request that is about to go to a model. The gateway's own requests do not count."""
        score = request.estimates.complexity
        if score is not None and not request.work.internal:
            self.of(request.route).count(tier_decision, score, self._clock.monotonic(), large=large)

    def record_answer(self, request: RequestContext, *, large: bool, instead: bool) -> None:
        """Record the model that answered. With `instead` the other kind was called first."""
        score, prompt = request.estimates.complexity, request.estimates.scored_prompt
        if score is None or prompt is None or request.work.internal:
            return
        if instead:
            self.of(request.route).recount(score, self._clock.monotonic(), large=large)
        self._answers.put((request.client.tenant, request.id), TierAnswer(request.route, prompt, light=not large))

    # Learning

    def observe(
        self, route: str, prompt: ScoredPrompt, label: TierLabel, *, source: str, weight: float = 1.0, fits: bool = True
    ) -> None:
        """Record a label. `source` is feedback, audit or cascade. `weight` is that of `TierController.observe`. The
        route's own fit reads labels with `fits` that somebody judged."""
        self._telemetry.routing_labels.add(route, source, str(label))
        control = self.of(route)
        control.observe(self.score(route, prompt), label.worse, source, weight)
        fits &= weight > 0 and label.gain is not None
        if control.learning and fits and label.gain is not None:
            self.scores.of(route).observe(prompt, label.gain, weight)
        row = prompt.row.astype("<f2").tobytes() if fits else b""
        self._publish(self.basis, route, (prompt.score, str(label), weight, row))

    def apply_event(self, basis: str, route: str, label: LearningEvent) -> None:
        """Apply a label of another gateway. Raise `ValueError` or `TypeError` where it cannot be read."""
        if basis == self.basis and route in self._routes:
            score, name, weight, row = label
            prompt, said = import_module(SCORE).prompt_from(float(score), row), TierLabel(name)
            control = self._routes[route]
            control.apply_event(self.score(route, prompt), said.worse, float(weight))
            if control.learning and weight > 0 and said.gain is not None:
                self.scores.of(route).observe(prompt, said.gain, float(weight))

    def feedback(self, tenant: str, request_id: str, verdict: str) -> TierAnswer | None:
        """Record a client's verdict on an answer, `right` or `wrong`. Only its first verdict counts.

        Return None if no such answer of this tenant is remembered.
        """
        answer = self._answers.peek((tenant, request_id))
        if answer is None or answer.has_feedback:
            return answer
        self._answers.put((tenant, request_id), replace(answer, has_feedback=True))
        wrong = verdict == "wrong"
        weight = LIGHT_WEIGHT if answer.light else LARGE_WRONG_WEIGHT if wrong else LARGE_RIGHT_WEIGHT
        label = TierLabel.WORSE if wrong is answer.light else TierLabel.EQUAL
        self.observe(answer.route, answer.prompt, label, source="feedback", weight=weight)
        return answer

    # Fitting

    async def run(self) -> None:
        """Fit the scores of routes with enough new labels, one after the other, in a thread."""
        while True:
            await asyncio.sleep(REFIT_EVERY_S)
            await self.refit()

    async def refit(self) -> None:
        """Fit each route that is due, and put the fit in force if it passes the gate."""
        for route, score in self.scores.all():
            if not (self.of(route).learning and score.is_due):
                continue
            labels, resets = score.labels(), score.resets
            attempt = await asyncio.to_thread(import_module(SCORE).attempt_fit, labels)
            if score.resets != resets:  # the route was reset meanwhile
                continue
            changes = score.apply(attempt, len(labels))
            fields = {
                "route": route,
                "labels": len(labels),
                "gain": round(attempt.gain, 2),
                "scored_by": str(score.source),
            }
            LOG.info("the fit of a route's complexity was tried", extra={"fields": fields})
            if changes:
                self._rescore(route)

    def _rescore(self, route: str) -> None:
        """Replace what the controller knows of scores by the scores of the fit that is now in force."""
        answers = [answer for answer in self._answers.values() if answer.route == route]
        self.of(route).rescore([(self.score(route, answer.prompt), not answer.light) for answer in answers])
