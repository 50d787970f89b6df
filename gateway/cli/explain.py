"""`nearhit explain`: what would become of a request, without sending it; or what is made of two prompts."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.adapters.system.clock import SystemClock
from gateway.admin.explain import Pair
from gateway.admin.explain_pair import checked, explain_by, explain_offline
from gateway.admin.explain_requests import PATH
from gateway.admin.explanation import Explanation, explanation_of, request_of
from gateway.cache.model_factory import build_embedder
from gateway.cli.admin_client import CommandFailed, Place, connected
from gateway.cli.client import FAULT, GOOD, WrongUsage, place_given, tell
from gateway.config import Config
from gateway.config.load import load_config
from gateway.config.policy.load import load_policy
from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.messages import Call, Embedding
from gateway.observability.telemetry import Telemetry
from gateway.pipeline import Deployment, steps_of
from gateway.routing.backend_choice import Deciding
from gateway.routing.complexity import ComplexityModel, build_complexity
from gateway.routing.latency_promises import Promises
from gateway.routing.tier_learning import Escalations
from gateway.routing.tier_selection import Decision
from gateway.steps.parse_and_route import apply_route
from gateway.upstream.factory import build_pools


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `explain`. `commands`: argparse's subparsers."""
    text = "Say what would become of a request, without sending it; or what is made of two prompts."
    command = commands.add_parser("explain", parents=[shared], help=text, description=text)
    command.add_argument(
        "request", metavar="REQUEST.json", type=Path, nargs="?", help="a body, or {path, headers, body}"
    )
    command.add_argument("--expect", metavar="BACKEND", help="exit 1 unless this backend or tier is chosen")
    command.add_argument("--steps", action="store_true", help="print the steps that it takes, outermost first, and why")
    command.add_argument("--stored", metavar="PROMPT", help="instead of a request: one whose answer is stored,")
    command.add_argument("--asked", metavar="PROMPT", help="and one that is asked: would that answer be served?")
    command.add_argument("--route", metavar="NAME", help="of these two; default: the policy's last one")
    command.add_argument(
        "--admin", metavar="URL", help="ask the gateway with this admin port: what it has learnt, what it predicts"
    )
    command.add_argument("--token-env", metavar="VARIABLE", help="where the admin port's token is")
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    of_pair = (arguments.stored, arguments.asked, arguments.route)
    if arguments.request is None or any(value is not None for value in of_pair):
        return _run_pair(arguments)
    if arguments.admin is None:
        explanation = asyncio.run(explain(arguments.request, arguments.config, os.environ))
    else:
        explanation = asyncio.run(explain_by_gateway(place_given(arguments), arguments.request))
    shown = explanation.steps_as_text() if arguments.steps else explanation.as_text()
    tell(arguments, explanation.as_json(), shown)
    if arguments.expect in (None, explanation.backend, explanation.tier):
        return GOOD
    sys.stderr.write(f"nearhit: expected {arguments.expect}, chosen is {explanation.backend}\n")
    return FAULT


def _run_pair(arguments: argparse.Namespace) -> int:
    if arguments.stored is None or arguments.asked is None or arguments.request or arguments.expect or arguments.steps:
        raise WrongUsage(
            "expected REQUEST.json [--expect BACKEND] [--steps], or --stored PROMPT --asked PROMPT [--route NAME]"
        )
    pair = checked(Pair(arguments.stored, arguments.asked, arguments.route))
    if arguments.admin is None:
        found = asyncio.run(explain_offline(pair, arguments.config, os.environ))
    else:
        place = place_given(arguments)
        found = asyncio.run(explain_by(place.admin, place.token, pair))
    return tell(arguments, found.as_json(), found.as_text())


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
    apply_route(request, call, route)
    request.embedding = embedding
    decision = await _decide(config, environ, route, request, complexity)
    return explanation_of(request, call, route, decision, None, steps_of(route, Deployment.of(config)))


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
    config: Config, environ: Mapping[str, str], route: Route, request: RequestContext, complexity: ComplexityModel
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
