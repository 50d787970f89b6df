"""`nearhit restart`: a gateway with workers goes over to new processes, without a request being lost."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.cli.client import FAULT, GOOD, tell
from gateway.cli.workers.note import note_of
from gateway.config.load import load_config
from gateway.errors import StartFailed

TIMEOUT_S, POLL_S = 600.0, 0.1


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    text = "Go over to new worker processes, with the configuration as it is now, without losing a request."
    command = commands.add_parser("restart", parents=[shared], help=text, description=text)
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises `StartFailed` where there is nothing to restart."""
    done = restart(load_config(arguments.config, os.environ).data_dir)
    failed = int(done["failed"])
    text = f"a new worker did not come to listen, {failed} old ones stay: see the gateway's log"
    tell(arguments, done, text if failed else "handed over to new workers")
    return FAULT if failed else GOOD


def restart(data_dir: Path) -> Mapping[str, Any]:
    """Tells the supervisor, and waits until it has handed over."""
    before = _noted(data_dir)
    os.kill(before["pid"], signal.SIGHUP)
    begun = time.monotonic()
    while time.monotonic() - begun < TIMEOUT_S:
        now = _noted(data_dir)
        if now["generation"] > before["generation"]:
            return now
        time.sleep(POLL_S)
    raise StartFailed(f"the gateway has not handed over within {TIMEOUT_S:g} s: see its log")


def _noted(data_dir: Path) -> dict[str, Any]:
    path = note_of(data_dir)
    try:
        note: dict[str, Any] = json.loads(path.read_text())
        os.kill(note["pid"], 0)
    except (OSError, ValueError, KeyError):
        raise StartFailed(
            f"no gateway with workers runs on {data_dir}: expected one that was started with server.workers above 1"
        ) from None
    return note
