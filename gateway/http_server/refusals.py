"""The last answer on a connection: to what cannot be read, or could not be handled."""

from __future__ import annotations

from typing import NamedTuple

from gateway.dialects.openai import OpenAI


class Refused(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]
    data: bytes


def refused(status: int, message: str) -> Refused:
    body = OpenAI().error("invalid_request_error" if status < 500 else "internal_error", message)
    return Refused(status, (("Content-Type", "application/json"), ("Server", "nearhit")), body)
