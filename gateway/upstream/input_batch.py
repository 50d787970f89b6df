"""Send the inputs of one request that missed the cache to the backend in as few calls as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.calls import InputSplit
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import BackendError, GatewayError, MalformedResponse
from gateway.messages import FullBody, Response
from gateway.streams import close_body

# An input that waits for another request's call of the same input does not join. If no input has joined or been
# resolved for this long, the batch is sent.
QUIET_S = 0.005
# Per call: 128 embeddings of 3,072 numbers are some 8 MB of JSON, which is less than the limit for whole bodies.
MAX_INPUTS = 128


@dataclass(frozen=True, slots=True)
class _BatchMember:
    request: RequestContext
    answer: asyncio.Future[Response]


class MissBatch:
    """`MissBatch` collects the inputs with the `expected` fingerprints, and sends them in that order.

    It sends once each input has joined or been resolved otherwise, or after `QUIET_S` seconds without either.
    """

    def __init__(self, batch: InputSplit, expected: Iterable[str]) -> None:
        self._batch = batch
        self._order = {fingerprint: position for position, fingerprint in enumerate(expected)}
        self._expected = set(self._order)
        self._waiting: list[_BatchMember] = []
        self._forward: Handler | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def join(self, request: RequestContext, forward: Handler) -> Response:
        """Return the response for this input. Raise whatever the call raised."""
        member = _BatchMember(request, asyncio.get_running_loop().create_future())
        self._forward = forward
        self._waiting.append(member)
        self.mark_resolved(request.keys.fingerprint)
        return await member.answer

    def mark_resolved(self, fingerprint: str) -> None:
        """Record that this input has joined or was resolved otherwise, so that the batch no longer waits for it."""
        self._expected.discard(fingerprint)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and not self._expected:
            self._send_batches()
        elif self._waiting:
            self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._send_batches)

    def _send_batches(self) -> None:
        self._timer = None
        # Leave out members whose client has left.
        waiting = [member for member in self._waiting if not member.answer.done()]
        waiting.sort(key=lambda member: self._order.get(member.request.keys.fingerprint, 0))
        self._waiting = []
        for start in range(0, len(waiting), MAX_INPUTS):
            _Flight(self._batch, waiting[start : start + MAX_INPUTS], self._forward)


class _Flight:
    """One call for several inputs. It is cancelled when no client waits for it."""

    def __init__(self, batch: InputSplit, members: Sequence[_BatchMember], forward: Handler | None) -> None:
        assert forward is not None  # each member brought it
        self._batch = batch
        self._members = members
        self._pending = len(members)
        self._task = asyncio.create_task(self._run(forward))
        for member in members:
            member.answer.add_done_callback(self._on_member_done)

    def _on_member_done(self, answer: asyncio.Future[Response]) -> None:
        self._pending -= 1
        if self._pending == 0 and answer.cancelled():
            self._task.cancel()

    async def _run(self, forward: Handler) -> None:
        try:
            answers = await self._answers(forward)
            for member, answer in zip(self._members, answers, strict=True):
                member.request.outcome = answer
                if not member.answer.done():
                    member.answer.set_result(answer)
        except Exception as error:
            for member in self._members:
                member.request.outcome = failure = copy_error(error)
                if not member.answer.done():
                    member.answer.set_exception(failure)

    async def _answers(self, forward: Handler) -> list[Response]:
        if len(self._members) == 1:
            return [await resolve_response(forward(self._members[0].request))]
        calls = [member.request.call for member in self._members]
        known = [call for call in calls if call is not None]
        together = self._members[0].request.with_call(self._batch.merge(known))
        try:
            response = await resolve_response(forward(together))
        finally:  # a guard around an input must not pass it on once more
            for member in self._members:
                member.request.reached = together.reached
        if not isinstance(response.body, FullBody):
            await close_body(response.body)
            raise BackendError("the response to several inputs is too large to be split", retryable=False)
        if response.status != 200:
            return [response for _ in self._members]
        try:
            pieces = self._batch.split_answer(known, response.body.data)
        except MalformedResponse as error:
            raise BackendError(str(error), retryable=False) from None
        return [replace(response, body=FullBody(piece)) for piece in pieces]


def copy_error(error: Exception) -> Exception:
    """Return a copy of the error for each waiter, because an exception object carries one traceback."""
    if isinstance(error, BackendError):
        copy = BackendError(error.message, retryable=error.retryable, status=error.status)
        copy.kind, copy.forwarded = error.kind, error.forwarded
        copy.retry_after_s, copy.param = error.retry_after_s, error.param
        return copy
    return error if isinstance(error, GatewayError) else BackendError(f"internal error ({type(error).__name__})")
