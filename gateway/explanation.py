"""What would become of a request, and how it is told: shared by `nearhit explain` and by the gateways that it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.credentials import ANONYMOUS
from gateway.dialects.known import dialect_of
from gateway.errors import BadRequest
from gateway.messages import Bypass, Call, Embedding, Request
from gateway.policy.model import Route, Target
from gateway.ports import Clock
from gateway.routing.choice import Decision
from gateway.routing.escalation import rule_of
from gateway.routing.outlook import Outlook
from gateway.trace import Trace


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is decided before anything is sent."""

    route: str
    file: str  # where the rule is written
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
    thresholds: tuple[float, ...]
    backend: str
    tier: str | None
    fallbacks: tuple[str, ...]
    reason: str
    late: bool  # no backend is predicted to keep the latency budget
    rule: str = ""  # what the thresholds come from where they follow the traffic, as the policy has it
    tiers: tuple[str, ...] = ()  # lightest first, with the parts of those whose calls are divided
    tried_first: str | None = None  # the backend whose answer is checked before the others are asked
    cascade: str | None = None
    shadow: str | None = None
    outlook: Mapping[str, Any] | None = None  # as `Outlook.as_json`; latencies are known to a running gateway only

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        shown = {
            "route": f"{self.route} ({self.file}:{self.line})",
            "operation": self.operation,
            "tenant": f"{self.tenant}, answers shared by {self.share}",
            "scope": self.scope or "none",
            "fingerprint": self.fingerprint or "none",
            "exact cache": self.exact,
            "semantic cache": self.semantic,
            "complexity": "not judged" if self.complexity is None else f"{self.complexity:.2f}",
            **({"tiers": "; ".join(self.tiers)} if self.tiers else {}),
            **({} if self.tried_first is None else {"tried first": f"{self.tried_first} ({self.cascade})"}),
            "backend": f"{self.backend} ({self.reason}{self._against()})",
            "then": ", ".join(self.fallbacks) or "nobody",
            **({} if self.shadow is None else {"shadow": self.shadow}),
            **self._predicted(),
        }
        width = max(map(len, shown))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())

    def _against(self) -> str:
        above = ", ".join(f"{threshold:.2f}" for threshold in self.thresholds)
        follows = f" now, by {self.rule}" if self.rule else ""
        return f", escalates above {above}{follows}" if above else ""

    def _predicted(self) -> dict[str, str]:
        if self.outlook is None:
            return {}
        left = {name.removesuffix("_s"): f"{value:.3g} s" for name, value in self.outlook["left"].items() if value}
        shown = {
            "budgets left": ", ".join(f"{name} {value}" for name, value in left.items()) or "none given",
            "asked of predictions": f"{self.outlook['confidence']:.0%} confidence",
        }
        for name, prediction in self.outlook["backends"].items():
            shown[f"predicted, {name}"] = "nothing recent is known" if prediction is None else _seconds(prediction)
        return shown | ({"in time": "nobody, by these predictions"} if self.late else {})


def _seconds(prediction: Mapping[str, float]) -> str:
    if prediction["tpot_s"] == 0:
        return f"at most {prediction['total_s']:.3g} s"
    return "at most {total_s:.3g} s, {ttft_s:.3g} s to the first token, {tpot_s:.3g} s for each one after it".format(
        **prediction
    )


class _NoBody:
    async def read(self) -> bytes:
        return b""

    def stream(self) -> AsyncIterator[bytes] | None:
        return None

    @property
    def replayable(self) -> bool:
        return True


