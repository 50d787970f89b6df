"""`nearhit explain`: what would become of a request, without sending it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.adapters.system_clock import SystemClock
from gateway.config import Config
from gateway.config.load import load_config
from gateway.credentials import ANONYMOUS
from gateway.dialects.known import dialect_of
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.messages import Bypass, Call, Embedding, Request, Vector
from gateway.parts import build_backends, build_embedder, hardness_of
from gateway.policy.load import load_policy
from gateway.policy.model import Route
from gateway.pool import pools_of
from gateway.promises import Promises
from gateway.routing.choice import Decision
from gateway.stages.dispatch import Dispatch
from gateway.stages.policy import routed
from gateway.telemetry import Telemetry
from gateway.trace import Trace


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is decided before anything is sent. Latencies are known to a running gateway only."""

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
            "backend": f"{self.backend} ({self.reason}{self._against()})",
            "then": ", ".join(self.fallbacks) or "nobody",
        }
        width = max(map(len, shown))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())

    def _against(self) -> str:
        above = ", ".join(f"{threshold:.2f}" for threshold in self.thresholds)
        return f", escalates above {above}" if above else ""


class _NoBody:
    async def read(self) -> bytes:
        return b""

    def stream(self) -> AsyncIterator[bytes] | None:
        return None


async def explain(path: Path, config_path: Path, environ: Mapping[str, str]) -> Explanation:
    """Raises `BadRequest` where the file is no request, and whatever the reading of the configuration raises."""
    config = load_config(config_path, environ)
    policy = load_policy(config.policies, config)
    request, call = _parse(path)
    route = policy.match(request.path, call.model, request.tenant, request.headers)
    request = routed(request, request.body, call, route)
    embedding, hardness = await _embedded(config, call)
    decision = await _decide(config, environ, route, replace(request, embedding=embedding), hardness)
    return Explanation(
        route=route.name,
        file=route.file,
        line=route.line,
        operation=call.operation,
        tenant=request.tenant,
        share=route.share,
        scope=request.scope,
        fingerprint=request.fingerprint,
        exact="off" if route.exact_ttl_s is None else f"on, ttl {route.exact_ttl_s:g} s",
        semantic=_semantic(route, call, embedding),
        question_tokens=None if embedding is None else embedding.tokens,
        complexity=request.trace.complexity,
        thresholds=route.target.escalate_above,
        backend=decision.backends[0],
        tier=decision.tier,
        fallbacks=decision.backends[1:],
        reason=decision.reason,
    )


def _parse(path: Path) -> tuple[Request, Call]:
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{path}: expected an object: a request body, or {{path, headers, body}}")
    # A bare body is what people have at hand; a wrapped one says where it goes and with what.
    wrapped = value if isinstance(value.get("body"), dict) else {"body": value}
    clock = SystemClock()
    request = Request(
        id="explain",
        method="POST",
        path=str(wrapped.get("path", "/v1/chat/completions")),
        query="",
        headers=CIMultiDict({str(k): str(v) for k, v in wrapped.get("headers", {}).items()}),
        source=_NoBody(),
        received=clock.monotonic(),
        trace=Trace(clock),
        body=orjson.dumps(wrapped["body"]),
    )
    request.trace.tenant = str(wrapped.get("tenant", ANONYMOUS))
    dialect = dialect_of(request.method, request.path)
    if dialect is None:
        raise BadRequest(f"{path}: the path {request.path} is passed through, there is nothing to explain")
    return request, dialect.parse(request.path, request.body, request.headers)


async def _embedded(config: Config, call: Call) -> tuple[Embedding | None, Vector | None]:
    _, embedder = build_embedder(config.embedder)
    try:
        if call.question is None:
            return None, None
        return await embedder.embed(call.question), await hardness_of(config.embedder, embedder)
    except EmbedderUnavailable:
        return None, None
    finally:
        embedder.close()


async def _decide(
    config: Config, environ: Mapping[str, str], route: Route, request: Request, hardness: Vector | None
) -> Decision:
    clock = SystemClock()
    backends = build_backends(config, environ, clock)
    try:
        telemetry = Telemetry()
        pools = pools_of(backends, clock, telemetry)
        return Dispatch(route, pools, Promises(clock, telemetry), clock, telemetry, hardness).decide(request)
    finally:
        for backend in backends.values():
            await backend.close()


def _semantic(route: Route, call: Call, embedding: Embedding | None) -> str:
    if route.semantic is None:
        return "off"
    if call.no_question is not None or (embedding is not None and embedding.partial):
        return f"not asked: {call.no_question or Bypass.TOO_LONG}"
    acceptance = route.semantic.acceptance
    if acceptance.max_wrong_hits is not None:
        return f"on, max_wrong_hits {acceptance.max_wrong_hits:.2%}"
    return f"on, min_similarity {acceptance.min_similarity}"
