"""Base URLs of HTTP endpoints: how paths map below them, and hints when one is probably wrong."""

from __future__ import annotations

import logging
import re

import orjson
from yarl import URL

from gateway.context import RequestContext
from gateway.dialects.known import AZURE_NAME
from gateway.errors import BadRequest
from gateway.messages import FullBody, Response
from gateway.upstream.http_client import UpstreamRequest

# Hints for base URLs in the form that OpenAI clients expect. Pure.
EXPECTED = "the base URL that an OpenAI client is given, such as http://host:8000/v1"

_VERSION = re.compile(r".*/v\d+[a-z0-9.]*", re.ASCII | re.DOTALL)  # /v1, /openai/v1, /v1beta

# Azure's forms of a path below /v1: behind a prefix, or with the name of a deployment.
_AZURE = re.compile(
    rf"/openai(?:/v1|(?=/responses)|/deployments/{AZURE_NAME}"
    r"(?=/(?:chat/completions|completions|embeddings|responses|audio|images)))(/.+)"
)
_DATED = re.compile(r"(?:^|&)api-version=\d{4}-[^&]*")  # Azure's API without dates refuses a date

_MODEL = re.compile(r"\b(?:models?|deployment)\b", re.IGNORECASE)  # "deployment" is Azure's word

_CODES = ("model_not_found", "DeploymentNotFound")


def ends_in_version(path: str) -> bool:
    """Return whether a URL path, without its final slash, ends in a version."""
    return _VERSION.fullmatch(path) is not None


def is_model_not_found(body: bytes) -> bool:
    """Return whether the body of a 404 says that the model does not exist; then the path was right.

    It knows the error shapes of several OpenAI-compatible servers.
    """
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if isinstance(payload, list) and payload:  # Gemini sends a list
        payload = payload[0]
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if isinstance(error, dict):
        if error.get("param") == "model" or error.get("code") in _CODES:
            return True
        error = error.get("message", error.get("detail"))
    return isinstance(error, str) and _MODEL.search(error) is not None


LOG = logging.getLogger("nearhit")


class BaseUrl:
    """`BaseUrl` maps request paths to an upstream's URL.

    `backend` is the backend's name. The URL of an endpoint that `is_versioned` contains the version of its API.
    """

    def __init__(self, backend: str, url: str, *, is_versioned: bool) -> None:
        base = URL(url.rstrip("/"))
        self.origin = str(base.origin())
        path = base.raw_path.rstrip("/")
        self._root = path.removesuffix("/v1")  # replaces /
        # Replaces /v1. The version in the configured URL may be another path there.
        self._base = path if is_versioned else f"{self._root}/v1"
        self._backend = backend
        # A URL that ends in neither is that of an endpoint with paths of its own, as Azure's resources are.
        below = is_versioned and (ends_in_version(path) or "/openai/deployments/" in path)
        self.reads_azure_paths = not below  # those in Azure's forms reach it as they are
        self._is_undated = path.endswith("/openai/v1")
        self._is_suspect = is_versioned and not ends_in_version(path)  # and no warning was logged yet

    def target(self, path: str, query: str) -> str:
        """Return the target: `/v1/...` goes below the configured URL, everything else below its root.

        Path and query stay as the client sent them. Raise `BadRequest` if they are malformed.
        """
        if not path.startswith("/") or "#" in path or "#" in query:  # the endpoint would drop everything after the #
            raise BadRequest(
                f"the request target {path[:100]!r} is invalid: expected a path that begins with / and has no #"
            )
        if path == "/v1" or path.startswith("/v1/"):
            below = self._base + path[3:]
        elif path.startswith("/openai/"):
            below = self._below_azure(path)
            if self._is_undated and query:
                query = _DATED.sub("", query).removeprefix("&")
        else:
            below = self._root + path
        return f"{below or '/'}?{query}" if query else below or "/"

    def path_of(self, path: str, model: str) -> str:
        """Return the path of a call, which the endpoint may know by the model at it."""
        return path

    def _below_azure(self, path: str) -> str:
        """Return the path at the endpoint of one in Azure's forms."""
        if self.reads_azure_paths:
            return self._root.removesuffix("/openai") + path
        match = _AZURE.fullmatch(path)
        if match is not None:
            return self._base + match[1]
        # The v1 API has what the dated one had, such as `/openai/models`. No other server has a prefix twice.
        return self._base + path.removeprefix("/openai") if self._is_undated else self._root + path

    def location(self, url: str) -> str:
        """Return the `Location` of a redirect as the client reaches it.

        An address of this upstream loses its origin, and its path becomes that of clients. Others are unchanged.
        """
        below = url.removeprefix(self.origin) if url.startswith(self.origin + "/") else url
        if not below.startswith("/") or below.startswith("//"):
            return url
        for root, client_root in ((self._base, "/v1"), (self._root, "")):
            if below == root or below.startswith((f"{root}/", f"{root}?")):
                return client_root + below[len(root) :]
        return url

    def on_not_found(self, request: RequestContext, sent: UpstreamRequest, answer: Response) -> None:
        """Log a warning if a 404 suggests a wrong base URL. It is logged once, because it concerns every call."""
        body = answer.body
        if not self._is_suspect or not isinstance(body, FullBody) or is_model_not_found(body.data):
            return
        self._is_suspect = False
        requested_url = self.origin + sent.target.partition("?")[0]  # without the query, which may contain a key
        fields = {**request.log_fields, "backend": self._backend, "asked": requested_url, "expected": EXPECTED}
        LOG.warning("the backend has no such path: is its base URL wrong?", extra={"fields": fields})
