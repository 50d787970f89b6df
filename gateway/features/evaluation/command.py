"""`nearhit eval` says how often the policy chooses the expected tier or backend, and which signal made the choice."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.admin_client import AdminAddress, admin_address
from gateway.cli.explain import GatewayExplainer, OfflineExplainer, explainer_of
from gateway.cli.output import FAULT, GOOD, CommandFailed, WrongUsage, print_result, print_warning
from gateway.cli.parser import Command, parser_type
from gateway.cli.progress import spinner
from gateway.config.load import load_config
from gateway.config.policy.load import load_policy
from gateway.config.policy.model import Policy
from gateway.config.policy.parameters import untuned
from gateway.config.units import parse_share
from gateway.errors import BadRequest
from gateway.features.evaluation.choices import Evaluation, ExpectedChoice, Prompt, paired, read_expected, read_prompts
from gateway.features.evaluation.shadows import as_json, as_text, read_routes
from gateway.steps.traffic_log.reader import read_traffic
from gateway.steps.traffic_log.segments import FOLDER
from gateway.upstream.tariffs import tariffs_of


def register(command: Command) -> None:
    command.define(
        run,
        "--prompts prompts.jsonl --expect tiers.txt",
        "--prompts prompts.jsonl --expect tiers.jsonl --at-least 90%",
        "--shadow last-7d",
        about='A line of the prompts is a text, an object such as {"id": 1, "prompt": "..."}, or a request as '
        "`nearhit explain` takes it. A line of the expectations is the name of a tier or of a backend, or an object "
        'such as {"id": 1, "tier": "large"}. Expectations with an id belong to the prompt with the same id, others to '
        "the prompt on the same line.\n"
        "The command makes the gateway's own decision for each prompt, as `nearhit explain` does, and asks the "
        "classifiers of routes that have one. No gateway needs to run, and nothing is sent to a backend.\n"
        "With --shadow no prompts are needed. The command reads what `route.audit` and `shadow` compared on routes "
        "with `record: on`. It tells what each light model would have kept of the quality, and its cost, threshold by "
        "threshold. It also says whether one model alone would do as well.",
        fault="fewer choices than --at-least are as expected, or a file has a fault",
    )
    command.add_argument("--prompts", metavar="FILE", type=Path, help="prompts, one a line")
    command.add_argument("--expect", metavar="FILE", type=Path, help="the expected tier or backend of each, one a line")
    command.add_argument(
        "--shadow",
        metavar="WHAT",
        nargs="?",
        const="last-7d",
        help="recorded traffic: last-24h, last-7d, ... or paths of segments; default: last-7d",
    )
    command.add_argument(
        "--at-least", metavar="SHARE", type=parser_type(parse_share), help="exit 1 below this share, such as 90%%"
    )
    command.add_argument("--model", default="any", help="model of the prompts that are texts; default: %(default)s")
    command.add_argument(
        "--admin", metavar="URL", help="let the gateway with this admin port decide, with its learnt state"
    )
    command.add_argument("--token-env", metavar="VARIABLE", help="variable with the admin port's token")


def run(arguments: argparse.Namespace) -> int:
    if arguments.shadow is not None:
        if arguments.prompts or arguments.expect or arguments.at_least is not None or arguments.admin:
            raise WrongUsage("--shadow reads recorded traffic: expected no --prompts, --expect, --at-least or --admin")
        return _shadow(arguments)
    if arguments.prompts is None or arguments.expect is None:
        raise WrongUsage("expected --prompts and --expect, or --shadow")
    prompts = read_prompts(arguments.prompts, arguments.model)
    with spinner("evaluating", quiet=arguments.json):
        if arguments.admin is None:
            evaluation = asyncio.run(_offline(arguments, prompts))
        else:
            expected = read_expected(arguments.expect, None)
            evaluation = asyncio.run(_by_gateway(admin_address(arguments), paired(prompts, expected)))
    print_result(arguments, evaluation.as_json(), evaluation.as_text())
    if arguments.at_least is None or evaluation.all.share >= arguments.at_least:
        return GOOD
    print_warning(
        f"nearhit: {evaluation.all.share:.1%} are as expected, at least {arguments.at_least:.1%} were asked for"
    )
    return FAULT


def _shadow(arguments: argparse.Namespace) -> int:
    """Print the figures of recorded traffic. Raise `ConfigInvalid` or `TrafficUnreadable`."""
    config = load_config(arguments.config, os.environ)
    policy = load_policy(config.policies, config)
    with spinner("reading", quiet=arguments.json):
        traffic = read_traffic(arguments.shadow, config.data_dir / FOLDER, time.time())
        routes = read_routes(policy, traffic, tariffs_of(config))
    return print_result(arguments, as_json(routes, traffic.notes), as_text(routes, traffic.notes))


async def _offline(arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> Evaluation:
    async with explainer_of(arguments.config, os.environ) as explainer:
        expected = read_expected(arguments.expect, names_of(explainer.policy))
        return await _evaluate(explainer, paired(prompts, expected))


async def _by_gateway(place: AdminAddress, pairs: Sequence[tuple[Prompt, ExpectedChoice]]) -> Evaluation:
    async with GatewayExplainer.at(place) as explainer:
        return await _evaluate(explainer, pairs)


async def _evaluate(
    explainer: OfflineExplainer | GatewayExplainer, pairs: Sequence[tuple[Prompt, ExpectedChoice]]
) -> Evaluation:
    """Compare each choice. Raise `CommandFailed` with the line of a prompt that is no request."""
    evaluation = Evaluation()
    for prompt, expected in pairs:
        try:
            evaluation.add(prompt, expected, await explainer.explain(prompt.request, prompt.where))
        except BadRequest as error:
            reason = error.message.removeprefix(f"{prompt.where}: ")
            raise CommandFailed(f"{prompt.where}: {reason}") from None
    return evaluation


def names_of(policy: Policy) -> frozenset[str]:
    """Return the names that a choice of the policy can have: tiers and backends."""
    targets = [route.target for route in policy.routes]
    backends = {name for target in targets for name in target.members}
    tiers = {tier.name for target in targets if len(target.tiers) > 1 for tier in target.tiers}
    return frozenset({*backends, *map(untuned, backends), *tiers})
