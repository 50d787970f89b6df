"""Backends in the form of Azure's dated API: the path names the deployment, and the query the version."""

from __future__ import annotations

import re

from gateway.dialects.known import AZURE_NAME, VERSIONED
from gateway.dialects.openai.dialect import OPERATIONS
from gateway.features.azure.dialect import DEPLOYMENTS, PREFIX, deployment_path
from gateway.upstream.base_url import BaseUrl

_URL = re.compile(rf"(.*?)(?:/openai(?:/deployments/({AZURE_NAME}))?)?")
_OF_DEPLOYMENT = re.compile(rf"{DEPLOYMENTS}{AZURE_NAME}(/.+)")


class AzureUrl(BaseUrl):
    """`AzureUrl` maps paths to a resource of Azure, `https://NAME.openai.azure.com`, or to one deployment of it if the
    URL ends in `/openai/deployments/NAME`. `version` is for clients that name none."""

    def __init__(self, backend: str, url: str, version: str) -> None:
        super().__init__(backend, url, is_versioned=False)
        match = _URL.fullmatch(self._root)
        assert match is not None  # it may be all of the root
        self._root, self._deployment = match[1], match[2]
        self._version = version

    def path_of(self, path: str, model: str) -> str:
        return deployment_path(path, model) if path in OPERATIONS else path

    def target(self, path: str, query: str) -> str:
        if path.startswith(VERSIONED + "/"):
            path = PREFIX + path.removeprefix(VERSIONED)
        elif self._deployment is not None and (match := _OF_DEPLOYMENT.fullmatch(path)):
            path = f"{DEPLOYMENTS}{self._deployment}{match[1]}"
        if not path.startswith(PREFIX + VERSIONED) and not any(
            part.startswith("api-version=") for part in query.lower().split("&")
        ):
            query = f"{query}&api-version={self._version}" if query else f"api-version={self._version}"
        return super().target(path, query)
