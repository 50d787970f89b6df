"""The command line: `nearhit COMMAND`. What a command is, is in `gateway/cli/parser.py`; here is how it ends.

Exit code 0 good, 1 fault found, 2 usage, 130 interrupted."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing
from gateway.adapters.system.child_process import ChildFailed
from gateway.cli.admin_client import WrongUsage
from gateway.cli.output import FAULT, GOOD, INTERRUPTED, USAGE
from gateway.cli.parser import Command, build_parser
from gateway.config.errors import ConfigInvalid
from gateway.errors import GatewayError, StartupError
from gateway.tools.demo.errors import DemoUnavailable
from gateway.tools.embedding_model.environment import FetchFailed

__all__ = ["build_parser", "main"]

# What may go wrong for an operator, each with one clear sentence as its text.
EXPECTED = (StartupError, ChildFailed, ModelMissing, ModelCorrupt, FetchFailed, DemoUnavailable, GatewayError)


def main(argv: Sequence[str] | None = None) -> int:
    # onnxruntime looks at this when it is imported, which is later. Without it there is a device id and a database of
    # events, with means to send them, in the home directory. Who sets it keeps what he has set.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = _imported(given).parse_args(given)
    as_json = getattr(arguments, "json", False)
    try:
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
    except BrokenPipeError:  # whoever read has seen enough; what is still to be flushed goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except KeyboardInterrupt:
        return INTERRUPTED


def _imported(given: Sequence[str]) -> Command:
    """The parser, and with it the command's modules. They stay: looking through them for cycles over and over while
    they come takes a fifth of the imports' time (1.26 s of CPU instead of 1.0 for `serve`, on a busy machine)."""
    gc.disable()
    try:
        return build_parser(given)
    finally:
        gc.freeze()
        gc.enable()


def _failed(text: str, as_json: bool, code: int, more: Mapping[str, Any] | None = None) -> int:
    """For people on standard error; with --json also as the object that standard output ends with."""
    print(text, file=sys.stderr)
    if as_json:
        print(orjson.dumps({"error": text.removeprefix("nearhit: "), **(more or {})}).decode())
    return code


if __name__ == "__main__":
    sys.exit(main())
