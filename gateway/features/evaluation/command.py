"""`nearhit eval` says how often the policy chooses the expected tier or backend, and which signal made the choice."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.admin_client import AdminAddress, admin_address
from gateway.cli.explain import GatewayExplainer, OfflineExplainer, explainer_of
from gateway.cli.output import FAULT, GOOD, CommandFailed, print_result, print_warning
from gateway.cli.parser import Command, parser_type
from gateway.cli.progress import spinner
from gateway.config.policy.model import Policy
from gateway.config.policy.parameters import untuned
from gateway.config.units import parse_share
from gateway.errors import BadRequest
from gateway.features.evaluation.choices import Evaluation, ExpectedChoice, Prompt, paired, read_expected, read_prompts


def register(command: Command) -> None:
    command.define(
        run,
        "--prompts prompts.jsonl --expect tiers.txt",
        "--prompts prompts.jsonl --expect tiers.jsonl --at-least 90%",
        about='A line of the prompts is a text, an object such as {"id": 1, "prompt": "..."}, or a request as '
        "`nearhit explain` takes it. A line of the expectations is the name of a tier or of a backend, or an object "
        'such as {"id": 1, "tier": "large"}. Expectations with an id belong to the prompt with the same id, others to '
        "the prompt on the same line.\n"
        "The command makes the gateway's own decision for each prompt, as `nearhit explain` does, and asks the "
        "classifiers of routes that have one. No gateway needs to run, and nothing is sent to a backend.",
        fault="fewer choices than --at-least are as expected, or a file has a fault",
    )
    command.add_argument("--prompts", metavar="FILE", type=Path, required=True, help="prompts, one a line")
    command.add_argument(
        "--expect", metavar="FILE", type=Path, required=True, help="the expected tier or backend of each, one a line"
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
