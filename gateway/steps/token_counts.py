"""Counts the tokens of Anthropic's messages where the backend cannot.

Clients such as Claude Code ask `POST /v1/messages/count_tokens` how much room a conversation takes. Backends of other
protocols rarely have that path. The gateway then answers with an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.context import RequestContext
from gateway.dialects.json_body import BOM
from gateway.errors import GatewayError
from gateway.messages import FullBody, Response
from gateway.routing.limit_evaluation import BYTES_A_TOKEN
from gateway.streams import close_body

COUNT_TOKENS = "/v1/messages/count_tokens"
NO_SUCH_PATH = frozenset({404, 405, 501})
COUNTED = ("system", "messages", "tools")
# Of a picture that Anthropic scales to its largest size; a page of a document takes about as many.
# https://platform.claude.com/docs/en/build-with-claude/vision
ATTACHMENT_TOKENS = 1600
JSON_TYPE = (("Content-Type", "application/json"),)


class TokenCounts:
    """Completes the answers of backends that have no counter. `speaks`: backend -> the dialect that it speaks."""

    def __init__(self, speaks: Mapping[str, str]) -> None:
        self._speaks = speaks

    async def keep_body(self, request: RequestContext) -> None:
        """Read the whole body before the call, so that it is still there if the backend has no counter."""
        await request.body_source.buffer(whole=True)

    async def complete(self, request: RequestContext, response: Response) -> Response:
        """Return the estimate in place of the response of a backend that has no such path, else the response."""
        foreign = self._speaks.get(response.provenance.backend or "", "anthropic") != "anthropic"
        if response.status not in NO_SUCH_PATH or not foreign:
            return response
        tokens = _estimate_body(request)
        if tokens is None:
            return response
        await close_body(response.body)
        return Response(200, JSON_TYPE, FullBody(orjson.dumps({"input_tokens": tokens})), response.provenance)


def counts_tokens(request: RequestContext) -> bool:
    """Return whether the request asks for the tokens of a message."""
    return request.path == COUNT_TOKENS and request.method == "POST"


def _estimate_body(request: RequestContext) -> int | None:
    """Return the estimate; None: the body is no message request."""
    try:
        body = orjson.loads((request.body_source.read_nowait() or b"").removeprefix(BOM))
    except (orjson.JSONDecodeError, GatewayError):
        return None
    return estimate_tokens(body) if isinstance(body, dict) and isinstance(body.get("messages"), list) else None


def estimate_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the input tokens of a message request, at least 1: of its texts, tools and attachments."""
    size, attachments = 0, 0
    left: list[Any] = [body.get(key) for key in COUNTED]
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            if value.get("type") == "base64" and "data" in value:
                attachments += 1
                continue
            left += value.values()
            if "input_schema" in value or "properties" in value:  # the names in a schema are read, too
                size += sum(map(len, value))
    return max(1, size // BYTES_A_TOKEN + attachments * ATTACHMENT_TOKENS)
