"""Explain how the gateway would handle a request, for `nearhit explain` and for the admin port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.responses import json_response
from gateway.cache.screening import Screening
from gateway.cache.stored_parts import StoredCommand, not_reached
from gateway.calls import Call
from gateway.config.policy.model import Route, Target
from gateway.context import RequestContext
from gateway.credentials import NO_CHANGES, CredentialRules
from gateway.dialects.json_body import load_json
from gateway.entries import Embedding
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.feature import Unsupported, features_of
from gateway.latency_forecast import LatencyForecast
from gateway.outcomes import Choice
from gateway.pipeline import steps_of
from gateway.ports import Clock, Embedder
from gateway.routing.backend_choice import WholeQuestion
from gateway.routing.selection import Decision
from gateway.routing.tier_controller import rule_of
from gateway.scores import Scorer
from gateway.steps.assembly import backend_choice_of
from gateway.steps.parts import Parts
from gateway.steps.request_reading import described_request, find_route
from gateway.steps.semantic_assembly import route_conversations, route_screen, semantic_lookup


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every decision that the gateway makes before it sends a request to a backend."""

    route: str
    file: str  # policy file that has the route
    line: int
    operation: str
    tenant: str
    share: str
    scope: str
    fingerprint: str
    exact: str
    semantic: str
    question_tokens: int | None
    complexity: float | None
    scored_by: str  # the model that scored, in words, or "" if none did
    thresholds: tuple[float, ...]
    backend: str
    tier: str | None
    fallbacks: tuple[str, ...]
    reason: str
    late: bool  # no backend is predicted to keep the latency budget
    signal: str = ""  # the signal that made the choice: see `signal_of`
    rule: str = ""  # the policy's rule, if the thresholds follow the traffic
    to_hold_share: bool = False  # the choice differs from the threshold, to keep `large_share`
    tiers: tuple[str, ...] = ()  # lightest first; a split tier with its parts
    tried_first: str | None = None  # the backend of a cascade whose answer is checked first
    trial_skipped: bool = False  # the cascade is skipped, because there is no time for it
    cascade: str | None = None
    shadow: str | None = None
    limits: tuple[str, ...] = ()  # limits of the route; their current use is not looked up
    if_late: str | None = None  # action if no backend is predicted to be in time
    budgets: Mapping[str, Any] | None = None  # seconds left, as `RemainingBudget`, or None without a budget
    outlook: Mapping[str, Any] | None = None  # as `LatencyForecast.as_json`; only a running gateway knows latencies
    steps: Sequence[tuple[str, str]] = ()  # name and reason, outermost first, as `pipeline.steps_of`
    session: str | None = None  # the session's part in the choice, or None on a route without sessions
    features: Mapping[str, str] = field(default_factory=dict)  # the lines of the route's features, by their title
    conversation: str | None = None  # how it continues another conversation; None: it does not, or no gateway runs
    screen: str | None = None  # the screen's decision as a sentence; None without a screen or a running gateway
    personal_data: tuple[str, ...] = ()  # the kinds in the request, of those that the route looks for
    privacy: str | None = None  # the policy's action on personal data, or None if the route looks for none

    # a sentence for each part that stores data and that no decision reads
    not_reached: Sequence[str] = tuple(not_reached(StoredCommand.EXPLAIN))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def steps_as_text(self) -> str:
        width = max(len(name) for name, _ in self.steps)
        return "\n".join(f"{name:<{width}}  {reason}" for name, reason in self.steps)

    def as_text(self) -> str:
        shown = {
            "route": f"{self.route} ({self.file}:{self.line})",
            "operation": self.operation,
            "tenant": f"{self.tenant}, answers shared by {self.share}",
            "scope": self.scope or "none",
            "fingerprint": self.fingerprint or "none",
            "exact cache": self.exact,
            "semantic cache": self.semantic,
            **({} if self.conversation is None else {"conversation": self.conversation}),
            **({} if self.screen is None else {"screen": self.screen}),
            **self.features,
            "complexity": "not scored" if self.complexity is None else f"{self.complexity:.2f}, by {self.scored_by}",
            **({"tiers": "; ".join(self.tiers)} if self.tiers else {}),
            **self._trial_lines(),
            **({} if self.session is None else {"session": self.session}),
            "backend": f"{self.backend} ({self.reason}{self._threshold_text()})",
            "fallbacks": ", ".join(self.fallbacks) or "none",
            **({} if self.shadow is None else {"shadow": self.shadow}),
            **({"limits": f"{'; '.join(self.limits)} (their current use is not looked up)"} if self.limits else {}),
            **self._prediction_lines(),
        }
        width = max(map(len, shown))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())

    def _threshold_text(self) -> str:
        if not self.thresholds:
            return ""
        above = ", ".join(f"{threshold:.2f}" for threshold in self.thresholds)
        escalates = f"escalates above {above}" if self.thresholds[0] >= 0 else "escalates all"
        if not self.rule:
            return f", {escalates}"
        exception = ", but this request goes the other way to keep the share" if self.to_hold_share else ""
        return f", {escalates} {'after a start' if self.outlook is None else 'now'}, by {self.rule}{exception}"

    def _trial_lines(self) -> dict[str, str]:
        if self.tried_first is not None:
            return {"trial": f"{self.tried_first} ({self.cascade})"}
        return {"trial": "skipped, not enough time left"} if self.trial_skipped else {}

    def _prediction_lines(self) -> dict[str, str]:
        left = _remaining_text(self.budgets)
        if self.outlook is None:
            return {"budget left": f"{left} (only a running gateway predicts latencies: --admin)"} if left else {}
        shown = {
            "budget left": left or "no budget",
            "required confidence": f"{self.outlook['confidence']:.0%}",
        }
        for name, prediction in self.outlook["backends"].items():
            shown[f"predicted, {name}"] = "no recent calls" if prediction is None else _format_prediction(prediction)
        return shown | ({"in time": f"no backend, by these predictions: {self.if_late}"} if self.late else {})


