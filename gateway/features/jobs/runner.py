"""Run a job as a request, with the same steps, policy, caches and limits as a request with a waiting client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multidict import CIMultiDict

from gateway.context import Handler, RequestContext, Work, resolve_response
from gateway.errors import UpstreamStreamError
from gateway.features.jobs.store import Job, JobResult, Unsealable
from gateway.features.jobs.submission import QUERY
from gateway.messages import ByteStream, EventStream, FullBody, Response
from gateway.observability.response_headers import ResponseHeaders
from gateway.ports import Clock
from gateway.request_fields import Client
from gateway.streams import BufferedBody, close_body

if TYPE_CHECKING:
    from gateway.features.jobs.credential_encryption import Sealer

# Headers that a job's reader does not need or that must not be stored: cookies belong to a session.
DROPPED_HEADERS = frozenset({"set-cookie", "content-length", "server", "server-timing", "date", "alt-svc"})


class NoAnswer(Exception):
    """The job got no response. If that is `final`, another attempt would end the same way."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Runner:
    """`Runner` runs jobs through `handler`, the steps after `Authenticate`. The client was authenticated on submission.

    `max_result` is the maximum response size in bytes.
    """

    def __init__(self, handler: Handler, sealer: Sealer | None, clock: Clock, *, max_result: int) -> None:
        self._handler = handler
        self._sealer = sealer
        self._clock = clock
        self._max_result = max_result
        self._own_headers = ResponseHeaders()

    async def run(self, job: Job) -> JobResult:
        """Run the job, and record in its `transmission` whether it went to a backend. Raise `NoAnswer`.

        Cancelling this cancels the call upstream.
        """
        request = self._request(job)
        response = await resolve_response(self._handler(request))
        try:
            body = await self._read_body(response)
        except UpstreamStreamError as error:
            raise NoAnswer(str(error)) from None
        finally:
            await close_body(response.body)
        headers = self._own_headers.all(request, response)
        headers_to_store = tuple((name, value) for name, value in headers if name.lower() not in DROPPED_HEADERS)
        return JobResult(response.status, headers_to_store, body)

    def _request(self, job: Job) -> RequestContext:
        headers, query = CIMultiDict(job.headers), job.query
        if job.sealed:
            if self._sealer is None:
                raise NoAnswer("the job's credentials are encrypted, and this gateway has no key (jobs.key_env)")
            try:
                headers.extend(self._sealer.open(job.sealed, job.id))
            except Unsealable as error:
                raise NoAnswer(str(error), final=True) from None
            query = headers.pop(QUERY, query)
        # An upstream that supports the header does the work only once, even after a retry.
        headers.setdefault("Idempotency-Key", job.id)
        return RequestContext(
            request_id=job.id,
            method=job.method,
            path=job.path,
            query=query,
            headers=headers,
            body_source=BufferedBody(job.body),
            clock=self._clock,
            client=Client(job.tenant, job.tenant),
            work=Work(background=True, transmission=job.transmission),
        )

    async def _read_body(self, response: Response) -> bytes:
        body = response.body
        if isinstance(body, FullBody):
            return self._check_size([body.data], len(body.data))
        chunks: list[bytes] = []
        size = 0
        if isinstance(body, EventStream):
            async for event in body.events:
                chunks.append(event.frame())
                size += len(chunks[-1])
                self._check_size(chunks, size)
        elif isinstance(body, ByteStream):
            async for chunk in body.chunks:
                chunks.append(chunk)
                size += len(chunk)
                self._check_size(chunks, size)
        else:
            raise NoAnswer("the backend switched to a WebSocket, which a job cannot use", final=True)
        return b"".join(chunks)

    def _check_size(self, chunks: list[bytes], size: int) -> bytes:
        """Raise `NoAnswer` if the response is larger than a job may store."""
        if size > self._max_result:
            raise NoAnswer(f"the response is larger than {self._max_result} bytes (jobs.max_result)", final=True)
        return chunks[0] if len(chunks) == 1 else b""
