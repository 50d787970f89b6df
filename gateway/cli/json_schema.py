"""`nearhit schema` prints the JSON Schema of both kinds of file, from the models that read them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.cli.output import print_line
from gateway.cli.parser import Command
from gateway.config import Config
from gateway.config.descriptions import describe, file_default
from gateway.config.policy.schema import PolicyFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_VARIABLE = {"type": "string", "pattern": r"\$\{", "description": "from the environment"}
# The values of these keys map names to schemas, and a name may be `title`.
_NAMED = ("properties", "$defs")


def register(command: Command) -> None:
    command.define(
        run,
        "policy > policy.schema.json",
        "config",
        about="Editors use the schema to complete and check YAML. docs/schema has the same files.",
    )
    command.add_argument("kind", choices=("policy", "config"))


def run(arguments: argparse.Namespace) -> int:
    schema = policy_schema() if arguments.kind == "policy" else config_schema()
    return print_line(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())


def policy_schema() -> dict[str, Any]:
    """Return the schema of a policy file."""
    schema = PolicyFile.model_json_schema(schema_generator=DescribedSchema)
    return _with_header("nearhit: a policy file", without_titles(schema))


def config_schema() -> dict[str, Any]:
    """Return the schema of `config.yaml`, in which a variable may stand for any scalar."""
    schema = Config.model_json_schema(schema_generator=DescribedSchema)
    return _with_header("nearhit: config.yaml", _with_variables(without_titles(schema)))


def _with_header(title: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, "title": title, **schema}


class DescribedSchema(GenerateJsonSchema):
    """Adds to each key its description and its default, as a file writes it."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        json_schema = super().model_schema(schema)
        section: Any = schema["cls"]
        properties = json_schema["properties"]
        fields = dict(section.model_fields)
        for extension in section.further_keys():
            fields[extension.key] = extension.field
            properties[extension.key] = self.generate_inner(extension.form.core_schema)
            properties[extension.key]["default"] = None
        json_schema["properties"] = properties = {key: properties[key] for key in section.listed_keys()}
        for key, text in describe(section).items():
            value = {
                name: item for name, item in properties[key].items() if name != "default"
            }  # pydantic writes it in seconds and bytes
            form = value.get("description")  # how to write the value
            properties[key] = {**value, "description": f"{text} Write {form}." if form else text}
            if (default := file_default(fields[key])) is not None:
                properties[key]["default"] = default
        return json_schema


def without_titles(value: Any, *, named: bool = False) -> Any:
    """Remove the titles that pydantic derives from the names."""
    if isinstance(value, list):
        return [without_titles(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_titles(item, named=not named and key in _NAMED)
        for key, item in value.items()
        if named or key != "title"
    }


def _with_variables(value: Any, *, named: bool = False) -> Any:
    if isinstance(value, list):
        return [_with_variables(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not named and _is_scalar(value):
        about = {key: value[key] for key in ("description", "default", "examples") if key in value}
        return {**about, "anyOf": [{key: item for key, item in value.items() if key not in about}, _VARIABLE]}
    return {
        key: item
        if key in ("enum", "examples", "required", "default") and not named
        else _with_variables(item, named=not named and key in _NAMED)
        for key, item in value.items()
    }


def _is_scalar(schema: Mapping[str, Any]) -> bool:
    if "const" in schema or "enum" in schema:
        return True
    return schema.get("type") in ("integer", "number", "boolean") or "pattern" in schema
