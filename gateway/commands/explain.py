"""`nearhit explain`: what would become of a request, without sending it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from gateway.adapters.system_clock import SystemClock
from gateway.calling.deciding import Deciding
from gateway.calling.promises import Promises
from gateway.commands.admin_client import CommandFailed, Place, connected
from gateway.composition.parts import build_complexity, build_embedder
from gateway.composition.upstreams import build_pools
from gateway.config import Config
from gateway.config.load import load_config
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.explaining.explanation import Explanation, explanation_of, request_of
from gateway.explaining.requests import PATH
from gateway.messages import Call, Embedding, Request
from gateway.observing.telemetry import Telemetry
from gateway.policy.load import load_policy
from gateway.policy.model import Route
from gateway.quality.escalations import Escalations
from gateway.routing.choice import Decision
from gateway.routing.complexity import ComplexityModel
from gateway.stages.policy import routed


async def explain(path: Path, config_path: Path, environ: Mapping[str, str]) -> Explanation:
    """Raises `BadRequest` where the file is no request, and whatever the reading of the configuration raises."""
    config = load_config(config_path, environ)
    policy = load_policy(config.policies, config)
    value, clock = read_request(path), SystemClock()
    _, call = request_of(value, clock, str(path))
    embedding, complexity = await _embedded(config, call)
    # Anew: that the model was loaded here is nothing that a request's budget is spent on.
    request, call = request_of(value, clock, str(path))
    route = policy.match(request.path, call.model, request.tenant, request.headers)
    request = routed(request, request.body, call, route)
    decision = await _decide(config, environ, route, replace(request, embedding=embedding), complexity)
    return explanation_of(request, call, route, embedding, decision, None)


def read_request(path: Path) -> Any:
    """Raises `BadRequest`."""
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{path}: not valid JSON: {error}") from None


async def explain_by_gateway(place: Place, path: Path) -> Explanation:
    """By the gateway whose admin port is there: with the latencies that it predicts. Raises `BadRequest` and
    `CommandFailed`."""
    async with connected(place) as admin:
        found = await admin.post(PATH, read_request(path))
    try:
        return Explanation(**found)
    except TypeError as error:
        raise CommandFailed(f"{place.admin} answers otherwise than this version expects: {error}") from None


async def _embedded(config: Config, call: Call) -> tuple[Embedding | None, ComplexityModel]:
    _, embedder = build_embedder(config.embedder)
    complexity = build_complexity(embedder.fingerprint)
    try:
        return None if call.question is None else await embedder.embed(call.question), complexity
    except EmbedderUnavailable:
        return None, complexity
    finally:
        embedder.close()


async def _decide(
    config: Config, environ: Mapping[str, str], route: Route, request: Request, complexity: ComplexityModel
) -> Decision:
    clock = SystemClock()
    telemetry = Telemetry()
    pools = build_pools(config, environ, clock, telemetry)
    try:
        promises, escalations = Promises(clock, telemetry), Escalations("", clock, telemetry)
        return Deciding(route, pools, promises, escalations, clock, complexity).decide(request)
    finally:
        for pool in pools.values():
            await pool.close()
