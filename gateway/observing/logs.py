"""Structured logs: one JSON object a line on standard error. Prompts and secrets are never fields of it."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import orjson

from gateway.observing.decimals import thousandths


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": thousandths(record.created),  # as in the lines of requests: whoever collects both has one type
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            # The type and the places, not the message: it may quote what a client sent.
            line["error"] = record.exc_info[0].__name__
            line["traceback"] = _places(record)
        return orjson.dumps(line, default=str).decode()


def _places(record: logging.LogRecord) -> list[str]:
    places = []
    step = record.exc_info[2] if record.exc_info else None
    while step is not None:
        code = step.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/gateway/')[2]}:{step.tb_lineno} {code.co_name}")
        step = step.tb_next
    return places[-12:]


def set_up(level: str, stream: TextIO = sys.stderr) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The HTTP library quotes malformed header lines, credentials included, in what it logs.
    logging.getLogger("nearhit.http").setLevel(logging.CRITICAL)
    logging.getLogger("nearhit.audit").setLevel(logging.INFO)  # at any level: who removed what is not left out
    for noisy in ("watchfiles", "asyncio", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
