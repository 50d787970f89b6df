"""The declaration of an admin operation: the types of its request and of its response.

Handlers carry the declaration for `docs.tools.openapi`, which writes the OpenAPI document from it. The gateway itself
does not read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypeVar

from typing_extensions import TypedDict  # pydantic requires this one on Python 3.11, and installs it

__all__ = ["JSON", "TEXT", "NotRequired", "Operation", "TypedDict", "operation", "operation_of"]

H = TypeVar("H", bound=Callable[..., Any])
JSON = "application/json"
TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Operation:
    """Types that pydantic can turn into a JSON Schema. None stands for no body, or no parameter."""

    returns: Any = None
    query: Any = None  # a TypedDict of the query parameters
    headers: Any = None  # a TypedDict of the request headers
    body: Any = None
    body_required: bool = True
    returns_type: str = JSON  # media type
    body_type: str = JSON  # media type
    status: int = 200
    error: Any = None  # default: `gateway.admin.responses.Error`
    errors: Mapping[int, Any] = field(default_factory=dict)  # by status, if it has another form
    etag: bool = False  # the response has an `ETag`


def operation(returns: Any = None, **declared: Any) -> Callable[[H], H]:
    """Declare the types of a handler: its response, and the other fields of `Operation`."""

    def declare(handler: H) -> H:
        handler.__dict__["operation"] = Operation(returns, **declared)
        return handler

    return declare


def operation_of(handler: Any) -> Operation:
    """Return the declaration of a handler. Raise `AttributeError` if it has none."""
    declared: Operation = handler.operation
    return declared
