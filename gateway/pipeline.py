"""How stages are put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from gateway.messages import Request, Response

Handler = Callable[[Request], Awaitable[Response]]
"""Answers a request."""


class Stage(Protocol):
    """Answers itself, or asks what stands behind it, once or more often, and may look at what comes back. One that has
    nothing to do with a request returns `forward(request)` as it is, and so costs no coroutine."""

    def __call__(self, request: Request, forward: Handler) -> Awaitable[Response]: ...


def compose(stages: Sequence[Stage], endpoint: Handler) -> Handler:
    """One handler of `stages`, outermost first, with `endpoint` behind the last."""
    handler = endpoint
    for stage in reversed(stages):
        handler = partial(stage, forward=handler)
    return handler
