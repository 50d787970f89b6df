"""`nearhit model`: the embedding model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gateway.adapters.onnx.model_files import default_model_dir
from gateway.cache.calibration import WEIGHTS
from gateway.cli.client import tell
from gateway.cli.progress import steps
from gateway.tools.embedding_model.fetch import fetch
from gateway.tools.embedding_model.triton_entries import write_repository


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
    text = "Write the embedding model and the cross-encoder into a Triton model repository."
    served = inner.add_parser("triton", parents=[shared], help=text, description=text)
    served.add_argument("repository", type=Path, metavar="FOLDER", help="the repository; made where it is not there")
    served.add_argument("--cpu", action="store_true", help="for a server without a GPU")
    served.add_argument("--model-dir", type=Path, default=None, help="where models are kept")
    served.add_argument("--build-env", type=Path, default=None, help="keep the build environment here")
    served.set_defaults(command=run_triton)


def run_fetch(arguments: argparse.Namespace) -> int:
    with steps(quiet=arguments.json) as step:
        directory = fetch(arguments.model_dir or default_model_dir(), step, arguments.build_env)
    return tell(arguments, {"model": str(directory)}, f"the model is in {directory}")


def run_triton(arguments: argparse.Namespace) -> int:
    models = arguments.model_dir or default_model_dir()
    with steps(quiet=arguments.json) as step:
        written = write_repository(
            arguments.repository, WEIGHTS, models, cpu=arguments.cpu, progress=step, keep_env=arguments.build_env
        )
    said = "\n".join(f"{name}: {folder}" for name, folder in written.items())
    return tell(arguments, {name: str(folder) for name, folder in written.items()}, said)
