"""Call one backend after another until one gives a usable answer before its first byte."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.context import RequestContext
from gateway.errors import BackendError, BackendOverloaded, UnsupportedByBackend
from gateway.messages import Response, Usage
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Choice
from gateway.ports import Clock
from gateway.routing.tuned_pool import CallableBackend
from gateway.statuses import is_failure
from gateway.streams import close_body
from gateway.upstream.retry import is_repeatable

LOG = logging.getLogger("nearhit.dispatch")
REFUSED_FOR_NOW = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class BackendAnswer:
    response: Response
    backend: str
    instead: Choice | None = None  # why another backend than the chosen one answered, if one did
    other_usage: tuple[Usage, ...] = ()  # usage of the other calls for this answer


class Fallback:
    """`Fallback` calls backends in order. All routes share it."""

    def __init__(self, pools: Mapping[str, CallableBackend], clock: Clock, telemetry: Telemetry) -> None:
        self._pools = pools
        self._clock = clock
        self._telemetry = telemetry

    async def call_backend(self, request: RequestContext, name: str) -> Response | None:
        """Call one backend; return None where its circuit breaker is open. Raise `BackendError`."""
        pool = self._pools[name]
        if not pool.allow(self._clock.monotonic(), request):
            self._telemetry.backend_requests.add(name, "breaker_open")
            return None
        return await pool.call(request)

    async def first_answer(self, request: RequestContext, names: Sequence[str]) -> BackendAnswer:
        """Try backends in the order of `names`. A failure of the last one is the result, whatever it is."""
        instead: Choice | None = None
        for name in names[:-1]:
            pool = self._pools[name]
            if not pool.allow(self._clock.monotonic(), request):
                self._telemetry.backend_requests.add(name, "breaker_open")
                instead = instead or Choice.FALLBACK
                continue
            try:
                response = await pool.call(request)
            except BackendOverloaded:  # counted only: under load a log line for each would add load
                instead = instead or Choice.OVERLOADED
                continue
            except UnsupportedByBackend:  # expected of a small model: nothing to log
                instead = instead or Choice.FALLBACK
                continue
            except BackendError as error:
                instead = instead or Choice.FALLBACK
                if not error.retryable or not is_repeatable(request, sent=error.sent):
                    raise
                LOG.warning(
                    "the backend failed, falling back to the next one",
                    extra={"fields": {**request.log_fields, "backend": name, "error": str(error)}},
                )
                continue
            if not (response.refused or _is_retryable(response.status)) or not is_repeatable(request, answered=True):
                return BackendAnswer(response, name, instead)
            instead = instead or Choice.FALLBACK
            await close_body(response.body)
        return BackendAnswer(await self._pools[names[-1]].call(request), names[-1], instead)


def _is_retryable(status: int) -> bool:
    return status in REFUSED_FOR_NOW or is_failure(status)
