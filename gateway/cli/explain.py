"""`nearhit explain` explains how a request would be answered, or whether two prompts match, and sends nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from gateway.adapters.system.clock import SystemClock
from gateway.admin.explain_pair import PairRequest, explain_offline, explain_via_gateway, validate_pair
from gateway.admin.explanation import PATH, Explanation, build_explanation, embed_question, parse_request
from gateway.cache.model_factory import build_embedder
from gateway.calls import Call
from gateway.cli.admin_client import AdminAddress, AdminClient, admin_address, connect
from gateway.cli.output import FAULT, GOOD, CommandFailed, WrongUsage, print_result, print_warning
from gateway.cli.parser import Command
from gateway.config import Config
from gateway.config.load import load_config
from gateway.config.policy.load import load_policy
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.parameters import untuned
from gateway.context import RequestContext
from gateway.dialects.json_body import load_json
from gateway.entries import Embedding
from gateway.errors import BadRequest, EmbedderUnavailable
from gateway.feature import Features, idle_features
from gateway.observability.telemetry import Telemetry
from gateway.pipeline import Deployment, steps_of
from gateway.ports import Embedder
from gateway.routing.backend_choice import BackendChoice, WholeQuestion
from gateway.routing.complexity import build_complexity
from gateway.routing.latency_promises import Promises
from gateway.routing.selection import Decision
from gateway.routing.tier_learning import TierLearning
from gateway.routing.tuned_pool import pools_of
from gateway.steps.request_reading import find_route
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.factory import build_pools


def register(command: Command) -> None:
    command.define(
        run,
        "request.json",
        "request.json --expect light",
        "request.json --steps",
        "--stored 'What is a scope?' --asked 'what is a scope'",
        about="The command reads config.yaml and the policies; no gateway needs to run. With --admin the gateway there "
        "answers, with its learnt thresholds and the predicted latencies of its backends. Nothing is sent to a "
        "backend.\n"
        "--stored and --asked show instead whether the answer to one prompt would be served for another.",
        fault="the chosen backend differs from --expect, or the request has a fault",
    )
    command.add_argument(
        "request", metavar="REQUEST.json", type=Path, nargs="?", help="a request body, or {path, headers, body}"
    )
    command.add_argument("--expect", metavar="BACKEND", help="exit 1 unless this backend or tier is chosen")
    command.add_argument(
        "--steps", action="store_true", help="print the pipeline steps of the request, outermost first, and why"
    )
    command.add_argument("--stored", metavar="PROMPT", help="instead of a request: a prompt with a stored answer")
    command.add_argument("--asked", metavar="PROMPT", help="a prompt to look up: would it get that answer?")
    command.add_argument("--route", metavar="NAME", help="route of the two prompts; default: the policy's last one")
    command.add_argument(
        "--admin", metavar="URL", help="let the gateway with this admin port explain, with its learnt state"
    )
    command.add_argument("--token-env", metavar="VARIABLE", help="variable with the admin port's token")


def run(arguments: argparse.Namespace) -> int:
    of_pair = (arguments.stored, arguments.asked, arguments.route)
    if arguments.request is None or any(value is not None for value in of_pair):
        return _run_pair(arguments)
    if arguments.admin is None:
        explanation = asyncio.run(explain(arguments.request, arguments.config, os.environ))
    else:
        explanation = asyncio.run(explain_by_gateway(admin_address(arguments), arguments.request))
    shown = explanation.steps_as_text() if arguments.steps else explanation.as_text()
    print_result(arguments, explanation.as_json(), shown)
    if arguments.expect in (None, explanation.backend, untuned(explanation.backend), explanation.tier):
        return GOOD
    print_warning(f"nearhit: expected {arguments.expect}, but the choice is {explanation.backend}")
    return FAULT


def _run_pair(arguments: argparse.Namespace) -> int:
    if arguments.stored is None or arguments.asked is None or arguments.request or arguments.expect or arguments.steps:
        raise WrongUsage(
            "expected REQUEST.json [--expect BACKEND] [--steps], or --stored PROMPT --asked PROMPT [--route NAME]"
        )
    pair = validate_pair(PairRequest(arguments.stored, arguments.asked, arguments.route))
    if arguments.admin is None:
        found = asyncio.run(explain_offline(pair, arguments.config, os.environ))
    else:
        place = admin_address(arguments)
        found = asyncio.run(explain_via_gateway(place.admin, place.token, pair))
    return print_result(arguments, found.as_json(), found.as_text())


async def explain(path: Path, config_path: Path, environ: Mapping[str, str]) -> Explanation:
    """Explain a request from the files alone, without a gateway.

    Raises `BadRequest` if the file is not a request, and the errors of reading the configuration.
    """
    value = read_request(path)
    async with explainer_of(config_path, environ) as explainer:
        return await explainer.explain(value, str(path))


def read_request(path: Path) -> Any:
    """Read the JSON of a request. Raises `BadRequest`."""
    try:
        return load_json(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{path}: not valid JSON: {error}") from None


async def explain_by_gateway(place: AdminAddress, path: Path) -> Explanation:
    """Let a running gateway explain the request, with the latencies that it predicts.

    Raises `BadRequest` and `CommandFailed`.
    """
    async with GatewayExplainer.at(place) as explainer:
        return await explainer.explain(read_request(path), str(path))


class GatewayExplainer:
    """`GatewayExplainer` lets a running gateway explain requests."""

    def __init__(self, place: AdminAddress, admin: AdminClient) -> None:
        self._place = place
        self._admin = admin

    @classmethod
    @asynccontextmanager
    async def at(cls, place: AdminAddress) -> AsyncIterator[GatewayExplainer]:
        async with connect(place) as admin:
            yield cls(place, admin)

    async def explain(self, value: object, where: str) -> Explanation:
        """Explain a request. `where` is its source. Raises `BadRequest` and `CommandFailed`."""
        parse_request(value, SystemClock(), where)  # the gateway does not know where the request comes from
        found = await self._admin.post(PATH, value)
        try:
            return Explanation(**found)
        except TypeError as error:
            raise CommandFailed(
                f"{self._place.admin} answered in a format that this version does not expect: {error}"
            ) from None


class OfflineExplainer:
    """`OfflineExplainer` explains requests by the policy alone: routes have learnt nothing, and no latency is known.

    It asks the embedder, and the classifiers of routes that have one.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        embedder: Embedder,
        pools: Mapping[str, UpstreamPool],
        telemetry: Telemetry,
        features: Features,
    ) -> None:
        self.policy = policy
        self._deployment = Deployment.of(config)
        self._rules = config.auth.passthrough_rules
        self._embedder = embedder
        self._complexity = build_complexity(embedder.fingerprint)
        self._pools = pools
        self._telemetry = telemetry
        self._features = features

    async def explain(self, value: object, where: str) -> Explanation:
        """Explain a request, as `parse_request` reads it. `where` is its source. Raises `BadRequest`."""
        clock = SystemClock()
        request, call = parse_request(value, clock, where, self._rules)
        route = find_route(request, call, (call.model,), self.policy)
        embeddings = await self._embed_question(self._features.apply_route(request, call, route))
        # Parse again, so that the time to load the model does not count against the request's budget.
        request, call = parse_request(value, clock, where, self._rules)
        call = self._features.apply_route(request, call, route)
        request.embedding, request.of(WholeQuestion).embedding = embeddings
        decision = await self._decide(route, request)
        return build_explanation(request, call, route, decision, None, steps_of(route, self._deployment))

    async def _embed_question(self, call: Call) -> tuple[Embedding | None, Embedding | None]:
        try:
            return await embed_question(call, self._embedder)
        except EmbedderUnavailable:
            return None, None

    async def _decide(self, route: Route, request: RequestContext) -> Decision:
        clock, telemetry = SystemClock(), self._telemetry
        promises, escalations = Promises(clock, telemetry), TierLearning("", clock, telemetry)
        ports = self._features.ports(route)
        return await BackendChoice(
            route,
            pools_of(route.target, self._pools),
            promises,
            escalations,
            clock,
            self._complexity,
            conversations=ports.conversations,
            classifier=None if ports.classifier is None else ports.classifier(),
            trials=ports.trials,
        ).choose(request)


@asynccontextmanager
async def explainer_of(config_path: Path, environ: Mapping[str, str]) -> AsyncIterator[OfflineExplainer]:
    """Yield an explainer for the policy of a configuration. Raises the errors of reading them."""
    config = load_config(config_path, environ)
    policy = load_policy(config.policies, config)
    clock, telemetry = SystemClock(), Telemetry()
    async with AsyncExitStack() as stack:
        _, embedder = build_embedder(config.embedder)
        stack.callback(embedder.close)
        pools = build_pools(config, environ, clock, telemetry)
        for pool in pools.values():
            stack.push_async_callback(pool.close)
        yield OfflineExplainer(config, policy, embedder, pools, telemetry, idle_features(clock, telemetry, stack))
