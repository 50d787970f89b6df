"""Outermost on routes that record: notes what the request is, before anything is decided of it."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.messages import Request, Response
from gateway.pipeline import Handler
from gateway.policy.model import Route
from gateway.traffic.recorder import Recorder


class Record:
    """What became of it is told by the `Observer`, which sees the fast path's answers too."""

    def __init__(self, recorder: Recorder, route: Route) -> None:
        self._recorder = recorder
        self._route = route

    def __call__(self, request: Request, forward: Handler) -> Awaitable[Response]:
        request.trace.facts = self._recorder.facts(request, self._route)
        return forward(request)
