"""What follows from the head of a request alone."""

from __future__ import annotations

from typing import Any


class HeadMemo:
    """Results that steps derive from method, path, query and those headers that do not trace a request. Clients send
    the same head over and over: requests with the same head share this object, and each step derives its part once.
    None: not derived yet."""

    __slots__ = ("bounded", "claimed", "tenant", "upstream")

    def __init__(self) -> None:
        self.tenant: str | None = None  # whose credentials these are, where a backend judges them
        self.claimed: bool | None = None  # whether an endpoint of the gateway's own answers it
        self.bounded: bool | None = None  # whether it states a latency budget or a priority
        self.upstream: dict[Any, Any] = {}  # by backend: its form there
