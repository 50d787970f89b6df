"""Helpers of the admin port's handlers: JSON responses, parameters, bodies and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import ValidationError

from gateway.admin.operations import TypedDict
from gateway.config.validation import Section, error_messages
from gateway.errors import BadRequest, GatewayError, PayloadTooLarge, StoreUnavailable

S = TypeVar("S", bound=Section)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NO_STORE = {"Cache-Control": "no-store"}


class Error(TypedDict):
    error: str
    """The reason in one sentence."""


def json_response(value: object, status: int = 200) -> web.Response:
    """Return a JSON response that may not be stored."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json", headers=NO_STORE)


def int_parameter(request: web.Request, name: str, default: int, maximum: int) -> int:
    """Return a query parameter that is a whole number from 1 to `maximum`. Raise `BadRequest`."""
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= maximum:
        raise BadRequest(f"{name}: expected a whole number from 1 to {maximum}")
    return int(text)


def parse_object(data: bytes, of: str) -> dict[str, Any]:
    """Return a JSON object. `of` names its contents in errors. Raise `BadRequest`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise BadRequest(f"the body is not JSON: expected an object of {of}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"expected a JSON object of {of}")
    return value


def parse_section(kind: type[S], value: dict[str, Any]) -> S:
    """Return the body as a model. Raise `BadRequest` with every fault."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, path))}: {message}" if path else message for path, message in error_messages(error)
        ]
        raise BadRequest("; ".join(faults)) from None


async def read_body(request: web.Request) -> bytes:
    """Return the body of a request. Raise `PayloadTooLarge`."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise PayloadTooLarge("the body is larger than 1 MiB") from None


def json_errors(handler: Handler, progress_of: Callable[[GatewayError], dict[str, Any]] = lambda _: {}) -> Handler:
    """Return a handler that answers errors as JSON: one sentence, and the fields that `progress_of` adds."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except StoreUnavailable as error:
            read_only = request.method in ("GET", "HEAD")
            return json_response({"error": str(error) if read_only else f"{error}: nothing was done"}, 503)
        except GatewayError as error:
            return json_response({"error": error.message, **progress_of(error)}, error.status)

    return answer
