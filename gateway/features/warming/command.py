"""`nearhit cache warm`."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import asdict
from pathlib import Path

from gateway.cli.admin_client import admin_address, connect
from gateway.cli.output import FAULT, GOOD, print_result
from gateway.cli.parser import Command, integer_between, parser_type
from gateway.cli.progress import progress_bar
from gateway.config.environment import read_secret
from gateway.features.warming.warming import WarmingPlan, WarmingSummary, count_prompts, parse_rate, warm


def register(command: Command) -> None:
    warmed = command.add_command(
        "warm", "Send prompts through the gateway, so that it stores their answers.", run_warm,
        "prompts.jsonl --rate 5/s",
        asks_gateway=True,
        about="They are sent to the data port like any client's requests: tiers, limits and policies apply.",
        fault="some prompts were not answered",
    )  # fmt: skip
    warmed.add_argument("file", metavar="PROMPTS.jsonl", type=Path, help="each line is a JSON string or a request body")
    warmed.add_argument("--url", help="URL of the data port; default: server.listen")
    warmed.add_argument(
        "--rate", type=parser_type(parse_rate), default=5.0, metavar="5/s", help="requests started; default: 5/s"
    )
    warmed.add_argument(
        "--concurrency", type=integer_between(1, 9999), default=8, metavar="N", help="default: %(default)s"
    )
    warmed.add_argument("--model", default="default", help="model for lines that name none; default: %(default)s")
    warmed.add_argument("--api-key-env", metavar="VARIABLE", help="variable with the API key to send")


def run_warm(arguments: argparse.Namespace) -> int:
    async def send() -> int:
        place = admin_address(arguments)
        key = read_secret(os.environ, arguments.api_key_env, "--api-key-env")
        plan = WarmingPlan(
            file=arguments.file,
            url=(arguments.url or place.data).rstrip("/"),
            model=arguments.model,
            rate=arguments.rate,
            concurrency=arguments.concurrency,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        total = count_prompts(plan)
        async with connect(place):
            pass  # with --wait: return once the gateway answers
        with progress_bar("warming", total, "prompts", quiet=arguments.json) as done:
            summary = await warm(plan, total, done)
        print_result(arguments, asdict(summary), warm_text(summary))
        return FAULT if summary.failed else GOOD

    return asyncio.run(send())


def warm_text(summary: WarmingSummary) -> str:
    text = f"{summary.stored} stored, {summary.hits} hits, {summary.not_stored} not stored, {summary.failed} failed"
    return text if summary.first_failure is None else f"{text} (first failure: {summary.first_failure})"