LATE_ACTIONS = {
    "soonest": "call the backend that is predicted to be the least late",
    "light": "call the lightest backend",
    "stale": "serve a stale exact answer if there is one, else call the backend predicted to be the least late",
    "refuse": "refuse with 504, call no backend",
}


def _remaining_text(budgets: Mapping[str, Any] | None) -> str:
    limited = {} if budgets is None else {name: left for name, left in budgets.items() if left is not None}
    return ", ".join(f"{name.removesuffix('_s')} {left:.3g} s" for name, left in limited.items())


def _format_prediction(prediction: Mapping[str, float]) -> str:
    if prediction["tpot_s"] == 0:
        return f"at most {prediction['total_s']:.3g} s"
    return "at most {total_s:.3g} s, {ttft_s:.3g} s to the first token, {tpot_s:.3g} s for each one after it".format(
        **prediction
    )


def parse_request(
    value: object, clock: Clock, where: str, rules: CredentialRules | None = NO_CHANGES
) -> tuple[RequestContext, Call]:
    """Parse the body of a request, or `{path, headers, body, tenant}`.

    `where` is the source of the value and begins each error message. `rules` tells which headers identify a client,
    if backends check the credentials. Raise `BadRequest`.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{where}: expected an object: a request body, or {{path, headers, body}}")
    # A bare body is convenient; a wrapped one also has the path and the headers.
    wrapped = value if isinstance(value.get("body"), dict) else {"body": value}
    headers = wrapped.get("headers", {})
    if not isinstance(headers, dict):
        raise BadRequest(f"{where}: headers: expected an object of names and values")
    request, call, _ = described_request(
        "POST",
        str(wrapped.get("path", "/v1/chat/completions")),
        {str(name): str(content) for name, content in headers.items()},
        orjson.dumps(wrapped["body"]),
        tenant=None if wrapped.get("tenant") is None else str(wrapped["tenant"]),
        rules=rules,
        clock=clock,
    )
    if call is None:
        raise BadRequest(f"{where}: the path {request.path} is passed through, there is nothing to explain")
    return request, call


def build_explanation(
    request: RequestContext,
    call: Call,
    route: Route,
    decision: Decision,
    outlook: LatencyForecast | None,
    steps: Sequence[tuple[str, str]],
    scored_by: str = "the shipped score",
    screening: Screening | None = None,
) -> Explanation:
    """Build the explanation of a request that its route and `decision` have filled in.

    `outlook` is None without known latencies. `steps` are those of the route's pipeline. `scored_by` describes the
    gateway's own score. `screening` is None if no screen read the question.
    """
    bounded, embedding, lines = request.estimates.outlook, request.embedding, _feature_lines(request, route)
    return Explanation(
        route=route.name,
        file=route.file,
        line=route.line,
        operation=call.operation,
        tenant=request.client.tenant,
        share=route.share,
        scope=request.keys.scope,
        fingerprint=request.keys.fingerprint,
        exact=_exact(route, call),
        semantic=_semantic(route, call, embedding),
        question_tokens=None if embedding is None else embedding.tokens,
        complexity=request.estimates.complexity,
        scored_by=_scored_by(request, scored_by, lines.pop("classifier", None)),
        signal=signal_of(request, route, decision),
        thresholds=_thresholds(request, route),
        rule=_rule(route),
        to_hold_share=_to_hold_share(request, route),
        backend=decision.backends[0],
        tier=decision.tier,
        fallbacks=decision.backends[1:],
        reason=decision.reason,
        late=decision.late,
        tiers=_tiers(route.target),
        tried_first=decision.trial,
        trial_skipped=decision.trial_skipped,
        if_late=LATE_ACTIONS[route.slo.late],
        budgets=None if bounded is None else asdict(bounded.remaining),
        outlook=None if outlook is None else outlook.as_json(),
        steps=steps,
        screen=None if screening is None else str(screening),
        features=lines,
        **_feature_fields(request, route),
    )


def _feature_lines(request: RequestContext, route: Route) -> dict[str, str]:
    """Return what the features of a route say of a request, by the title of each line."""
    lines: dict[str, str] = {}
    for feature in features_of(route):
        shown = feature.explain(request, route)
        if not isinstance(shown, Unsupported):
            lines |= shown
    return lines


def _feature_fields(request: RequestContext, route: Route) -> dict[str, Any]:
    """Return the fields of the explanation that belong to features of the route."""
    return {name: value for each in features_of(route) for name, value in each.explain_fields(request, route).items()}


def signal_of(request: RequestContext, route: Route, decision: Decision) -> str:
    """Return the signal that made the choice, in a word.

    The result is `rule` if the route has one backend for the request. It is `text`, `embedding` or `classifier` after
    the scorer of the complexity. It is `session` if the session's last score or backend decided. It is `large_share`
    if the share decided. Otherwise it is the reason of the decision.
    """
    if decision.reason is Choice.ONLY:
        return "rule"
    if decision.reason is Choice.TOOL_RESULT:
        return str(Choice.SESSION)
    if decision.reason not in (Choice.SIMPLE, Choice.COMPLEX):
        return str(decision.reason)
    if _to_hold_share(request, route):
        return "large_share"
    return "" if request.estimates.scored_prompt is None else str(request.estimates.scored_prompt.by)


def _scored_by(request: RequestContext, own: str, classifier: str | None) -> str:
    """Return who scored the request, in words. `own` describes the gateway's own score, and `classifier` the answer of
    the route's classifier, or None if no classifier was asked."""
    prompt = request.estimates.scored_prompt
    if request.estimates.complexity is None or prompt is None:
        return ""
    if prompt.by is Scorer.SESSION:
        return "the last question of the session"
    if classifier is None:
        return own
    return classifier if prompt.by is Scorer.CLASSIFIER else f"{own}; {classifier}"


