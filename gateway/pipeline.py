"""How stages are put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gateway.messages import Request, Response

Handler = Callable[[Request], Awaitable[Response]]
"""Answers a request."""


class Stage(Protocol):
    """Answers itself, or asks what stands behind it, once or more often, and may look at what comes back."""

    async def __call__(self, request: Request, forward: Handler) -> Response: ...


def compose(stages: Sequence[Stage], endpoint: Handler) -> Handler:
    """One handler of `stages`, outermost first, with `endpoint` behind the last."""
    handler = endpoint
    for stage in reversed(stages):
        handler = _bind(stage, handler)
    return handler


def _bind(stage: Stage, forward: Handler) -> Handler:
    def handle(request: Request) -> Awaitable[Response]:
        return stage(request, forward)

    return handle
