"""The forms of scalars and shorthands, with the JSON Schema by which editors check and complete them.

A schema accepts everything that the gateway accepts. It cannot see contradictions between keys; `nearhit check` finds
those.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from gateway.config.errors import format_value

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shorthand:
    """Field metadata: turns the schema of the type into the schema of everything that a file may write."""

    of: Callable[[Schema], Schema]

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return self.of(handler(core))


@dataclass(frozen=True, slots=True)
class FileForm:
    """Field metadata: turns a value back into the form that a file has. Defaults are shown in this form."""

    text: Callable[[Any], object]


ON_OR_OFF = FileForm(lambda value: "on" if value else "off")


def or_schemas(*others: Schema) -> Shorthand:
    """Return a shorthand that allows `others` besides the type, instead of null."""

    def of(inner: Schema) -> Schema:
        types = [each for each in inner.get("anyOf", [inner]) if each != {"type": "null"}]
        return {"anyOf": [*types, *others]}

    return Shorthand(of)


def any_of(*schemas: Schema) -> Schema:
    """Return the schema of a value that fits one of the schemas."""
    return {"anyOf": list(schemas)}


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """The form of a text, as a pattern."""

    pattern: str  # matches the whole text
    expected: str  # a noun phrase with an example, for errors and editors

    def read(self, value: object) -> re.Match[str]:
        """Return the match of a text of this form. Raise `ValueError` for anything else."""
        match = self.match(value)
        if match is None:
            raise ValueError(f"expected {self.expected}, got {format_value(value)}")
        return match

    def match(self, value: object) -> re.Match[str] | None:
        """Return the match of a text of this form, or None for anything else."""
        return re.fullmatch(self.pattern, value, re.ASCII) if isinstance(value, str) else None

    @property
    def schema(self) -> Schema:
        """The JSON Schema of the form."""
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "description": self.expected}


OFF = any_of({"const": "off"}, {"const": False})
SWITCH = any_of({"type": "boolean"}, {"enum": ["on", "off"]})
