"""`nearhit model`: the embedding model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gateway.commands.asking import tell
from gateway.commands.progress import steps
from gateway.modelkit.fetch import fetch
from gateway.modelkit.files import default_model_dir


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `model` and its command. `commands`: argparse's subparsers."""
    text = "The embedding model."
    model = commands.add_parser("model", help=text, description=text)
    inner = model.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "Fetch, export and check the embedding model."
    fetched = inner.add_parser("fetch", parents=[shared], help=text, description=text)
    fetched.add_argument("--model-dir", type=Path, default=None, help="where models are kept")
    fetched.add_argument("--build-env", type=Path, default=None, help="keep the build environment here")
    fetched.set_defaults(command=run_fetch)


def run_fetch(arguments: argparse.Namespace) -> int:
    with steps(quiet=arguments.json) as step:
        directory = fetch(arguments.model_dir or default_model_dir(), step, arguments.build_env)
    return tell(arguments, {"model": str(directory)}, f"the model is in {directory}")