async def embed_question(call: Call, embedder: Embedder) -> tuple[Embedding | None, Embedding | None]:
    """Return the embeddings of the focus, and of the whole question if it is longer. Raise `EmbedderUnavailable`."""
    if call.focus is None or call.question is None:
        return None, None
    focus = await embedder.embed(call.focus)
    return focus, None if call.focus is call.question else await embedder.embed(call.question)


def _exact(route: Route, call: Call) -> str:
    if route.exact_ttl_s is None:
        return "off"
    return f"on, ttl {route.exact_ttl_s:g} s" if call.uncached is None else f"skipped: {call.uncached}"


def _semantic(route: Route, call: Call, embedding: Embedding | None) -> str:
    if route.semantic is None:
        return "off"
    if call.uncached is not None:
        return f"skipped: {call.uncached}"
    if call.no_question is not None or (embedding is not None and embedding.partial):
        return f"skipped: {call.no_question or (embedding and embedding.partial_reason)}"
    acceptance = route.semantic.acceptance
    if acceptance.max_wrong_hits is not None:
        return f"on, max_wrong_hits {acceptance.max_wrong_hits:.2%}"
    return f"on, min_similarity {acceptance.min_similarity}"


def _tiers(target: Target) -> tuple[str, ...]:
    """Return the tiers as text, or nothing for a single backend."""
    shown = [
        f"{tier.name}: {', '.join(f'{part.backend} {100 * part.share:g}%' for part in tier.parts) or tier.backend}"
        for tier in target.tiers
    ]
    return () if len(shown) == 1 and not target.tiers[0].parts else tuple(shown)


