"""Write docs/schema/admin-openapi.json and the table of docs/admin-api.md: `python -m docs.tools.openapi`.

The document describes the routes that the handlers of `gateway.admin` register, and those of `OPERATIONS`. A
handler declares its types with `gateway.admin.operations.operation`; its docstring has the summary, and `ROLES` the
role that it requires.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from docs.tools.page_parts import with_part
from gateway import admin
from gateway.admin import on_demand
from gateway.admin.middleware import ROLES
from gateway.admin.on_demand import OPERATIONS
from gateway.admin.operations import JSON, Operation, operation_of
from gateway.admin.responses import Error
from gateway.cli.json_schema import DescribedSchema, without_titles
from gateway.config.policy.schema import PolicyFile

DOCS = Path(__file__).parents[1]
SCHEMA = DOCS / "schema" / "admin-openapi.json"
PAGE = DOCS / "admin-api.md"
POLICY_SCHEMA = "policy.json"  # next to the document

_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_REFERENCE = "#/components/schemas/{model}"

Schema = dict[str, Any]
Types = Callable[[Any], Schema]  # returns the schema of a type, or a reference to it


class Endpoint(NamedTuple):
    """One route of the admin port."""

    method: str
    path: str
    handler: Any

    @property
    def role(self) -> str | None:
        """The required role. None: no credentials are required."""
        role = ROLES.get(f"{self.method} {self.path}")
        return None if role is None else str(role)

    @property
    def declared_types(self) -> Operation:
        """The types that the handler declares."""
        return operation_of(self.handler)

    @property
    def description(self) -> str:
        """The docstring of the handler."""
        text = inspect.getdoc(self.handler)
        assert text, f"{self.method} {self.path} has no docstring"
        return text

    @property
    def summary(self) -> str:
        """The first sentence of the description."""
        return re.split(r"\.\s", self.description, maxsplit=1)[0].rstrip(".")


def endpoints() -> list[Endpoint]:
    """Return the routes of all handlers, sorted by path."""
    found = [
        Endpoint(route.method, _PARAMETER.sub(r"{\1}", route.path), route.handler)
        for handlers in dict.fromkeys(_handler_classes())
        # routes() only refers to methods, so it works without the parts that __init__ needs
        for route in object.__new__(handlers).routes()
        if isinstance(route, web.RouteDef)
    ]
    return sorted(found, key=lambda each: (each.path, each.method))


def _handler_classes() -> Iterator[Any]:
    for module in pkgutil.iter_modules(admin.__path__, "gateway.admin."):
        if module.name == on_demand.__name__:  # its handlers are those of `OPERATIONS`
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name and hasattr(value, "routes"):
                yield value
    yield from map(OPERATIONS.load, OPERATIONS.own)


def document() -> Schema:
    """Return the OpenAPI document."""
    every = endpoints()
    schemas, types = _schemas(every)
    paths: Schema = {}
    for each in every:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas, types)
    for name in _parameter_names(every, types):  # their fields are parameters of the operations
        del schemas[name]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nearhit admin API",
            "version": "1",
            "description": "The operations of the admin port. docs/admin-api.md explains access and roles.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:9090"}],
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token, an API key, or an OIDC token.",
                },
                "basic": {"type": "http", "scheme": "basic", "description": "The same as the password; any user name."},
            },
            "schemas": schemas,
        },
    }


def _schemas(every: list[Endpoint]) -> tuple[Schema, Types]:
    """Return the named schemas, and a function from a type to its schema."""
    read: list[Any] = []  # types that the gateway receives
    written: list[Any] = [Error]
    for each in every:
        declared = each.declared_types
        read += [declared.query, declared.headers, declared.body]
        written += [declared.returns, declared.error, *declared.errors.values()]
    groups: list[tuple[JsonSchemaMode, list[Any]]] = [("validation", read), ("serialization", written)]
    inputs = [
        # A list takes this configuration; a TypedDict itself does not.
        (kind, mode, TypeAdapter(list[kind], config=ConfigDict(use_attribute_docstrings=True)))  # type: ignore[valid-type]
        for mode, kinds in groups
        for kind in dict.fromkeys(kinds)
        if kind not in (None, PolicyFile)
    ]
    found, shared = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE, schema_generator=DescribedSchema)
    items = {kind: without_titles(schema["items"]) for (kind, _), schema in found.items()}
    return without_titles(shared)["$defs"], lambda kind: {"$ref": POLICY_SCHEMA} if kind is PolicyFile else items[kind]


def _operation(endpoint: Endpoint, named: Schema, types: Types) -> Schema:
    declared = endpoint.declared_types
    found: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "description": endpoint.description,
        "x-required-role": endpoint.role,
    }
    if endpoint.role is None:
        found["security"] = []
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    for place, kind in (("query", declared.query), ("header", declared.headers)):
        parameters += [] if kind is None else _parameters(place, named[_name(types(kind))])
    if parameters:
        found["parameters"] = parameters
    if declared.body is not None:
        content = {declared.body_type: {"schema": types(declared.body)}}
        found["requestBody"] = {"required": declared.body_required, "content": content}
    return {**found, "responses": _responses(declared, types)}


def _parameters(place: str, fields: Schema) -> Iterator[Schema]:
    for name, schema in fields["properties"].items():
        about = {"description": schema["description"]} if "description" in schema else {}
        rest = {key: value for key, value in schema.items() if key != "description"}
        yield {"name": name, "in": place, **about, "schema": rest}


def _responses(declared: Operation, types: Types) -> Schema:
    answer: Schema = {"description": HTTPStatus(declared.status).phrase}
    if declared.etag:
        answer["headers"] = {"ETag": {"schema": {"type": "string"}}}
    if declared.status == HTTPStatus.FOUND:
        answer["headers"] = {"Location": {"schema": {"type": "string"}}}
    if declared.returns is not None:
        answer["content"] = {declared.returns_type: {"schema": types(declared.returns)}}
    errors = {
        str(status): {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": types(kind)}}}
        for status, kind in declared.errors.items()
    }
    default = {"description": "An error", "content": {JSON: {"schema": types(declared.error or Error)}}}
    return {str(declared.status): answer, **errors, "default": default}


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _parameter_names(every: list[Endpoint], types: Types) -> set[str]:
    declared = (endpoint.declared_types for endpoint in every)
    kinds = [kind for each in declared for kind in (each.query, each.headers) if kind is not None]
    return {_name(types(kind)) for kind in kinds}


def table() -> str:
    """Return the operations as a Markdown table."""
    lines = ["| operation | role | purpose |", "|---|---|---|"]
    lines += [f"| `{each.method} {each.path}` | {each.role or 'none'} | {each.summary} |" for each in endpoints()]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with its table written again. Raise `ValueError` if it does not have it once."""
    return with_part(page, "operations", table())


def text() -> str:
    """Return the document as the file has it."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    SCHEMA.write_text(text())
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
