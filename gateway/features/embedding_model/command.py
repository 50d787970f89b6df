"""`nearhit model` fetches the embedding model, builds others, and exports for Triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.adapters.onnx.model_files import default_model_dir
from gateway.cache.verifiers import WEIGHTS
from gateway.cli.output import print_result
from gateway.cli.parser import Command
from gateway.cli.progress import step_reporter
from gateway.features.embedding_model.build import build
from gateway.features.embedding_model.triton_models import write_repository
from gateway.model_build.fetch import fetch


def register(command: Command) -> None:
    fetched = command.add_command(
        "fetch",
        "Fetch, export and check the embedding model.",
        run_fetch,
        "",
        "--build-env .venv-build",
        about="The command downloads the published weights (84 MB), exports them to int8 ONNX with tools that it then "
        "removes (19 MB), and compares the result with the original. It then distils static vectors from the model. "
        "It takes some 15 s and the download, and does nothing if all that exists unchanged.",
    )
    built = command.add_command(
        "build",
        "Make an embedding model of any sentence-transformers model.",
        run_build,
        "models/all-mpnet-base-v2",
        "models/multilingual-e5-small --name e5 --build-env .venv-build",
        about="The command converts a folder, or a model of the hub, to int8 ONNX in a temporary environment "
        "(1.6 GB, one minute), and compares the result with the original. Pooling, dense layers, prompt, longest input "
        "and lower-casing are those of its files. `embedder.model` then takes its name.",
    )
    built.add_argument("source", metavar="PATH_OR_NAME", help="folder of the model, or its name on the hub")
    built.add_argument("--name", default=None, help="name for the configuration; default: that of the folder")
    built.add_argument("--prompt", default=None, help="text in front of every question; default: as its files say")
    served = command.add_command(
        "triton",
        "Write the embedding model and the cross-encoder into a Triton model repository.",
        run_triton,
        "models",
        "models --cpu --build-env .venv-build",
        about="The command exports both to float32 ONNX, in a temporary environment (1.6 GB, one minute). Each one "
        "becomes the next version in the repository, unless it equals the newest. An existing config.pbtxt is kept.",
    )
    served.add_argument("repository", type=Path, metavar="FOLDER", help="the repository; created if it does not exist")
    served.add_argument("--cpu", action="store_true", help="for a server without a GPU")
    for each, kept in ((fetched, "weights"), (built, "build environment"), (served, "build environment")):
        each.add_argument("--model-dir", type=Path, default=None, help="folder of the models")
        each.add_argument("--build-env", type=Path, default=None, help=f"keep the {kept} in this folder")


def run_fetch(arguments: argparse.Namespace) -> int:
    with step_reporter(quiet=arguments.json) as step:
        directory = fetch(arguments.model_dir or default_model_dir(), step, arguments.build_env)
    return print_result(arguments, {"model": str(directory)}, f"the model is in {directory}")


def run_build(arguments: argparse.Namespace) -> int:
    models = arguments.model_dir or default_model_dir()
    with step_reporter(quiet=arguments.json) as step:
        manifest = build(
            arguments.source, arguments.name, models, step, prompt=arguments.prompt, keep_env=arguments.build_env
        )
    name = manifest["model"]
    facts = {key: manifest[key] for key in ("dimension", "reads", "shared_part", "cosine_agreement")}
    text = f"the model is in {models / name}: use it with `embedder: {{adapter: onnx, model: {name}}}`"
    return print_result(arguments, {"model": str(models / name), **facts}, text)


def run_triton(arguments: argparse.Namespace) -> int:
    models = arguments.model_dir or default_model_dir()
    with step_reporter(quiet=arguments.json) as step:
        written = write_repository(
            arguments.repository, WEIGHTS, models, cpu=arguments.cpu, progress=step, keep_env=arguments.build_env
        )
    text = "\n".join(f"{name}: {folder}" for name, folder in written.items())
    return print_result(arguments, {name: str(folder) for name, folder in written.items()}, text)
