"""The command line: `nearhit COMMAND`. `gateway/cli/commands.py` lists the commands; this module maps their outcome to
an exit code.

Exit codes: 0 success, 1 fault found, 2 usage error, 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing
from gateway.adapters.system.child_process import ChildFailed
from gateway.cli.commands import build_parser
from gateway.cli.output import FAULT, GOOD, INTERRUPTED, USAGE, WrongUsage
from gateway.cli.parser import Command
from gateway.config.errors import ConfigInvalid
from gateway.errors import GatewayError, StartupError

__all__ = ["build_parser", "main"]

# Failures that an operator can cause or meet. The text of each is one clear sentence.
EXPECTED = (StartupError, ChildFailed, ModelMissing, ModelCorrupt, GatewayError)


def main(argv: Sequence[str] | None = None) -> int:
    # onnxruntime reads this variable when it is imported, which happens later. Without it onnxruntime writes a device
    # id and an event database to the home directory, and can send the events. A value that the operator has set stays.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    given = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in given
    try:
        arguments = _imported(given).parse_args(given)
        as_json = getattr(arguments, "json", False)
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ConfigInvalid as error:
        faults = [fault.as_json() for fault in error.faults]
        return _failed("\n".join(map(str, error.faults)), as_json, FAULT, {"faults": faults})
    except WrongUsage as error:
        return _failed(f"nearhit: {error}", as_json, USAGE)
    except EXPECTED as error:
        return _failed(f"nearhit: {error}", as_json, FAULT)
    except BrokenPipeError:  # the reader has closed the pipe: drop what is still unflushed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except KeyboardInterrupt:
        return INTERRUPTED


def _imported(given: Sequence[str]) -> Command:
    """Build the parser, and so import the modules of the command.

    Garbage collection is off during the imports, because scanning the growing heap takes a fifth of their time. For
    `serve`, on a busy machine, they take 1.0 s of CPU instead of 1.26 s. Afterwards the modules are frozen, so that no
    collection scans them.
    """
    gc.disable()
    try:
        return build_parser(given)
    finally:
        gc.freeze()
        gc.enable()


def _failed(text: str, as_json: bool, code: int, more: Mapping[str, Any] | None = None) -> int:
    """Print the error to standard error; with --json, also as the JSON object that ends standard output."""
    print(text, file=sys.stderr)
    if as_json:
        print(orjson.dumps({"error": text.removeprefix("nearhit: "), **(more or {})}).decode())
    return code


if __name__ == "__main__":
    sys.exit(main())
