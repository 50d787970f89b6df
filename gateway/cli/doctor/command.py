"""The command `nearhit doctor`: it collects facts in parallel, and reports findings in the order of dependence."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gateway.admin.policy_tests import failed_expectations
from gateway.cli.doctor import MAX_FAULTS_SHOWN, Finding, Report, fault, machine, network, ok, store, warning
from gateway.cli.output import FAULT, GOOD, pluralise, print_result
from gateway.cli.parser import Command, add_addresses, with_addresses
from gateway.config import Config
from gateway.config.errors import ConfigInvalid, KeyPath, render_path
from gateway.config.load import read_config, secret_variables
from gateway.config.policy.check import CheckResult, check
from gateway.config.policy.load import load_policy
from gateway.config.policy.single_backend import upstream_config
from gateway.feature import Unsupported, features_of

# Limit of each check that uses the network; single requests have shorter limits. Reads from the local disk have no
# limit, since a read cannot be cancelled.
CHECK_TIMEOUT_S = 15.0
PLACEHOLDER = "absent"  # for a secret that cannot be used; never sent, since no check sends credentials to a backend
NEEDS_CONFIG = ("secrets", "embedding", "data_dir", "ports", "gateway", "store", "index", "backends", "limits")


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--upstream https://api.openai.com/v1",
        about="Run it in the gateway's folder and with its environment; the gateway need not run. Each finding says "
        "what was found and, if you have to act, how. It takes some seconds, and each check of a server at most 15.",
        fault="there is a fault; with warnings alone the exit code is 0",
    )
    command.add_argument(
        "--upstream", metavar="URL", help="check `nearhit serve --upstream URL`, without a configuration file"
    )
    add_addresses(command)


def run(arguments: argparse.Namespace) -> int:
    environ = with_addresses(os.environ, arguments)
    report = asyncio.run(examine(arguments.config, environ, arguments.upstream))
    print_result(arguments, report.as_json(), report.as_text())
    return GOOD if report.is_good else FAULT


async def examine(path: Path, environ: Mapping[str, str], upstream: str | None = None) -> Report:
    """Run every check, and change nothing.

    With `upstream` it checks `nearhit serve --upstream` instead of a file. It takes at most `CHECK_TIMEOUT_S`, besides
    the time for reads from the local disk.
    """
    unusable = {} if upstream is not None else read_config(path, environ).unusable
    # Such a secret is a finding, and does not prevent the other checks.
    placeholder_environ = {**environ, **dict.fromkeys(unusable, PLACEHOLDER)}
    result, config = await asyncio.to_thread(_read, path, placeholder_environ, upstream)
    findings = list(configuration(result))
    if config is not None:
        findings += secrets(list(secret_variables(config)), unusable)
        findings += await _examine_config(config, environ, placeholder_environ)
    findings.append(machine.clock(time.time(), machine.build_time()))
    findings += machine.libraries(sys.version_info[:2], machine.installed_versions(), machine.locked())
    return Report(tuple(findings), () if config is not None else NEEDS_CONFIG)


def _read(path: Path, environ: Mapping[str, str], upstream: str | None) -> tuple[CheckResult, Config | None]:
    if upstream is None:
        return check((), path, environ, failed_expectations), read_config(path, environ).config
    try:
        return CheckResult((), (), ()), upstream_config(upstream, environ)[0]
    except ConfigInvalid as invalid:
        return CheckResult(invalid.faults, (), ()), None


async def _examine_config(
    config: Config, environ: Mapping[str, str], placeholder_environ: Mapping[str, str]
) -> list[Finding]:
    models = await asyncio.to_thread(machine.inspect_models, config)
    folder = await asyncio.to_thread(machine.inspect_folder, config.data_dir)
    limits = await asyncio.to_thread(machine.inspect_machine, config.data_dir)
    token = environ.get(config.auth.admin_token_env or "", "").rstrip() or None
    of_gateway, of_store, of_index, of_backends = await asyncio.gather(
        _with_timeout("gateway", _gateway(config, token)),
        _with_timeout("store", store.store(config, placeholder_environ, gateway_runs=folder.holder is not None)),
        _with_timeout("index", store.index(config, environ, gateway_runs=folder.holder is not None)),
        _with_timeout("backends", network.inspect_backends(config, placeholder_environ)),
    )
    return [
        *map(machine.model, models),
        *machine.data_dir(folder, config),
        *import_module("gateway.features.jobs.doctor").job_key(config),
        *await asyncio.to_thread(lambda: list(import_module("gateway.features.prices.doctor").unpriced(config))),
        *of_store,
        *of_index,
        *of_gateway,
        *of_backends,
        *machine.limits(limits, config),
        *await asyncio.to_thread(lambda: list(feature_findings(config))),
    ]


def feature_findings(config: Config) -> Iterator[Finding]:
    """Yield the concerns of the features that the policy uses. `nearhit check` has the faults of a policy."""
    try:
        policy = load_policy(config.policies, config)
    except ConfigInvalid:
        return
    for route in policy.routes:
        for feature in features_of(route):
            concerns = feature.doctor(route)
            if not isinstance(concerns, Unsupported):
                check = f"route {route.name}: {feature.key}"
                yield from (warning(check, concern.found, concern.todo) for concern in concerns)


async def _gateway(config: Config, token: str | None) -> list[Finding]:
    facts = await network.inspect_gateway(config, token)
    found = [network.port(port) for port in facts.ports]
    return [*found, *network.running(facts.ready, facts.stats, facts.refused)] if facts.is_running else found


async def _with_timeout(what: str, probe: Coroutine[Any, Any, list[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await probe
    except TimeoutError:
        return [
            fault(what, f"could not be checked within {CHECK_TIMEOUT_S:g} s", "see whether this machine is overloaded")
        ]


def configuration(result: CheckResult) -> Iterator[Finding]:
    for problem in result.faults[:MAX_FAULTS_SHOWN]:
        yield fault("configuration", str(problem), "change that line, then run `nearhit check` to confirm")
    if len(result.faults) > MAX_FAULTS_SHOWN:
        yield fault(
            "configuration",
            f"{len(result.faults) - MAX_FAULTS_SHOWN} more faults",
            "run `nearhit check`, which lists them all",
        )
    for problem in result.warnings[:MAX_FAULTS_SHOWN]:
        yield warning("configuration", str(problem), "change that line, unless it is intended")
    if not result.faults:
        yield ok("configuration", f"{pluralise(len(result.files), 'file') if result.files else 'no files'}, no faults")


def secrets(named: Sequence[tuple[KeyPath, str]], unusable: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the secrets are set.

    `named` has each setting that names a variable, with that name. `unusable` has variables, with what is wrong with
    each.
    """
    for path, name in named:
        if name in unusable:
            found = f"{render_path(path)} names the environment variable {name}, which {unusable[name]}"
            yield fault("secrets", found, f"set {name} in the gateway's environment (systemd: EnvironmentFile)")
    there = sorted({name for _, name in named} - unusable.keys())
    if there:
        yield ok("secrets", f"set: {', '.join(there)}")
    elif not named:
        yield ok("secrets", "the configuration names no secrets")
