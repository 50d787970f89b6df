"""GET /v1/models: lists the models of all backends of a route."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from gateway.context import RequestContext
from gateway.dialects.known import DEFAULT, DIALECTS, MODELS, answers_client, client_of, endpoint_of
from gateway.errors import BackendError, NotFound
from gateway.messages import FullBody, Provenance, Response
from gateway.outcomes import Bypass, Verdict
from gateway.streams import close_body
from gateway.upstream.backend import UpstreamPool

LOG = logging.getLogger("nearhit.models")

MAX_WAIT_S = 4.5  # for a backend's list: a person may wait for it, and clients give up after a few seconds


class ModelList:
    """Merges the model lists of several backends, in the dialect of the client; of equal names the first wins. With
    one HTTP backend that speaks this dialect, the request passes through unchanged.

    A backend that fails, or takes longer than `MAX_WAIT_S`, is left out, and the log says so. If all fail, the answer
    is that error.
    """

    def __init__(self, backends: Sequence[UpstreamPool]) -> None:
        self._backends = backends

    def answer(self, request: RequestContext) -> Awaitable[Response] | None:
        """Return None if the request does not ask for models, or passes through unchanged."""
        listed = _list_at(request) if request.method == "GET" and "models" in request.path else None
        if listed is None:
            return None
        path, client = listed
        backends = [backend for backend in self._backends if _lists_models(backend.speaks)]
        if not backends:
            return None  # a path of another protocol
        if len(backends) == 1 and backends[0].http and answers_client(backends[0].speaks, client):
            return None
        request.require_capacity()
        return self._answer(request, backends, path, client)

    async def _answer(
        self, request: RequestContext, backends: Sequence[UpstreamPool], path: str, client: str | None
    ) -> Response:
        models, missing = await self._merge_models(request, backends)
        objects = DIALECTS[client or DEFAULT].endpoint.models
        assert objects is not None  # both have lists of models
        name = unquote(request.path.removeprefix(path).lstrip("/"))  # names of models may contain slashes
        if not name:
            listed = list(models.values())
            return _json(objects.page(listed))
        if name not in models:
            return await self._ask_each(request, backends, missing, name, client)
        return _json(objects.write(models[name]))

    async def _ask_each(
        self,
        request: RequestContext,
        backends: Sequence[UpstreamPool],
        missing: Mapping[str, BackendError],
        name: str,
        client: str | None,
    ) -> Response:
        """Return the first backend's answer that has a model which no list has, such as an alias.

        Raise `NotFound`; `BackendError` if a backend that is missing may have it.
        """
        request.reads_answer = True
        for backend in backends:
            if backend.name not in missing and backend.http and answers_client(backend.speaks, client):
                try:
                    async with asyncio.timeout(MAX_WAIT_S):
                        response = await backend.call(request)
                except (BackendError, TimeoutError):
                    continue
                if response.status == 200 and _is_model(response):
                    provenance = Provenance(Verdict.BYPASS, reason=Bypass.PASS_THROUGH, backend=backend.name)
                    return Response(response.status, response.headers, response.body, provenance)
                await close_body(response.body)
        for failure in missing.values():
            raise failure
        raise NotFound(f"the model {name[:100]!r} does not exist")

    async def _merge_models(
        self, request: RequestContext, backends: Sequence[UpstreamPool]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, BackendError]]:
        """Return the models by name, and why backends are missing, by theirs. Raise `BackendError` if all are."""
        answers = await asyncio.gather(*(_list(request, backend) for backend in backends))
        models: dict[str, dict[str, Any]] = {}
        failures = {
            backend.name: answer
            for backend, answer in zip(backends, answers, strict=True)
            if isinstance(answer, BackendError)
        }
        for answer in answers:
            for model in answer if isinstance(answer, list) else ():
                models.setdefault(str(model.get("id")), model)
        if len(failures) == len(answers):
            raise next(iter(failures.values()))
        return models, failures


def _list_at(request: RequestContext) -> tuple[str, str | None] | None:
    """Return the path of the list, and the dialect of the client. Return None for a request that asks neither for a
    list nor for a model of one."""
    client = client_of(request.headers)
    for path, name in ((MODELS, client), *DIALECTS.model_lists.items()):
        if name == client and (request.path == path or request.path.startswith(path + "/")):
            return path, client
    return None


def _lists_models(speaks: str) -> bool:
    endpoint = endpoint_of(speaks)
    return endpoint is None or endpoint.models is not None


async def _list(request: RequestContext, backend: UpstreamPool) -> list[dict[str, Any]] | BackendError:
    """Return the models of a backend, or why it is missing from the list."""
    try:
        async with asyncio.timeout(MAX_WAIT_S):
            return await backend.models(request)
    except TimeoutError:
        failure = BackendError(f"backend '{backend.name}' did not list its models within {MAX_WAIT_S:g} s", status=504)
    except BackendError as error:
        failure = error
    except Exception as error:
        failure = BackendError(f"backend '{backend.name}' does not list its models ({type(error).__name__})")
    fields = {**request.log_fields, "backend": backend.name, "error": str(failure)}
    LOG.warning("a backend is missing in the list of models", extra={"fields": fields})
    return failure


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
