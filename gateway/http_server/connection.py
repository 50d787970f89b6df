"""A client's connection, as far as aiohttp says too much about it: it quotes a malformed request, credentials included,
in its log and in its answer."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.http_server.refusals import refused

LOG = logging.getLogger("nearhit")


class Connection(RequestHandler):
    def data_received(self, data: bytes) -> None:
        """aiohttp drops what comes once the connection is to end, the rest of the request that is being read with it:
        that would be waited for in vain, for as long as a stop may take. What comes behind the request is not taken
        up."""
        ends = self._close, self._force_close
        if not any(ends) or self._current_request is None:
            super().data_received(data)
            return
        self._close = self._force_close = False
        try:
            super().data_received(data)
        finally:
            self._close, self._force_close = self._close or ends[0], self._force_close or ends[1]

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuses what the parser could not read. Nobody knows where the next request starts, so this was the last."""
        LOG.info("malformed request", extra={"fields": {"status": status, "error": type(exc).__name__}})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: it can only be cut")
        # The parser's messages name the fault first and quote what was sent behind a colon.
        fault = (message or "").partition("\n")[0].partition(":")[0]
        return refusal(status, f"malformed request: {fault}" if fault else "the request cannot be handled")


def refusal(status: int, message: str) -> web.Response:
    """The last answer on its connection."""
    answer = refused(status, message)
    response = web.Response(status=status, headers=answer.headers, body=answer.data)
    response.force_close()
    return response
