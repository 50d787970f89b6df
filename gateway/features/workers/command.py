"""`nearhit restart` replaces the workers of a gateway on this machine."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.cli.output import FAULT, GOOD, print_result
from gateway.cli.parser import Command
from gateway.config.load import load_config
from gateway.errors import StartupError
from gateway.features.workers.supervisor import status_file

TIMEOUT_S, POLL_S = 600.0, 0.1  # waits for a hand-over


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--config /etc/nearhit/config.yaml",
        about="The command needs a gateway on this machine with server.workers above 1. It signals the supervisor, and "
        "returns when every worker is a new process. server.listen, server.admin, server.workers and the embedded "
        "store change only when the supervisor itself restarts.",
        fault="a new worker did not start to listen, and the old ones stay",
    )


def run(arguments: argparse.Namespace) -> int:
    """Replace the workers. Raises `StartupError` if no gateway with workers runs."""
    done = restart(load_config(arguments.config, os.environ).data_dir)
    failed = int(done["failed"])
    text = f"a new worker did not start to listen, {failed} old ones stay: see the gateway's log"
    print_result(arguments, done, text if failed else "all workers are replaced")
    return FAULT if failed else GOOD


def restart(data_dir: Path) -> Mapping[str, Any]:
    """Signal the supervisor, and wait until it has handed over."""
    before = _read_status(data_dir)
    os.kill(before["pid"], signal.SIGHUP)
    started_at = time.monotonic()
    while time.monotonic() - started_at < TIMEOUT_S:
        now = _read_status(data_dir)
        if now["generation"] > before["generation"]:
            return now
        time.sleep(POLL_S)
    raise StartupError(f"the gateway did not replace its workers within {TIMEOUT_S:g} s: see its log")


def _read_status(data_dir: Path) -> dict[str, Any]:
    path = status_file(data_dir)
    try:
        note: dict[str, Any] = json.loads(path.read_text())
        os.kill(note["pid"], 0)
    except (OSError, ValueError, KeyError):
        raise StartupError(
            f"no gateway with workers runs on {data_dir}: expected one with server.workers above 1"
        ) from None
    return note
