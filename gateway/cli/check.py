"""`nearhit check` lists every fault of the configuration and of all policies, without a gateway."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from gateway.admin.policy_manager import PolicyManager, check_folder
from gateway.admin.policy_tests import failed_expectations
from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import FAULT, GOOD, pluralise, print_result
from gateway.cli.parser import Command
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.load import load_config
from gateway.config.policy.check import CheckResult, check
from gateway.config.policy.model import Policy


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "policies/default.yaml",
        "--admin http://127.0.0.1:9090",
        about="Each fault names its file, line and key path. A warning marks a setting that works, but probably not as "
        "intended. The command also runs the expectations in the policies (`tests:`).",
        fault="there are faults; with warnings alone the exit code is 0",
    )
    command.add_argument(
        "paths", metavar="PATH", nargs="*", type=Path, help="files or folders; default: all that the configuration uses"
    )
    command.add_argument("--admin", metavar="URL", help="also get warnings from the gateway with this admin port")
    command.add_argument("--token-env", metavar="VARIABLE", help="variable with the admin port's token")


def run(arguments: argparse.Namespace) -> int:
    result = check(arguments.paths, arguments.config, os.environ, failed_expectations)
    if arguments.admin is not None:
        result = result.with_warnings(call_gateway(arguments, fetch_warnings))
    print_result(arguments, result.as_json(), _format_result(result))
    return FAULT if result.faults else GOOD


async def fetch_warnings(admin: AdminClient) -> list[ConfigError]:
    """Return the warnings that only a running gateway can give. Raises `CommandFailed`."""
    found = await admin.get("/admin/policy")
    return [ConfigError(f["file"], f["line"], (), f["message"]) for f in found.get("unmet_budgets", ())]


def _format_result(result: CheckResult) -> str:
    lines = [*map(str, result.faults), *(f"warning: {warning}" for warning in result.warnings)]
    return "\n".join(lines if result.faults else [*lines, f"{pluralise(len(result.files), 'file')}, no faults"])


async def validate(config_path: Path, name: str, content: bytes) -> dict[str, Any]:
    """Validate a new policy file together with the configured ones, and return the admin port's response.

    Raises `ConfigInvalid`.
    """
    config = load_config(config_path, os.environ)
    try:
        current = check_folder(config.policies, config)
    except ConfigInvalid:  # the new file may correct that fault
        current = Policy((), "none")
    life = PolicyManager(config, config.policies, current, lambda *_: None, time.time)
    return {"ok": True, **(await life.validate(name, content)).as_json()}
