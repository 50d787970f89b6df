"""Base URLs of Gemini's endpoints: of the Gemini API, and of a project on Vertex AI."""

from __future__ import annotations

import re

from yarl import URL

from gateway.upstream.base_url import BaseUrl

PUBLISHER = "/publishers/google"
_URL = re.compile(r"(.*?)(?:/(v\d+[a-z0-9]*)(/projects/[^/]+/locations/[^/]+)?(?:/publishers/google)?)?")
_PATH = re.compile(r"/(v\d+[a-z0-9]*)(/.*)")
_MODELS = re.compile(r"(?:/projects/[^/]+/locations/[^/]+)?(?:/publishers/google)?(/models(?:/.*)?)")


class GeminiUrl(BaseUrl):
    """`GeminiUrl` maps paths to an endpoint of Gemini's protocol.

    The version in the URL replaces that of clients. The URL may be that of a project on Vertex AI. Then all calls of
    models go there, whatever project the client names.
    """

    def __init__(self, backend: str, url: str) -> None:
        super().__init__(backend, url, is_versioned=False)
        match = _URL.fullmatch(URL(url).raw_path.rstrip("/"))
        assert match is not None  # the first group may be all of it
        self._root, self._version, self._project = match[1], match[2], match[3]
        self._base = self._root + "/v1"

    def target(self, path: str, query: str) -> str:
        if (match := _PATH.fullmatch(path)) is not None:
            below = match[2]
            if self._project is not None and (models := _MODELS.fullmatch(below)) is not None:
                below = f"{self._project}{PUBLISHER}{models[1]}"
            path = f"/{self._version or match[1]}{below}"
        return super().target(path, query)
