"""Answers the requests that go to the gateway itself: feedback, jobs, files and batches. No policy applies to them; a
job meets the policy when it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from gateway.context import Handler, RequestContext
from gateway.messages import Response


class Endpoint(Protocol):
    def claims(self, request: RequestContext) -> bool:
        """Return whether this endpoint answers the request. Decide by its head, without the headers that trace it."""

    async def answer(self, request: RequestContext) -> Response:
        """Answer a request that this endpoint claims. Raise `GatewayError`."""


class ControlEndpoints:
    """Hands requests to the endpoint that claims them. It sits behind `Authenticate`, so that only the tenant that made
    a job learns that it exists."""

    def __init__(self, inner: Handler, endpoints: Sequence[Endpoint]) -> None:
        self._inner = inner
        self._endpoints = endpoints

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        head = request.head
        if head.is_control_request is None:
            head.is_control_request = any(endpoint.claims(request) for endpoint in self._endpoints)
        if not head.is_control_request:
            return self._inner(request)
        request.require_capacity()
        return next(endpoint for endpoint in self._endpoints if endpoint.claims(request)).answer(request)
