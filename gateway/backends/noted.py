"""A call to an upstream as a traced request notes it, and what the call carries of that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.errors import BackendError, BackendFull, GivenUp, StreamBroken, Unfit
from gateway.messages import Request
from gateway.observing.traced import BROKEN, Traced, UpstreamCall

if TYPE_CHECKING:
    from gateway.backends.lane import Upstream


def noted(request: Request, traced: Traced, upstream: Upstream, at: float) -> tuple[Request, UpstreamCall]:
    """-> (the request, with this call as the parent of what the upstream traces; the note). `at`: monotonic clock."""
    trace, call = request.trace, request.call
    asked = UpstreamCall(
        backend=upstream.backend.name,
        provider=upstream.provider,
        address=upstream.address,
        model="" if call is None else _model(upstream, call.model),
        call=call,
        attempt=1 if trace.asked is None else trace.asked.attempt + 1,
        purpose=trace.purpose,
        started=at,
    )
    trace.asked = asked
    return replace(request, headers=traced.handed_on(request.headers, asked.span_id)), asked


def _model(upstream: Upstream, asked: str) -> str:
    sent = None if upstream.models is None else upstream.models.sent_for(asked)
    return sent or asked


def outcome_of(error: BaseException) -> str:
    """The label `outcome` of a call that gave no whole answer, and its `error.type`."""
    if isinstance(error, BackendFull):
        return "full"
    if isinstance(error, GivenUp):
        return "given_up"
    if isinstance(error, Unfit):
        return "unfit"
    if isinstance(error, BackendError):
        return "timeout" if error.status == 504 else "error"
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return BROKEN if isinstance(error, StreamBroken) else "error"