def _thresholds(request: RequestContext, route: Route) -> tuple[float, ...]:
    """Return the thresholds of the policy, or the one that follows the traffic. Offline, that is its initial value."""
    tier_decision = request.estimates.tier_decision
    return (tier_decision.threshold,) if tier_decision is not None and _rule(route) else route.target.escalate_above


def _rule(route: Route) -> str:
    key, value = rule_of(route.target)
    if isinstance(value, tuple) or key == "escalate_above":
        return ""
    return f"{key}: {100 * value:g}%" if key == "large_share" else f"{key}: {value:g}"


def _to_hold_share(request: RequestContext, route: Route) -> bool:
    tier_decision, score = request.estimates.tier_decision, request.estimates.complexity
    if tier_decision is None or score is None or route.target.large_share is None:
        return False
    return tier_decision.large != (score > tier_decision.threshold)


# POST /admin/explain. Nothing is sent to a backend, and the request is neither logged nor stored.
PATH = "/admin/explain"


class WrappedRequest(TypedDict):
    body: dict[str, Any]
    """The body of the request."""
    path: NotRequired[str]
    """Default: `/v1/chat/completions`."""
    headers: NotRequired[dict[str, str]]
    tenant: NotRequired[str]
    """Default: that of the credentials in `headers`, where backends check them."""


@dataclass(frozen=True, slots=True)
class ExplainAdmin:
    """`ExplainAdmin` serves `POST /admin/explain`."""

    core: AdminCore

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/admin/explain", self._answer)]

    @operation(Explanation, body=WrappedRequest | dict[str, Any])
    async def _answer(self, request: web.Request) -> web.Response:
        """Explain how the gateway would handle a request now, with the predicted latencies.

        The body is the body of a request, or an object with `body` and optionally `path`, `headers` and `tenant`.
        The call sends nothing to a backend. The request is neither logged nor stored.
        """
        try:
            explanation = await self._explain(load_json(await request.read()))
        except orjson.JSONDecodeError as error:
            return json_response({"error": f"the body is not valid JSON: {error}"}, 400)
        except web.HTTPRequestEntityTooLarge:
            return json_response({"error": "the body is larger than 1 MiB: expected a request"}, 400)
        except BadRequest as error:
            return json_response({"error": error.message}, 400)
        return json_response(explanation.as_json())

    async def _explain(self, value: object) -> Explanation:
        parts = self.core.parts()
        request, call = parse_request(value, parts.clock, "the body", self.core.config.auth.passthrough_rules)
        policy = self.core.policy()
        route = find_route(request, call, (call.model,), policy)
        call = self.core.features.apply_route(request, call, route)
        with suppress(EmbedderUnavailable):  # a request continues without an embedding, too
            if parts.spaces.is_open:
                request.embedding, request.of(WholeQuestion).embedding = await embed_question(
                    call, parts.space.embedder
                )
        deciding = backend_choice_of(route, parts, self.core.features.ports(route))
        decision = await deciding.choose(request)
        steps = steps_of(route, self.core.deployment)
        scored_by = str(parts.escalations.scores.of(route.name).source)
        screening = await _screening(route, parts, request, call)
        explanation = build_explanation(
            request, call, route, decision, deciding.outlook(request), steps, scored_by, screening
        )
        return replace(explanation, conversation=await _conversation(route, parts, request, call))


async def _conversation(route: Route, parts: Parts, request: RequestContext, call: Call) -> str | None:
    """Return the scope in which the request is looked up as well, as a sentence, or None if there is none."""
    conversations = None if route.semantic is None else route_conversations(route.semantic, parts)
    continuation = None if conversations is None else conversations.find(request, call)
    keys = None if continuation is None else await continuation.keys()
    return None if keys is None else f"continues one whose answer a hit served, in the scope {keys.scope}"


async def _screening(route: Route, parts: Parts, request: RequestContext, call: Call) -> Screening | None:
    """Return the screen's decision, or None if the route has no screen or its requests need the embedding."""
    rule, question = route.semantic, call.focus
    if rule is None or question is None:
        return None
    screen = route_screen(route, parts, semantic_lookup(route, rule, parts))
    return None if screen is None else await screen.screening(request, question)
