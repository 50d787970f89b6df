"""Counts the tokens of a conversation where the backend cannot.

Clients such as Claude Code ask `POST /v1/messages/count_tokens` how much room a conversation takes. Backends of other
protocols rarely have that path. The gateway then answers with an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.calls import Dialect
from gateway.context import RequestContext
from gateway.dialects.json_body import BOM
from gateway.dialects.known import DEFAULT, DIALECTS, counter_of
from gateway.errors import GatewayError
from gateway.messages import FullBody, Response
from gateway.streams import close_body

NO_SUCH_PATH = frozenset({404, 405, 501})
JSON_TYPE = (("Content-Type", "application/json"),)


class TokenCounts:
    """Completes the answers of backends that have no counter. `speaks` maps each backend to its dialect."""

    def __init__(self, speaks: Mapping[str, str]) -> None:
        self._speaks = speaks

    async def keep_body(self, request: RequestContext) -> None:
        """Read the whole body before the call, so that it is still there if the backend has no counter."""
        await request.body_source.buffer(whole=True)

    async def complete(self, request: RequestContext, response: Response) -> Response:
        """Return the estimate in place of the response of a backend that has no such path, else the response."""
        dialect = _counting(request)
        speaks = self._speaks.get(response.provenance.backend or "", dialect.name)
        if response.status not in NO_SUCH_PATH or speaks == dialect.name:
            return response
        tokens = _estimate_body(request, dialect)
        if tokens is None:
            return response
        await close_body(response.body)
        return Response(200, JSON_TYPE, FullBody(dialect.token_count(tokens)), response.provenance)


def counts_tokens(request: RequestContext) -> bool:
    """Return whether the request asks for the tokens of a conversation."""
    return request.method == "POST" and counter_of(request.path) is not None


def _counting(request: RequestContext) -> Dialect:
    return DIALECTS[counter_of(request.path) or DEFAULT]


def _estimate_body(request: RequestContext, dialect: Dialect) -> int | None:
    """Return the estimate, or None if the body is no request of the dialect."""
    try:
        body = orjson.loads((request.body_source.read_nowait() or b"").removeprefix(BOM))
    except (orjson.JSONDecodeError, GatewayError):
        return None
    return dialect.estimate_tokens(body) if isinstance(body, dict) else None
