"""JSON Schema of both kinds of file, from the models that read them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.cli.output import print_line
from gateway.cli.parser import Command
from gateway.config import Config
from gateway.config.policy.schema import PolicyFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_VARIABLE = {"type": "string", "pattern": r"\$\{", "description": "from the environment"}
# Their values are schemas by name, not schemas: a key may be called `title` or `default`.
_NAMED = ("properties", "$defs")


def register(command: Command) -> None:
    command.define(
        run,
        "policy > policy.schema.json",
        "config",
        about="For editors that complete and check YAML by it. The same files are in docs/schema.",
    )
    command.add_argument("kind", choices=("policy", "config"))


def run(arguments: argparse.Namespace) -> int:
    schema = policy_schema() if arguments.kind == "policy" else config_schema()
    return print_line(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())


def policy_schema() -> dict[str, Any]:
    """Of a file of `policies/`."""
    return _with_header("nearhit: a policy file", _strip_internal(PolicyFile.model_json_schema()))


def config_schema() -> dict[str, Any]:
    """Of `config.yaml`, where any value may come from a variable."""
    schema = _with_variables(_strip_internal(Config.model_json_schema()))
    return _with_header("nearhit: config.yaml", schema)


def _with_header(title: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, "title": title, **schema}


def _strip_internal(value: Any, *, named: bool = False) -> Any:
    """Without what the program knows and no editor should show: titles made of names, defaults in seconds and bytes."""
    if isinstance(value, list):
        return [_strip_internal(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _strip_internal(item, named=not named and key in _NAMED)
        for key, item in value.items()
        if named or key not in ("title", "default")
    }


def _with_variables(value: Any, *, named: bool = False) -> Any:
    if isinstance(value, list):
        return [_with_variables(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not named and _is_scalar(value):
        return {"anyOf": [value, _VARIABLE]}
    return {
        key: item
        if key in ("enum", "examples", "required") and not named
        else _with_variables(item, named=not named and key in _NAMED)
        for key, item in value.items()
    }


def _is_scalar(schema: Mapping[str, Any]) -> bool:
    if "const" in schema or "enum" in schema:
        return True
    return schema.get("type") in ("integer", "number", "boolean") or "pattern" in schema
