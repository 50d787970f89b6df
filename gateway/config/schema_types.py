"""How scalars and shorthands are written: what reads a form, and the JSON Schema that editors check and complete by.

A schema never refuses what the gateway takes; what it cannot see, such as contradictions between keys, `nearhit check`
finds.
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
    """Metadata of a field: from the schema of its type to that of what may be written instead."""

    of: Callable[[Schema], Schema]

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return self.of(handler(core))


def or_schemas(*others: Schema) -> Shorthand:
    """One of the others in the place of the type; null is then none of it."""

    def of(inner: Schema) -> Schema:
        kept = [each for each in inner.get("anyOf", [inner]) if each != {"type": "null"}]
        return {"anyOf": [*kept, *others]}

    return Shorthand(of)


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """How text has to look: what reads it, and what editors check it by."""

    pattern: str  # of the whole text
    expected: str  # what it is, with an example

    def read(self, value: object) -> re.Match[str]:
        """The parts of a text of this form. Raises `ValueError`."""
        match = self.match(value)
        if match is None:
            raise ValueError(f"expected {self.expected}, got {format_value(value)}")
        return match

    def match(self, value: object) -> re.Match[str] | None:
        """The same; None for anything else."""
        return re.fullmatch(self.pattern, value, re.ASCII) if isinstance(value, str) else None

    @property
    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "description": self.expected}


OFF = any_of({"const": "off"}, {"const": False})
SWITCH = any_of({"type": "boolean"}, {"enum": ["on", "off"]})
