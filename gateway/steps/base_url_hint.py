"""Says in the log that clients were given a wrong base URL: what they ask for passes through, and their backend has no
such path. With `/v1` in front, or once instead of twice, it would be one that the gateway knows."""

from __future__ import annotations

import logging

from gateway.context import RequestContext
from gateway.dialects.known import suggest_path
from gateway.messages import Response
from gateway.observability.json_logging import RateLimitedLog

LOG = logging.getLogger("nearhit")
NOT_FOUND = 404


class BaseUrlHint:
    """The answer stays the backend's: some have these paths too."""

    def __init__(self) -> None:
        self._log = RateLimitedLog()

    def check(self, request: RequestContext, response: Response) -> None:
        """An answer to a request that no dialect knows."""
        if response.status != NOT_FOUND:
            return
        likely = suggest_path(request.method, request.path)
        if likely is not None:
            fields = {**request.log_fields, "path": request.path[:128], "likely": likely[:128]}
            self._log.warn(LOG, "the backend has no such path: is the client's base URL wrong?", fields)
