"""Combine similar calls that arrive within a short time into one upstream call, for models that do not batch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.bounded_cache import BoundedCache
from gateway.calls import Call
from gateway.config.backends import BatchRule
from gateway.context import Backend, Load, RequestContext
from gateway.dialects.open_inference.batch import batch_key, batch_rows, merge_calls, split_answer
from gateway.errors import BackendError, MalformedResponse
from gateway.messages import FullBody, Response
from gateway.ports import Clock
from gateway.priority import Priority
from gateway.streams import close_body
from gateway.tasks import spawn
from gateway.upstream.input_batch import copy_error

LOG = logging.getLogger("nearhit.batching")
MAX_FORMS = 1024  # forms whose failures are remembered
# consecutive failed batches after which a form is not batched: the cause is not one faulty member
MAX_FAILED_BATCHES = 3
# A batch is sent at once if a member has less time left than this many times `max_wait`.
DEADLINE_WAITS = 4


@dataclass(frozen=True, slots=True)
class _QueuedCall:
    request: RequestContext
    call: Call
    rows: int
    answer: asyncio.Future[Response]


class _OpenBatch:
    """A batch that still accepts members."""

    def __init__(self) -> None:
        self.members: list[_QueuedCall] = []
        self.timer: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        return sum(member.rows for member in self.members)


@dataclass(slots=True, eq=False)
class Batching:
    """`Batching` is a `Backend` that batches calls before it passes them to another backend.

    If it is `shared`, the upstream cannot tell clients apart, and one batch may have calls of several tenants.
    Otherwise a batch has calls of one tenant only.
    """

    inner: Backend
    rule: BatchRule
    clock: Clock
    shared: bool = field(kw_only=True)
    _open_batches: dict[bytes, _OpenBatch] = field(init=False, default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    # form -> consecutive failed batches
    _failures: BoundedCache[bytes, int] = field(init=False, default_factory=lambda: BoundedCache(MAX_FORMS))

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def http(self) -> bool:
        return self.inner.http

    @property
    def speaks(self) -> str:
        return self.inner.speaks

    @property
    def occupancy(self) -> Load:
        return self.inner.occupancy

    def wait_s(self, priority: Priority) -> float:
        return self.inner.wait_s(priority)

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        return await self.inner.models(request)

    async def ready(self) -> bool:
        return await self.inner.ready()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await self.inner.close()

    async def send(self, request: RequestContext) -> Response:
        """Send the call alone or in a batch. Raise `BackendError`, as the inner backend does."""
        call = request.call
        rows = None if call is None else batch_rows(call)
        if call is None or rows is None or rows >= self.rule.max_size:
            return await self.inner.send(request)
        form = b"\0".join(
            (request.path.encode(), b"" if self.shared else request.client.tenant.encode(), batch_key(call))
        )
        if (self._failures.peek(form) or 0) >= MAX_FAILED_BATCHES:
            return await self.inner.send(request)
        member = _QueuedCall(request, call, rows, asyncio.get_running_loop().create_future())
        self._enqueue(form, member)
        answer: Response = await member.answer
        return answer

    def _enqueue(self, form: bytes, member: _QueuedCall) -> None:
        batch = self._open_batches.get(form)
        if batch is not None and batch.rows + member.rows > self.rule.max_size:
            self._dispatch(form)
            batch = None
        if batch is None:
            batch = self._open_batches[form] = _OpenBatch()
            batch.timer = asyncio.get_running_loop().call_later(self.rule.max_wait, self._dispatch, form)
        batch.members.append(member)
        if batch.rows == self.rule.max_size or self._is_urgent(member.request):
            self._dispatch(form)

    def _is_urgent(self, request: RequestContext) -> bool:
        return request.due - self.clock.monotonic() < DEADLINE_WAITS * self.rule.max_wait

    def _dispatch(self, form: bytes) -> None:
        batch = self._open_batches.pop(form)
        if batch.timer is not None:
            batch.timer.cancel()
        # without those whose client has left
        members = [member for member in batch.members if not member.answer.done()]
        if not members:
            return
        task = spawn(self._tasks, self._run_batch(form, members))
        waiting = len(members)

        def on_done(answer: asyncio.Future[Response]) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0 and answer.cancelled():
                task.cancel()

        for member in members:
            member.answer.add_done_callback(on_done)

    async def _run_batch(self, form: bytes, members: Sequence[_QueuedCall]) -> None:
        try:
            answers = await self._send_batch(form, members) if len(members) > 1 else None
        except asyncio.CancelledError:  # all clients have left, or the gateway shuts down
            for member in members:
                member.answer.cancel()
            raise
        except Exception as error:
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(copy_error(error))
            return
        if answers is None:  # one member's input may be at fault, and must not fail the others
            await asyncio.gather(*map(self._send_single, members))
            return
        for member, answer in zip(members, answers, strict=True):
            if not member.answer.done():
                member.answer.set_result(answer)

    async def _send_batch(self, form: bytes, members: Sequence[_QueuedCall]) -> list[Response] | None:
        """Send one call for all members. Return None if they must be sent one by one."""
        response = await self.inner.send(_request(members))
        if not isinstance(response.body, FullBody):
            await close_body(response.body)
            raise BackendError("the response to a batch is too large to be split", retryable=False)
        if response.status != 200:
            self._record_failure(form, 1, f"the backend answers {response.status}")
            return None
        try:
            parts = split_answer(response.body.data, [member.rows for member in members])
        except MalformedResponse as error:
            self._record_failure(form, MAX_FAILED_BATCHES, str(error))
            return None
        self._failures.pop(form)
        return [replace(response, body=FullBody(part)) for part in parts]

    def _record_failure(self, form: bytes, weight: int, reason: str) -> None:
        count = (self._failures.peek(form) or 0) + weight
        self._failures.put(form, count)
        if count >= MAX_FAILED_BATCHES:
            LOG.warning("these calls are no longer batched", extra={"fields": {"backend": self.name, "reason": reason}})

    async def _send_single(self, member: _QueuedCall) -> None:
        """Send the call of one member, and cancel it if the client leaves."""
        task = asyncio.ensure_future(self.inner.send(member.request))
        member.answer.add_done_callback(lambda answer: task.cancel() if answer.cancelled() else None)
        try:
            answer = await task
        except asyncio.CancelledError:
            task.cancel()
            if not member.answer.cancelled():
                raise
        except Exception as error:
            if not member.answer.done():
                member.answer.set_exception(error)
        else:
            if not member.answer.done():
                member.answer.set_result(answer)


def _request(members: Sequence[_QueuedCall]) -> RequestContext:
    """Return the request of the first member, with the merged call and the latest deadline of all members."""
    request = members[0].request.with_call(merge_calls([member.call for member in members]))
    deadlines = [member.request.deadlines for member in members]
    request.deadlines = request.deadlines._replace(
        whole=_latest(each.whole for each in deadlines), first_token=_latest(each.first_token for each in deadlines)
    )
    return request


def _latest(deadlines: Iterable[float | None]) -> float | None:
    """Return the latest deadline; None, which means no deadline, if any is None."""
    latest = max(math.inf if at is None else at for at in deadlines)
    return None if latest == math.inf else latest
