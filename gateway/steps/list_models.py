"""GET /v1/models: lists the models of all backends of a route."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from gateway.context import RequestContext
from gateway.dialects.anthropic import speaks_anthropic
from gateway.dialects.known import MODELS
from gateway.dialects.translation.models import anthropic_model, anthropic_page
from gateway.errors import BackendError, NotFound
from gateway.messages import Bypass, FullBody, Provenance, Response, Verdict
from gateway.streams import close_body
from gateway.upstream.backend import UpstreamPool

LISTED = ("openai", "anthropic", "text")  # dialects with models by name


class ModelList:
    """Merges the model lists of several backends, in the dialect of the client; of equal names the first wins. With
    one HTTP backend that speaks this dialect, the request passes through unchanged.

    A backend that fails is left out. If all fail, the answer is that error.
    """

    def __init__(self, backends: Sequence[UpstreamPool]) -> None:
        self._backends = backends

    def answer(self, request: RequestContext) -> Awaitable[Response] | None:
        """Return None if the request does not ask for models, or passes through unchanged."""
        if request.method != "GET" or not (request.path == MODELS or request.path.startswith(MODELS + "/")):
            return None
        backends = [backend for backend in self._backends if backend.speaks in LISTED]
        if not backends:
            return None  # a path of another protocol
        anthropic = speaks_anthropic(request.headers)
        if len(backends) == 1 and backends[0].http and (backends[0].speaks == "anthropic") == anthropic:
            return None
        request.require_capacity()
        return self._answer(request, backends, anthropic=anthropic)

    async def _answer(self, request: RequestContext, backends: Sequence[UpstreamPool], *, anthropic: bool) -> Response:
        models = await self._merge_models(request, backends)
        name = unquote(request.path.removeprefix(MODELS).lstrip("/"))  # names of models may contain slashes
        if not name:
            listed = list(models.values())
            return _json(anthropic_page(listed) if anthropic else {"object": "list", "data": listed})
        if name not in models:
            return await self._ask_each(request, backends, name, anthropic=anthropic)
        return _json(anthropic_model(models[name]) if anthropic else models[name])

    async def _ask_each(
        self, request: RequestContext, backends: Sequence[UpstreamPool], name: str, *, anthropic: bool
    ) -> Response:
        """Return the first backend's answer that has a model which no list has, such as an alias. Raise `NotFound`."""
        request.reads_answer = True
        for backend in backends:
            if backend.http and (backend.speaks == "anthropic") == anthropic:
                try:
                    response = await backend.call(request)
                except BackendError:
                    continue
                if response.status == 200 and _is_model(response):
                    provenance = Provenance(Verdict.BYPASS, reason=Bypass.PASS_THROUGH, backend=backend.name)
                    return Response(response.status, response.headers, response.body, provenance)
                await close_body(response.body)
        raise NotFound(f"the model {name[:100]!r} does not exist")

    async def _merge_models(
        self, request: RequestContext, backends: Sequence[UpstreamPool]
    ) -> dict[str, dict[str, Any]]:
        answers = await asyncio.gather(*(backend.models(request) for backend in backends), return_exceptions=True)
        models: dict[str, dict[str, Any]] = {}
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for answer in answers:
            if not isinstance(answer, BaseException):
                for model in answer:
                    models.setdefault(str(model.get("id")), model)
        if failures and len(failures) == len(answers):
            raise failures[0] if isinstance(failures[0], BackendError) else BackendError("no backend lists its models")
        return models


def _is_model(response: Response) -> bool:
    """Return whether an answer describes a model. Some servers answer any path with 200."""
    if not isinstance(response.body, FullBody):
        return response.content_type.startswith("application/json")
    try:
        value = orjson.loads(response.body.data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("id"), str)


def _json(value: object) -> Response:
    provenance = Provenance(Verdict.BYPASS, reason=Bypass.PASS_THROUGH)
    return Response(200, (("Content-Type", "application/json"),), FullBody(orjson.dumps(value)), provenance)
