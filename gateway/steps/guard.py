"""Guards the steps of the pipeline: a failure of an optional step never fails a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from inspect import CORO_CREATED, getcoroutinestate

from gateway.containment import Containment
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import GatewayError
from gateway.messages import ByteStream, EventStream, FullBody, Response
from gateway.observability.response_headers import HITS
from gateway.outcomes import Bypass, Verdict
from gateway.streams import ObservedStream

Recovery = Callable[[RequestContext, Response | None], bool]
"""Prepares a request to go on after a step has failed. Its arguments are the request, and the answer of the next step
if there is one. Returns whether that answer may be served; if not, the next step is called again."""


class Guard:
    """Surrounds a step. Each exception but a `GatewayError` is a failure.

    A failure of an optional step is recorded. If the step has not passed the request on, the next step gets it;
    otherwise its answer or its error is the outcome. So nothing is sent to a backend twice. A failure of any other
    step ends the request in `ErrorBoundary`.

    `depth` numbers the steps from the outermost on. Each guard marks the request with its depth, so that the guard
    around it knows whether its step has passed the request on. With `reports` that guard also needs the outcome.
    Otherwise the request forgets it, as an answer may refer to the request.
    """

    __slots__ = ("_containment", "_depth", "_next", "_recovery", "_reports", "_step")

    def __init__(
        self,
        step: Handler,
        next_step: Handler,
        depth: int,
        containment: Containment,
        recovery: Recovery,
        *,
        reports: bool,
    ) -> None:
        self._reports = reports
        self._step = step
        self._next = next_step
        self._depth = depth
        self._containment = containment
        self._recovery = recovery

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        request.reached, request.outcome = self._depth, None
        try:
            answer = self._step(request)
        except Exception as error:
            return self._go_on(request, error)
        if isinstance(answer, Response):
            if not isinstance(answer.body, FullBody):
                self._claim(answer)
            request.outcome = answer if self._reports else None
            return answer
        request.outcome = pending = self._await(request, answer)
        return pending

    async def _await(self, request: RequestContext, pending: Awaitable[Response]) -> Response:
        try:
            answer = await pending
        except Exception as error:
            return await resolve_response(self._go_on(request, error))
        if not isinstance(answer.body, FullBody):
            self._claim(answer)
        request.outcome = answer if self._reports else None
        return answer

    def _claim(self, answer: Response) -> None:
        """Claim the observers that the step has added to the stream."""
        body = answer.body
        stream = body.events if isinstance(body, EventStream) else body.chunks if isinstance(body, ByteStream) else None
        if isinstance(stream, ObservedStream):
            stream.claim(self._containment)

    def _go_on(self, request: RequestContext, error: Exception) -> Response | Awaitable[Response]:
        """Continue after a failure. Raise the error if it is not this step's, or if the step is not optional."""
        passed_on = request.reached > self._depth
        outcome = request.outcome if passed_on else None
        if isinstance(error, GatewayError) or not self._containment.optional or outcome is error:
            request.outcome = error if self._reports else None
            raise error
        self._containment.record(error)
        if isinstance(outcome, Exception):  # the step failed while it handled this error
            raise outcome from None
        answer = outcome if isinstance(outcome, Response) else None
        if self._recovery(request, answer) and answer is not None:
            self._claim(answer)
            return answer
        if isinstance(outcome, Coroutine) and getcoroutinestate(outcome) == CORO_CREATED:
            return outcome
        return self._next(request)


# Of answers that may have another form than the client asked for.
SHARED = HITS | {Verdict.COALESCED}


def skip(request: RequestContext, _: Response | None) -> bool:
    """Go on as if the route did not have the step."""
    request.served = None
    return True


def skip_lookup(request: RequestContext, answer: Response | None) -> bool:
    """Go on without a semantic lookup."""
    request.note = request.note or Bypass.STEP_FAILED
    return skip(request, answer)


def call_alone(request: RequestContext, answer: Response | None) -> bool:
    """Go on without the crowd. The shared call reads the stream of its answer, so that a stream needs another call."""
    return skip(request, answer) and (answer is None or isinstance(answer.body, FullBody))


def leave_caches(request: RequestContext, _: Response | None) -> bool:
    """Go on without caches: the step decides under which keys answers are looked up and stored."""
    request.leave_caches(Bypass.STEP_FAILED)
    return True


def ask_backend(request: RequestContext, answer: Response | None) -> bool:
    """Serve a fresh answer in the form that it has. Ask a backend in place of a stored or shared answer: it may have
    another form than the client asked for."""
    request.served = None
    if answer is not None and answer.provenance.verdict not in SHARED:
        return True
    request.leave_caches(Bypass.STEP_FAILED)
    return False
