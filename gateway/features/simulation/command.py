"""`nearhit simulate` replays recorded traffic under another policy."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from gateway.adapters.onnx.model_files import ModelMissing
from gateway.admin.policy_manager import check_folder, check_policy
from gateway.cache.model_factory import build_encoder
from gateway.cli.output import print_result
from gateway.cli.parser import Command
from gateway.cli.progress import spinner
from gateway.config import Config
from gateway.config.errors import ConfigInvalid
from gateway.config.load import load_config
from gateway.config.policy.load import read_texts
from gateway.config.policy.model import Policy
from gateway.errors import StartupError
from gateway.features.simulation.report import as_text
from gateway.features.simulation.worker_process import build_job, run_job


def register(command: Command) -> None:
    command.define(
        run,
        "--policy new.yaml --traffic last-24h",
        "--policy policies.new --traffic last-90m --json",
        about="The command replays the traffic that routes with `record: on` have recorded. It makes the gateway's own "
        "decisions twice: under the policy in force, and under the other one. Nothing is sent anywhere.",
        fault="the policy has faults, or there is no traffic to replay",
    )
    command.add_argument(
        "--policy", metavar="PATH", type=Path, required=True, help="the other policy: a file or a folder"
    )
    text = "last-24h, last-7d, ... or paths of segments; default: last-24h"
    command.add_argument("--traffic", metavar="WHAT", default="last-24h", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison. Raises `ConfigInvalid` or `TrafficUnreadable`."""
    config = load_config(arguments.config, os.environ)
    present, new = check_folder(config.policies, config), _policy(arguments.policy, config)
    job = build_job(config, present, new, arguments.traffic, time.time(), _embedder(config))
    with spinner("replaying", quiet=arguments.json):
        document = run_job(job).as_json()
    return print_result(arguments, document, as_text(document))


def _policy(path: Path, config: Config) -> Policy:
    """Read a complete policy from a file or a folder."""
    if path.is_dir():
        return check_folder(path, config)
    texts, faults = read_texts([path])
    if faults:
        raise ConfigInvalid(faults)
    return check_policy(texts, config)


def _embedder(config: Config) -> str | None:
    """Return the fingerprint of the configured model; None if its files or its server are missing."""
    try:
        return build_encoder(config.embedder).fingerprint
    except (ModelMissing, StartupError):
        return None
