"""What the gateway answers itself: feedback, jobs, files and batches. No policy is asked: what is answered later meets
one when it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from gateway.context import Handler, RequestContext
from gateway.messages import Response


class Endpoint(Protocol):
    def claims(self, request: RequestContext) -> bool:
        """By its head, whatever traces it."""

    async def answer(self, request: RequestContext) -> Response:
        """Of a request that it claims. Raises `Refused`."""


class ControlEndpoints:
    """Behind `Authenticate`: of a job only the tenant that made it is told that there is one."""

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
