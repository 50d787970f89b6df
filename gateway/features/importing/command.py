"""`nearhit import` turns the configuration of another gateway into one of nearhit, and reports each setting."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.cli.output import print_result
from gateway.cli.parser import Command, build, parser_type
from gateway.config.fields import http_url
from gateway.features.importing.run import ImportOptions, import_litellm, import_semantic_router

OUT = Path("nearhit")
ABOUT = (
    "The command writes config.yaml and policies/default.yaml, and loads them. It reports each setting of FILE with "
    "its line: carried over, changed in meaning, or without a counterpart and what to do instead. No key or password "
    "of FILE reaches the new files: they name environment variables."
)
FAULT = "FILE is not readable, files exist already, or no model of FILE can be carried over"


def register(command: Command) -> None:
    litellm = command.add_command(
        "litellm",
        "Import config.yaml of LiteLLM's proxy.",
        run_litellm,
        "config.yaml",
        "proxy/config.yaml --out gateway --through http://127.0.0.1:4000/v1",
        about=f"{ABOUT} It reads no database.",
        fault=FAULT,
    )
    _add_arguments(litellm, "LiteLLM's configuration")
    litellm.add_argument(
        "--through",
        metavar="URL",
        type=parser_type(http_url),
        help="base URL of the old proxy, for models whose provider has no counterpart",
    )
    semantic_router = command.add_command(
        "vllm-semantic-router",
        "Import config.yaml of vLLM Semantic Router, version v0.3.",
        run_semantic_router,
        "config.yaml",
        "router/config.yaml --out gateway",
        about=f"{ABOUT} Decisions by difficulty become tiers; those by topic are left out.",
        fault=FAULT,
    )
    _add_arguments(semantic_router, "vLLM Semantic Router's configuration")


def _add_arguments(command: Command, file: str) -> None:
    command.add_argument("file", metavar="FILE", type=Path, help=file)
    command.add_argument(
        "--out", metavar="DIR", type=Path, default=OUT, help="folder for the new files; default: %(default)s"
    )
    command.add_argument("--overwrite", action="store_true", help="replace the files if they exist")


def run_litellm(arguments: argparse.Namespace) -> int:
    report = import_litellm(build(ImportOptions, arguments), os.environ)
    return print_result(arguments, report.as_json(), report.as_text())


def run_semantic_router(arguments: argparse.Namespace) -> int:
    options = ImportOptions(arguments.file, arguments.out, arguments.overwrite)
    report = import_semantic_router(options, os.environ)
    return print_result(arguments, report.as_json(), report.as_text())
