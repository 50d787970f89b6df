"""Writes structured logs, one JSON object a line, and limits repeated warnings to one a second. No field contains
prompts or secrets."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import orjson

LOG = logging.getLogger("nearhit")

IN_CALLBACK = "Exception in callback"  # how asyncio and uvloop begin the message, before they print the callback


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),  # the same type as in the access log
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            # The type and the frames, not the message: it may quote a request.
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
    """Set up logging. Call it inside the event loop, so that it also logs the loop's unhandled exceptions."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The HTTP library logs malformed header lines, credentials included.
    logging.getLogger("nearhit.http").setLevel(logging.CRITICAL)
    # The trace exporter logs every batch that fails; nearhit.traces logs one line a second.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    logging.getLogger("nearhit.audit").setLevel(logging.INFO)  # at any level: the audit trail must be complete
    # Those of clouds log what they send and get, and each source that they try. The reason for a failure is logged.
    for library in ("azure", "botocore", "google", "msal"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    for noisy in ("watchfiles", "asyncio", "aiohttp", "faiss", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    asyncio.get_running_loop().set_exception_handler(log_unhandled)


def log_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no task awaits. The loop's default handler would print callbacks and tasks with all their
    data: requests with keys, questions and answers."""
    message = str(context.get("message", ""))
    LOG.error(IN_CALLBACK if message.startswith(IN_CALLBACK) else message, exc_info=context.get("exception"))


EVERY_S = 1.0  # for failures that would log one line for every request


class RateLimitedLog:
    """Logs the first warning at once, then at most one in `EVERY_S`. The field `more` counts those left out since."""

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
