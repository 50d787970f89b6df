"""The one place where errors become responses, and where the gateway refuses what it cannot bear."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from gateway.errors import BackendFull, Overloaded, Refused
from gateway.messages import Provenance, Request, Response, Verdict, Whole
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.ports import Dialect
from gateway.precedence import Shed

LOG = logging.getLogger("nearhit")

Shape = Callable[[str, str, Mapping[str, str]], Dialect]


class Protect:
    """`inflight` counts the requests whose answers are not yet over, this one included; `shape` gives the dialect in
    whose shape errors are told where no stage has found out yet: of a method, a path and headers."""

    def __init__(self, telemetry: Telemetry, *, inflight: Callable[[], int], max_inflight: int, shape: Shape) -> None:
        self._telemetry = telemetry
        self._inflight = inflight
        self._max_inflight = max_inflight
        self._shape = shape

    async def __call__(self, request: Request, forward: Handler) -> Response:
        if self._inflight() > self._max_inflight and request.begun is None:
            self._telemetry.shed.add(Shed.MAX_INFLIGHT)
            return self._refuse(
                request, Overloaded("the gateway is at its limit of concurrent requests", retry_after_s=1)
            )
        try:
            return await forward(request)
        except BackendFull as error:  # of all that its route might have asked
            self._telemetry.shed.add(error.reason)
            return self._refuse(request, error)
        except Refused as error:
            return self._refuse(request, error)
        except Exception:
            LOG.exception("internal error", extra={"fields": request.named})
            return self._refuse(request, Refused(f"internal error; the log has more under request id {request.id}"))

    def _refuse(self, request: Request, error: Refused) -> Response:
        dialect = request.trace.dialect or self._shape(request.method, request.path, request.headers)
        headers = [("Content-Type", "application/json")]
        if error.retry_after_s is not None:
            headers.append(("Retry-After", str(error.retry_after_s)))
        headers += error.headers
        if dialect.id_header is not None:
            headers.append((dialect.id_header, request.id))
        body = Whole(dialect.error(error.kind, error.message, error.param))
        provenance = Provenance(Verdict.MISS, reason=error.kind, forwarded=error.forwarded)
        return Response(error.status, tuple(headers), body, provenance)
