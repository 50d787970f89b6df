"""Structured logs, one JSON object a line, and warnings that repeat at most once a second. Prompts and secrets are
never fields."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import orjson

LOG = logging.getLogger("nearhit")

IN_CALLBACK = "Exception in callback"  # what asyncio and uvloop say first, before they write the callback out


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),  # as in the lines of requests: whoever collects both has one type
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            # The type and the places, not the message: it may quote what a client sent.
            line["error"] = record.exc_info[0].__name__
            line["traceback"] = _frames(record)
        return orjson.dumps(line, default=str).decode()


def _frames(record: logging.LogRecord) -> list[str]:
    frames = []
    entry = record.exc_info[2] if record.exc_info else None
    while entry is not None:
        code = entry.tb_frame.f_code
        frames.append(f"{code.co_filename.rpartition('/gateway/')[2]}:{entry.tb_lineno} {code.co_name}")
        entry = entry.tb_next
    return frames[-12:]


def configure_logging(level: str, stream: TextIO = sys.stderr) -> None:
    """To be called within the event loop, whose faults are then said as all others are."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The HTTP library quotes malformed header lines, credentials included, in what it logs.
    logging.getLogger("nearhit.http").setLevel(logging.CRITICAL)
    # The exporter of traces has lines for each batch that fails: nearhit.traces has one a second.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    logging.getLogger("nearhit.audit").setLevel(logging.INFO)  # at any level: who removed what is not left out
    for noisy in ("watchfiles", "asyncio", "aiohttp", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    asyncio.get_running_loop().set_exception_handler(log_unhandled)


def log_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception that nobody waits for. The loop's own handler writes callbacks and tasks out with all that they
    hold: requests with their keys, questions and answers."""
    message = str(context.get("message", ""))
    LOG.error(IN_CALLBACK if message.startswith(IN_CALLBACK) else message, exc_info=context.get("exception"))


# Warnings of what fails with every request while it fails: a line a second says as much as five thousand.
EVERY_S = 1.0


class RateLimitedLog:
    """The first one is said at once; then at most one in `EVERY_S`, with how many `more` there were since the last."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next = float("-inf")
        self._suppressed = 0

    def warn(self, log: logging.Logger, message: str, fields: Mapping[str, object]) -> None:
        now = self._now()
        if now < self._next:
            self._suppressed += 1
            return
        more = {"more": self._suppressed} if self._suppressed else {}
        self._next, self._suppressed = now + EVERY_S, 0
        log.warning(message, extra={"fields": {**fields, **more}})
