"""Base URLs of HTTP endpoints: which path lies where below them, and hints where one is likely wrong."""

from __future__ import annotations

import logging
import re

import orjson
from yarl import URL

from gateway.context import RequestContext
from gateway.errors import BadRequest
from gateway.messages import FullBody, Response
from gateway.upstream.http_client import UpstreamRequest

# Base URLs as OpenAI's clients are given them: what speaks for a wrong one. Pure.
EXPECTED = "the base URL that an OpenAI client is given, such as http://host:8000/v1"

_VERSION = re.compile(r".*/v\d+[a-z0-9.]*", re.ASCII | re.DOTALL)  # /v1, /openai/v1, /v1beta

_MODEL = re.compile(r"\b(?:models?|deployment)\b", re.IGNORECASE)  # the latter is Azure's word

_CODES = ("model_not_found", "DeploymentNotFound")


def ends_in_version(path: str) -> bool:
    """Of a URL, without the slash at its end."""
    return _VERSION.fullmatch(path) is not None


def is_model_not_found(body: bytes) -> bool:
    """Whether a 404 says that there is no such model, in one of the shapes in which OpenAI-compatible servers say it:
    then its path was right."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if isinstance(payload, list) and payload:  # Gemini's
        payload = payload[0]
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if isinstance(error, dict):
        if error.get("param") == "model" or error.get("code") in _CODES:
            return True
        error = error.get("message", error.get("detail"))
    return isinstance(error, str) and _MODEL.search(error) is not None


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
        self._is_suspect = speaks == "openai" and not ends_in_version(path)  # and nothing was said of it yet

    def target(self, path: str, query: str) -> str:
        """`/v1/...` goes below the configured URL, everything else below its root; path and query as sent."""
        if not path.startswith("/") or "#" in path or "#" in query:  # the endpoint would drop what follows the #
            raise BadRequest(f"the request target {path[:100]!r} is not a path with a query")
        below = self._base + path[3:] if path == "/v1" or path.startswith("/v1/") else self._root + path
        return f"{below or '/'}?{query}" if query else below or "/"

    def on_not_found(self, request: RequestContext, sent: UpstreamRequest, answer: Response) -> None:
        """A call was answered by 404. Said once: it is wrong, or right, for all of them."""
        body = answer.body
        if not self._is_suspect or not isinstance(body, FullBody) or is_model_not_found(body.data):
            return
        self._is_suspect = False
        requested_url = self.origin + sent.target.partition("?")[0]  # clients may have keys in their queries
        fields = {**request.log_fields, "backend": self._backend, "asked": requested_url, "expected": EXPECTED}
        LOG.warning("the backend has no such path: is its base URL wrong?", extra={"fields": fields})
