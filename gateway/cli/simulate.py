"""`nearhit simulate`: what recorded traffic would have come to under another policy."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from gateway.adapters.onnx.model_files import ModelMissing
from gateway.admin.policy_validation import staged, staged_folder
from gateway.cache.model_factory import build_encoder
from gateway.cli.client import tell
from gateway.cli.progress import waiting
from gateway.config import Config
from gateway.config.errors import ConfigInvalid
from gateway.config.load import load_config
from gateway.config.policy.load import read_texts
from gateway.config.policy.model import Policy
from gateway.errors import StartFailed
from gateway.tools.simulation.report import as_text
from gateway.tools.simulation.worker_process import done, job_of


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `simulate`. `commands`: argparse's subparsers."""
    text = "Say what recorded traffic would have come to under another policy, beside the one in force."
    command = commands.add_parser("simulate", parents=[shared], help=text, description=text)
    command.add_argument("--policy", metavar="PATH", type=Path, required=True, help="the other one: a file or a folder")
    command.add_argument(
        "--traffic",
        metavar="WHAT",
        default="last-24h",
        help="last-24h, last-7d, ... or segments; default: last-24h",
    )
    command.set_defaults(command=run_simulate)


def run_simulate(arguments: argparse.Namespace) -> int:
    """Raises `ConfigInvalid` or `TrafficUnreadable`."""
    config = load_config(arguments.config, os.environ)
    present, new = staged_folder(config.policies, config), _policy(arguments.policy, config)
    job = job_of(config, present, new, arguments.traffic, time.time(), _embedder(config))
    with waiting("replaying", quiet=arguments.json):
        said = done(job).as_json()
    return tell(arguments, said, as_text(said))


def _policy(path: Path, config: Config) -> Policy:
    """A whole policy, of one file or of a folder."""
    if path.is_dir():
        return staged_folder(path, config)
    texts, faults = read_texts([path])
    if faults:
        raise ConfigInvalid(faults)
    return staged(texts, config)


def _embedder(config: Config) -> str | None:
    """The fingerprint of the model in use; None where it is not on this machine, or its server is away."""
    try:
        return build_encoder(config.embedder).fingerprint
    except (ModelMissing, StartFailed):
        return None
