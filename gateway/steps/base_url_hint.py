"""Warns in the log when the base URL of a client is probably wrong. Its request passes through, and the backend has no
such path. With `/v1` in front, or once instead of twice, the gateway would know the path."""

from __future__ import annotations

import logging

from gateway.context import RequestContext
from gateway.dialects.known import suggest_path
from gateway.messages import Response
from gateway.observability.json_logging import RateLimitedLog

LOG = logging.getLogger("nearhit")
NOT_FOUND = 404


class BaseUrlHint:
    """Logs the path that the client probably meant. The response stays the backend's: some backends have such paths."""

    def __init__(self) -> None:
        self._log = RateLimitedLog()

    def check(self, request: RequestContext, response: Response) -> None:
        """Check the response to a request that belongs to no dialect."""
        if response.status != NOT_FOUND:
            return
        likely = suggest_path(request.method, request.path)
        if likely is not None:
            fields = {**request.log_fields, "path": request.path[:128], "likely": likely[:128]}
            self._log.warn(LOG, "the backend has no such path: is the client's base URL wrong?", fields)
