"""Turns errors into responses in the protocol of the client, and sheds load above `server.max_inflight`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from gateway.calls import Dialect
from gateway.context import Handler, RequestContext
from gateway.errors import BackendOverloaded, GatewayError, TooManyInflight
from gateway.messages import FullBody, Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict
from gateway.priority import ShedReason


class Inflight:
    """Counts the requests that wait for something, over all ports of the gateway. `limit` is `server.max_inflight`. The
    server counts a request when it creates a task for it; answers from memory need no task."""

    __slots__ = ("count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    @property
    def full(self) -> bool:
        """Whether the next request has to be refused."""
        return self.count >= self.limit


LOG = logging.getLogger("nearhit")

ErrorDialect = Callable[[str, str, Mapping[str, str]], Dialect]
"""Returns the dialect of an error response if no step has found one yet, from method, path and headers."""


class ErrorBoundary:
    """Turns exceptions into responses. At `server.max_inflight`, requests that need not wait are still answered: a hit
    in memory costs next to nothing. The inner steps call `RequestContext.require_capacity` before they wait. Without
    `inflight` the caller bounds the requests."""

    def __init__(
        self, inner: Handler, telemetry: Telemetry, inflight: Inflight | None, error_dialect: ErrorDialect
    ) -> None:
        self._inner = inner
        self._telemetry = telemetry
        self._inflight = inflight
        self._error_dialect = error_dialect

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        inflight = self._inflight
        if inflight is not None and inflight.count >= inflight.limit:
            request.overloaded = True
        try:
            answer = self._inner(request)
        except Exception as error:
            return self._error_response(request, error)
        return answer if isinstance(answer, Response) else self._await_answer(request, answer)

    async def _await_answer(self, request: RequestContext, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        except Exception as error:
            return self._error_response(request, error)

    def _error_response(self, request: RequestContext, error: Exception) -> Response:
        if isinstance(error, BackendOverloaded):  # every backend that the route could call
            self._telemetry.shed.add(error.reason)
        elif isinstance(error, TooManyInflight):
            self._telemetry.shed.add(ShedReason.MAX_INFLIGHT)
        elif not isinstance(error, GatewayError):
            LOG.error("internal error", exc_info=error, extra={"fields": request.log_fields})
            error = GatewayError(f"internal error; the log has more under request id {request.id}")
        return self._response(request, error)

    def _response(self, request: RequestContext, error: GatewayError) -> Response:
        dialect = request.dialect or self._error_dialect(request.method, request.path, request.headers)
        headers = [("Content-Type", "application/json")]
        if error.retry_after_s is not None:
            headers.append(("Retry-After", str(error.retry_after_s)))
        headers += error.headers
        if dialect.id_header is not None:
            headers.append((dialect.id_header, request.id))
        body = FullBody(dialect.error(error.kind, error.message, error.param))
        provenance = Provenance(Verdict.MISS, reason=error.kind, forwarded=error.forwarded)
        return Response(error.status, tuple(headers), body, provenance)
