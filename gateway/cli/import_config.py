"""`nearhit import` turns the configuration of another gateway into one of nearhit, and reports each setting."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.cli.output import print_result
from gateway.cli.parser import Command, build, parser_type
from gateway.config.fields import http_url
from gateway.tools.importing.run import ImportOptions, import_litellm

OUT = Path("nearhit")


def register(command: Command) -> None:
    imported = command.add_command(
        "litellm",
        "Import config.yaml of LiteLLM's proxy.",
        run,
        "config.yaml",
        "proxy/config.yaml --out gateway --through http://127.0.0.1:4000/v1",
        about="The command writes config.yaml and policies/default.yaml, and loads them. It reports each setting of "
        "FILE with its line: carried over, changed in meaning, or without a counterpart and what to do instead. No key "
        "or password of FILE reaches the new files: they name environment variables. It reads no database.",
        fault="FILE is not readable, files exist already, or no model of FILE can be carried over",
    )
    imported.add_argument("file", metavar="FILE", type=Path, help="LiteLLM's configuration")
    imported.add_argument(
        "--out", metavar="DIR", type=Path, default=OUT, help="folder for the new files; default: %(default)s"
    )
    imported.add_argument("--overwrite", action="store_true", help="replace the files if they exist")
    imported.add_argument(
        "--through",
        metavar="URL",
        type=parser_type(http_url),
        help="base URL of the old proxy, for models whose provider has no counterpart",
    )


def run(arguments: argparse.Namespace) -> int:
    report = import_litellm(build(ImportOptions, arguments), os.environ)
    return print_result(arguments, report.as_json(), report.as_text())
