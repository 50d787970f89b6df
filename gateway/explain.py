"""`nearhit explain`: what would become of a request, without sending it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.adapters.system_clock import SystemClock
from gateway.app import hardness_of
from gateway.config.load import load_config
from gateway.dialects.openai import OpenAI
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.messages import Request, Response
from gateway.parts import build_backends, build_embedder
from gateway.policy.load import load_policy
from gateway.stages.authenticate import ANONYMOUS
from gateway.stages.dispatch import Dispatch, Lane
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
    threshold: float | None
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
        return "" if self.threshold is None else f", escalates above {self.threshold:.2f}"


class _NoBody:
    async def read(self) -> bytes:
        return b""

    def stream(self) -> AsyncIterator[bytes] | None:
        return None


async def explain(path: Path, config_path: Path, environ: Mapping[str, str]) -> Explanation:
    """Raises `BadRequest` where the file is no request, and whatever the configuration's reading raises."""
    config = load_config(config_path, environ)
    policy = load_policy(config.policies, config)
    clock = SystemClock()
    request = request_from(_read(path), clock)
    dialect = OpenAI()
    if not dialect.claims(request.method, request.path):
        raise BadRequest(f"{path}: the path {request.path} is passed through, there is nothing to explain")
    call = dialect.parse(request)
    route = policy.match(request.path, call.model, request.tenant, request.headers)
    request = routed(request, call, route)
    encoder, embedder = build_embedder(config.embedder)
    try:
        embedding = await embedder.embed(call.question) if call.question is not None else None
        hardness = await hardness_of(config, embedder)
    except EmbedderUnavailable:
        embedding = hardness = None
    finally:
        embedder.close()
    backends = build_backends(config, environ, clock)
    try:
        lanes = {name: Lane(backend) for name, backend in backends.items()}
        decision = Dispatch(route, lanes, clock, Telemetry(), hardness).decide(replace(request, embedding=embedding))
    finally:
        for backend in backends.values():
            await backend.close()
    semantic = "off"
    if route.semantic is not None:
        wanted = route.semantic.acceptance
        promise = f"max_wrong_hits {wanted.max_wrong_hits:.2%}" if wanted.max_wrong_hits else f"min_similarity {wanted.min_similarity}"
        semantic = f"on, {promise}" if call.no_question is None else f"not asked: {call.no_question}"
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
        semantic=semantic,
        question_tokens=None if embedding is None else embedding.tokens,
        complexity=request.trace.complexity,
        threshold=getattr(route.target, "escalate_above", None),
        backend=decision.backends[0],
        tier=decision.tier,
        fallbacks=decision.backends[1:],
        reason=decision.reason,
    )
