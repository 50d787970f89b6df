"""Holds limits of requests that count what the caches answer, too: a route's, or an API key's."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext, resolved
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.routing.limit_evaluation import EVERYWHERE, Asked, headers_of, requests_of, with_headers
from gateway.routing.limit_grants import own_of, take_limits, whose
from gateway.routing.rate_limiter import Quotas


class CountRequests:
    def __init__(self, inner: Handler, route: Route, quotas: Quotas, telemetry: Telemetry) -> None:
        self._inner = inner
        self._route = route
        self._quotas = quotas
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        own, key = own_of(request)
        asked = requests_of(self._route.name, self._route.limits, whose(request)) + requests_of(EVERYWHERE, own, key)
        if not asked:
            return self._inner(request)
        request.require_capacity()
        return self._counted(request, asked)

    async def _counted(self, request: RequestContext, asked: Sequence[Asked]) -> Response:
        grant = await take_limits(request, self._route.name, asked, self._quotas, self._telemetry)
        response = await resolved(self._inner(request))
        request.served = None  # the exact fast path would answer the next one without counting it
        headers = with_headers(response.headers, headers_of(asked, grant.taken))
        return Response(response.status, headers, response.body, response.provenance)
