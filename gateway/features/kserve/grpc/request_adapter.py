"""Converts a gRPC call to the request that an HTTP client would send, and the HTTP status to a gRPC status."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable

import grpc
from multidict import CIMultiDict

from gateway.context import RequestContext
from gateway.features.kserve.dialect import STREAM
from gateway.http_server.service import SAFE_ID
from gateway.messages import Response
from gateway.observability.response_headers import ResponseHeaders
from gateway.ports import Clock
from gateway.streams import BufferedBody

BUDGET_HEADER = "x-latency-budget-ms"
MAX_DEADLINE_MS = 86_400_000  # ignore longer deadlines: without one, gRPC reports centuries
STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# Headers about the bytes of an HTTP message; gRPC has its own.
OMITTED_HEADERS = frozenset(
    {"content-type", "content-length", "inference-header-content-length", "server", "connection"}
)
METADATA_KEY = re.compile(r"[0-9a-z_.-]+")


Pipeline = Callable[[RequestContext], Awaitable[Response]]
"""Answers a request, and counts it as in flight until its answer has ended."""


class RpcRequest:
    """One RPC. Every request that it makes has its metadata and its deadline."""

    def __init__(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        remaining_s: float | None,
        clock: Clock,
        own_headers: ResponseHeaders,
        client_address: str = "",
    ) -> None:
        self._headers: CIMultiDict[str] = CIMultiDict(
            (key, value)
            for key, value in metadata
            if isinstance(value, str) and not key.startswith((":", "grpc-")) and key not in ("te", "content-type")
        )
        if remaining_s is not None and 1e3 * remaining_s < MAX_DEADLINE_MS and BUDGET_HEADER not in self._headers:
            self._headers[BUDGET_HEADER] = str(max(1, int(1e3 * remaining_s)))
        self._clock = clock
        self._own_headers = own_headers
        self._client_address = client_address

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        extra_headers: Iterable[tuple[str, str]] = (),
        *,
        stream: bool = False,
    ) -> RequestContext:
        """Return a request of this RPC. With `stream` the client accepts several answers."""
        headers = CIMultiDict(self._headers)
        for name, value in extra_headers:
            headers[name] = value  # replaces metadata of that name from the client
        if stream:
            headers[STREAM] = "1"
        client_id = headers.get("x-request-id")
        return RequestContext(
            request_id=client_id if client_id is not None and SAFE_ID.fullmatch(client_id) else os.urandom(12).hex(),
            method=method,
            path=path,
            query="",
            headers=headers,
            body_source=BufferedBody(body),
            clock=self._clock,
            client_address=self._client_address,
        )

    def trailing_metadata(self, request: RequestContext, response: Response) -> tuple[tuple[str, str], ...]:
        """Return the headers of an answer as trailing metadata."""
        return tuple(
            (low, value)
            for name, value in self._own_headers.all(request, response)
            if (low := name.lower()) not in OMITTED_HEADERS
            and not low.startswith("grpc-")
            and METADATA_KEY.fullmatch(low)
            and value.isascii()
            and value.isprintable()
        )


def status_of(status: int) -> grpc.StatusCode:
    return STATUS.get(status, grpc.StatusCode.INTERNAL if status >= 500 else grpc.StatusCode.INVALID_ARGUMENT)
