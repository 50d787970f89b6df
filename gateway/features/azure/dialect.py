"""Clients that write OpenAI's calls as Azure does, such as `AzureOpenAI` of OpenAI's library.

Such a call is one of OpenAI's dialect in all that caches and routes see. It only goes upstream in its own form, which
`BaseUrl` writes as the endpoint expects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from gateway.calls import Call, Outgoing
from gateway.dialect_traits import Endpoint
from gateway.dialects.conversation import Conversational
from gateway.dialects.json_body import dump_json, read_object
from gateway.dialects.known import RESPONSES, VERSIONED, path_of
from gateway.dialects.openai.dialect import OPERATIONS, Embeddings, OpenAI, call_of
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.errors import BadRequest

PATH = path_of("azure")
DEPLOYMENTS = "/openai/deployments/"
PREFIX = "/openai"
ENDPOINT = Endpoint(key_header="api-key", is_versioned=True)


def deployment_path(path: str, name: str) -> str:
    """Return the path of a deployment. `path` is OpenAI's, with its version. Raise `BadRequest` for a name that a
    server would take for a step within the path."""
    if name in (".", ".."):
        raise BadRequest("the model is invalid: expected the name of a deployment", param="model")
    return f"{DEPLOYMENTS}{quote(name, safe='')}{path.removeprefix(VERSIONED)}"


class _OfDeployment(Conversational):
    """A dialect whose paths name a deployment."""

    endpoint = ENDPOINT

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        sent = super().outgoing(path, call, model=model, kept=kept)
        return replace(sent, path=deployment_path(sent.path, model or call.model))


class _BehindPrefix(Conversational):
    """A dialect whose paths have a prefix."""

    endpoint = ENDPOINT

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        sent = super().outgoing(path, call, model=model, kept=kept)
        return replace(sent, path=PREFIX + sent.path)


class DeploymentChat(_OfDeployment, OpenAI):
    """Chat completions and completions of a deployment."""


class DeploymentEmbeddings(_OfDeployment, Embeddings):
    """Embeddings of a deployment."""


class PrefixedChat(_BehindPrefix, OpenAI):
    """Chat completions and completions of Azure's v1 API."""


class PrefixedEmbeddings(_BehindPrefix, Embeddings):
    """Embeddings of Azure's v1 API."""


class PrefixedResponses(_BehindPrefix, OpenAIResponses):
    """Responses of Azure's v1 API."""


class DatedResponses(OpenAIResponses):
    """Responses of Azure's dated API, whose path names no deployment."""

    endpoint = ENDPOINT

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        sent = super().outgoing(path, call, model=model, kept=kept)
        return replace(sent, path=PREFIX + sent.path.removeprefix(VERSIONED))


class DeploymentResponses(_OfDeployment, OpenAIResponses):
    """Responses of a deployment, as API managements offer them."""


class Azure(OpenAI):
    """`Azure` claims the requests in Azure's forms. Their calls belong to one of the dialects above."""

    name = "azure"
    endpoint = ENDPOINT

    def __init__(self) -> None:
        self._of_deployment: tuple[OpenAI, OpenAI] = DeploymentChat(), DeploymentEmbeddings()
        self._behind_prefix: tuple[OpenAI, OpenAI] = PrefixedChat(), PrefixedEmbeddings()
        self._responses: Mapping[str, OpenAIResponses] = {
            PREFIX + RESPONSES: PrefixedResponses(),
            PREFIX + RESPONSES.removeprefix(VERSIONED): DatedResponses(),
        }
        self._responses_of_deployment = DeploymentResponses()

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and PATH.fullmatch(path) is not None

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        if (responses := self._responses.get(path)) is not None:
            return replace(responses.parse(RESPONSES, body, headers), path=RESPONSES)
        value, written = read_object(body)
        if not path.startswith(DEPLOYMENTS):
            return _call(self._behind_prefix, path.removeprefix(PREFIX), value, written)
        name, known = self._deployment_of(path)
        if known == RESPONSES:
            named = body if value.get("model") == name else dump_json({**value, "model": name})
            return replace(self._responses_of_deployment.parse(RESPONSES, named, headers), path=RESPONSES)
        if value.get("model") == name:
            return _call(self._of_deployment, known, value, written)
        return _call(self._of_deployment, known, {**value, "model": name}, None)

    def _deployment_of(self, path: str) -> tuple[str, str]:
        """Return the deployment that a path names, and OpenAI's path. Raise `BadRequest`."""
        known = next(known for known in (*OPERATIONS, RESPONSES) if path.endswith(known.removeprefix(VERSIONED)))
        name = path.removeprefix(DEPLOYMENTS).removesuffix(known.removeprefix(VERSIONED))
        try:
            return unquote(name, errors="strict"), known
        except UnicodeDecodeError:
            raise BadRequest(f"the name of the deployment {name[:100]!r} is not UTF-8") from None


def _call(dialects: tuple[OpenAI, OpenAI], path: str, body: dict[str, Any], written: bytes | None) -> Call:
    """Return the call of a body. `path` is OpenAI's. The second one of the dialects is for embeddings."""
    operation = OPERATIONS[path]
    return replace(call_of(dialects[operation == "embeddings"], operation, body, written), path=path)
