"""What came of asking an upstream once, and whether it may be asked about again."""

from __future__ import annotations

from gateway.body_streams import close_body
from gateway.context import RequestContext
from gateway.errors import BackendError, BackendFull, GivenUp, ModelDown, Unfit
from gateway.messages import Response
from gateway.upstream.retry_policy import IDEMPOTENT, Again, after_answer, after_failure

Outcome = Response | BackendError


def again(outcome: Outcome, request: RequestContext, *, waits: bool) -> Again:
    """Who may be asked after it. `waits`: the upstream said when it wants to be asked again."""
    if isinstance(outcome, Response):
        whom, sent = after_answer(outcome.status, waits=waits), True
    elif isinstance(outcome, BackendFull):
        return Again.OTHERS
    elif isinstance(outcome, Unfit):
        return Again.NOBODY  # upstreams have the same models
    else:
        whom, sent = after_failure(outcome.status, retryable=outcome.retryable), outcome.sent
        if isinstance(outcome, GivenUp):
            whom = Again.ANYBODY  # it may be all there is by now
        elif isinstance(outcome, ModelDown):
            whom = Again.OTHERS
    return whom if repeatable(request, sent=sent) else Again.NOBODY


def failed(outcome: Outcome) -> bool:
    """Whether it speaks against the upstream."""
    if isinstance(outcome, Response):
        return outcome.status >= 500
    return not isinstance(outcome, BackendFull | GivenUp | Unfit)


def repeatable(request: RequestContext, *, sent: bool = True) -> bool:
    """Calls that a dialect knows change nothing upstream, unless they are stateful. What passes through may: it is
    repeated only where that is harmless by its method (RFC 9110 section 9.2.2) and its body is still there, or where
    nothing of it was sent."""
    if not sent:
        return True
    if request.call is not None:
        return not request.call.stateful
    return request.method in IDEMPOTENT and request.body_source.replayable


def cost_nothing(outcome: Outcome) -> bool:
    """The upstream had no work from it, and the client hardly waited: to go on to the next one is no retry. Each is
    asked once in this way."""
    return isinstance(outcome, BackendError) and not outcome.sent and outcome.status != 504


def final(outcome: Outcome) -> Response:
    """Raises what was an error."""
    if isinstance(outcome, Response):
        return outcome
    raise outcome


async def let_go(outcome: Outcome) -> None:
    """Of an answer that nobody will read."""
    if isinstance(outcome, Response):
        await close_body(outcome.body)
