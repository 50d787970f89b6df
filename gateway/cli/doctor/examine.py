"""Every check in order: facts are fetched at once, findings come in the order of what depends on what."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from gateway.admin.policy_tests import disappointments
from gateway.cli.doctor import verdicts
from gateway.cli.doctor.findings import Finding, Report, fault
from gateway.cli.doctor.look_index import index
from gateway.cli.doctor.look_machine import (
    built,
    installed,
    locked,
    look_at_folder,
    look_at_machine,
    look_at_models,
)
from gateway.cli.doctor.look_network import GatewayFacts, look_at_backends, look_at_gateway
from gateway.cli.doctor.look_store import store
from gateway.config import Config
from gateway.config.errors import ConfigInvalid
from gateway.config.load import read_config, secrets_of
from gateway.config.policy.check import CheckResult, check
from gateway.config.policy.single_backend import upstream_config

# Of everything that asks others; each of them has a shorter limit of its own. What is read from this machine's disk
# has none, since a read cannot be called off.
LOOK_S = 15.0
STAND_IN = "absent"  # for a secret that is not set: it is never sent, as no look shows credentials to a backend
NEEDS_CONFIG = ("secrets", "embedding", "data_dir", "ports", "gateway", "store", "index", "backends", "limits")


async def examine(path: Path, environ: Mapping[str, str], upstream: str | None = None) -> Report:
    """`upstream`: instead of a file, as `nearhit serve --upstream` runs. Changes nothing. Takes at most `LOOK_S`
    and what this machine's disk takes."""
    absent = () if upstream is not None else read_config(path, environ).absent
    # A secret that is not set is a finding of its own, and no reason to leave out all the others.
    pretended = {**environ, **dict.fromkeys(absent, STAND_IN)}
    result, config = await asyncio.to_thread(_read, path, pretended, upstream)
    findings = list(verdicts.configuration(result))
    if config is not None:
        findings += verdicts.secrets(list(secrets_of(config)), absent)
        findings += await _examine_config(config, environ, pretended)
    findings.append(verdicts.clock(time.time(), built()))
    findings += verdicts.libraries(sys.version_info[:2], installed(), locked())
    return Report(tuple(findings), () if config is not None else NEEDS_CONFIG)


def _read(path: Path, environ: Mapping[str, str], upstream: str | None) -> tuple[CheckResult, Config | None]:
    if upstream is None:
        return check((), path, environ, disappointments), read_config(path, environ).config
    try:
        return CheckResult((), (), ()), upstream_config(upstream, environ)[0]
    except ConfigInvalid as invalid:
        return CheckResult(invalid.faults, (), ()), None


async def _examine_config(config: Config, environ: Mapping[str, str], pretended: Mapping[str, str]) -> list[Finding]:
    models = await asyncio.to_thread(look_at_models, config)
    folder = await asyncio.to_thread(look_at_folder, config.data_dir)
    machine = await asyncio.to_thread(look_at_machine, config.data_dir)
    token = environ.get(config.auth.admin_token_env or "")
    of_gateway, of_store, of_index, of_backends = await asyncio.gather(
        _bounded("gateway", _gateway(config, token)),
        _bounded("store", store(config, pretended, gateway_runs=folder.holder is not None)),
        _bounded("index", index(config, environ, gateway_runs=folder.holder is not None)),
        _bounded("backends", look_at_backends(config, pretended)),
    )
    return [
        *map(verdicts.model, models),
        *verdicts.data_dir(folder, config),
        *of_store,
        *of_index,
        *of_gateway,
        *of_backends,
        *verdicts.limits(machine, config),
    ]


async def _gateway(config: Config, token: str | None) -> list[Finding]:
    facts: GatewayFacts = await look_at_gateway(config, token)
    found = [verdicts.port(port) for port in facts.ports]
    return [*found, *verdicts.running(facts.ready, facts.stats, facts.refused)] if facts.runs else found


async def _bounded(what: str, look: Coroutine[Any, Any, list[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(LOOK_S):
            return await look
    except TimeoutError:
        return [fault(what, f"could not be looked at within {LOOK_S:g} s", "see whether this machine is overloaded")]