def request_of(value: object, clock: Clock, where: str) -> tuple[Request, Call]:
    """From a request's body, or `{path, headers, body, tenant}`. `where` it was found begins each sentence. Raises
    `BadRequest`."""
    if not isinstance(value, dict):
        raise BadRequest(f"{where}: expected an object: a request body, or {{path, headers, body}}")
    # A bare body is what people have at hand; a wrapped one says where it goes and with what.
    wrapped = value if isinstance(value.get("body"), dict) else {"body": value}
    headers = wrapped.get("headers", {})
    if not isinstance(headers, dict):
        raise BadRequest(f"{where}: headers: expected an object of names and values")
    request = Request(
        id="explain",
        method="POST",
        path=str(wrapped.get("path", "/v1/chat/completions")),
        query="",
        headers=CIMultiDict({str(k): str(v) for k, v in headers.items()}),
        source=_NoBody(),
        received=clock.monotonic(),
        trace=Trace(clock),
        body=orjson.dumps(wrapped["body"]),
    )
    request.trace.tenant = str(wrapped.get("tenant", ANONYMOUS))
    dialect = dialect_of(request.method, request.path)
    if dialect is None:
        raise BadRequest(f"{where}: the path {request.path} is passed through, there is nothing to explain")
    return request, dialect.parse(request.path, request.body, request.headers)


def explanation_of(
    request: Request, call: Call, route: Route, embedding: Embedding | None, decision: Decision, outlook: Outlook | None
) -> Explanation:
    """`request` with all that its route decides; `outlook` None where no latencies are known."""
    return Explanation(
        route=route.name,
        file=route.file,
        line=route.line,
        operation=call.operation,
        tenant=request.tenant,
        share=route.share,
        scope=request.scope,
        fingerprint=request.fingerprint,
        exact=_exact(route, call),
        semantic=_semantic(route, call, embedding),
        question_tokens=None if embedding is None else embedding.tokens,
        complexity=request.trace.complexity,
        thresholds=_thresholds(request, route),
        rule=_rule(route),
        backend=decision.backends[0],
        tier=decision.tier,
        fallbacks=decision.backends[1:],
        reason=decision.reason,
        late=decision.late,
        tiers=_tiers(route.target),
        tried_first=decision.trial,
        cascade=_cascade(route.target),
        shadow=_shadow(route.target),
        outlook=None if outlook is None else outlook.as_json(),
    )


def _exact(route: Route, call: Call) -> str:
    if route.exact_ttl_s is None:
        return "off"
    return f"on, ttl {route.exact_ttl_s:g} s" if call.uncached is None else f"not asked: {call.uncached}"


def _semantic(route: Route, call: Call, embedding: Embedding | None) -> str:
    if route.semantic is None:
        return "off"
    if call.no_question is not None or (embedding is not None and embedding.partial):
        return f"not asked: {call.no_question or Bypass.TOO_LONG}"
    acceptance = route.semantic.acceptance
    if acceptance.max_wrong_hits is not None:
        return f"on, max_wrong_hits {acceptance.max_wrong_hits:.2%}"
    return f"on, min_similarity {acceptance.min_similarity}"


def _tiers(target: Target) -> tuple[str, ...]:
    """None where there is one backend and nothing to tell."""
    shown = [
        f"{tier.name}: {', '.join(f'{part.backend} {100 * part.share:g}%' for part in tier.parts) or tier.backend}"
        for tier in target.tiers
    ]
    return () if len(shown) == 1 and not target.tiers[0].parts else tuple(shown)


def _cascade(target: Target) -> str | None:
    rule = target.cascade
    return None if rule is None else f"served if {rule.check} says more than {rule.accept_above:g}"


def _shadow(target: Target) -> str | None:
    rule = target.shadow
    return None if rule is None else f"{rule.backend}, {100 * rule.share:g}% of the misses"


def _thresholds(request: Request, route: Route) -> tuple[float, ...]:
    """Those of the policy, or the one that follows the traffic: without a running gateway, the one of a start."""
    wish = request.trace.wish
    return (wish.threshold,) if wish is not None and _rule(route) else route.target.escalate_above


def _rule(route: Route) -> str:
    key, value = rule_of(route.target)
    return "" if key == "escalate_above" else f"{key}: {value:.4g}"
