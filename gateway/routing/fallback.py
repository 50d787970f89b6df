"""Asks one backend after the other until one answers usably before its first byte."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.context import RequestContext
from gateway.errors import BackendError, BackendOverloaded, UnsupportedByBackend
from gateway.messages import Choice, Response, Usage
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.streams import close_body
from gateway.upstream.backend import UpstreamPool

LOG = logging.getLogger("nearhit.dispatch")
RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class BackendAnswer:
    response: Response
    backend: str
    instead: Choice | None = None  # why it is not as it was chosen; None: it is
    beside: tuple[Usage, ...] = ()  # what else was called for it


class Fallback:
    """All routes share it."""

    def __init__(self, pools: Mapping[str, UpstreamPool], clock: Clock, telemetry: Telemetry) -> None:
        self._pools = pools
        self._clock = clock
        self._telemetry = telemetry

    async def call_backend(self, request: RequestContext, name: str) -> Response | None:
        """Of this backend alone; None where its breaker is open. Raises `BackendError`."""
        pool = self._pools[name]
        if not pool.allow(self._clock.monotonic()):
            self._telemetry.backend_requests.add(name, "breaker_open")
            return None
        return await pool.call(request)

    async def first_answer(self, request: RequestContext, names: Sequence[str]) -> BackendAnswer:
        """In the order of `names`; the last one's failure is the request's, whatever it is."""
        instead: Choice | None = None
        for name in names[:-1]:
            pool = self._pools[name]
            if not pool.allow(self._clock.monotonic()):
                self._telemetry.backend_requests.add(name, "breaker_open")
                instead = instead or Choice.FALLBACK
                continue
            try:
                response = await pool.call(request)
            except (
                BackendOverloaded
            ):  # told by the metrics alone: under load a line for each would be a load of its own
                instead = instead or Choice.OVERLOADED
                continue
            except UnsupportedByBackend:  # expected of a small model: nothing to report
                instead = instead or Choice.FALLBACK
                continue
            except BackendError as error:
                instead = instead or Choice.FALLBACK
                if not error.retryable:
                    raise
                LOG.warning(
                    "falling back", extra={"fields": {**request.log_fields, "backend": name, "error": str(error)}}
                )
                continue
            if response.status not in RETRYABLE:
                return BackendAnswer(response, name, instead)
            instead = instead or Choice.FALLBACK
            await close_body(response.body)
        return BackendAnswer(await self._pools[names[-1]].call(request), names[-1], instead)
