"""The base URL of an HTTP endpoint: what lies where below it, and what the log says where it is likely wrong."""

from __future__ import annotations

import logging

from yarl import URL

from gateway.context import RequestContext
from gateway.dialects.base_url import EXPECTED, about_a_model, ends_in_version
from gateway.errors import BadRequest
from gateway.messages import Response, Whole
from gateway.upstream.http_client import Outward

LOG = logging.getLogger("nearhit")


class BaseUrl:
    """`backend`: whose it is. `speaks`: the name of the dialect that the endpoint understands."""

    def __init__(self, backend: str, url: str, speaks: str) -> None:
        base = URL(url.rstrip("/"))
        self.origin = str(base.origin())
        path = base.raw_path.rstrip("/")
        self._root = path.removesuffix("/v1")  # what stands for /
        # What stands for /v1: OpenAI's is part of the URL that people configure, and may be another path there.
        self._base = path if speaks == "openai" else f"{self._root}/v1"
        self._backend = backend
        self._doubtful = speaks == "openai" and not ends_in_version(path)  # and nothing was said of it yet

    def target(self, path: str, query: str) -> str:
        """`/v1/...` goes below the configured URL, everything else below its root; path and query as sent."""
        if not path.startswith("/") or "#" in path or "#" in query:  # the endpoint would drop what follows the #
            raise BadRequest(f"the request target {path[:100]!r} is not a path with a query")
        below = self._base + path[3:] if path == "/v1" or path.startswith("/v1/") else self._root + path
        return f"{below or '/'}?{query}" if query else below or "/"

    def not_found(self, request: RequestContext, sent: Outward, answer: Response) -> None:
        """A call was answered by 404. Said once: it is wrong, or right, for all of them."""
        body = answer.body
        if not self._doubtful or not isinstance(body, Whole) or about_a_model(body.data):
            return
        self._doubtful = False
        asked = self.origin + sent.target.partition("?")[0]  # clients may have keys in their queries
        fields = {**request.log_fields, "backend": self._backend, "asked": asked, "expected": EXPECTED}
        LOG.warning("the backend has no such path: is its base URL wrong?", extra={"fields": fields})
