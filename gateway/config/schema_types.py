"""How scalars and shorthands are written, as JSON Schema: what editors check and complete by.

A schema never refuses what the gateway takes; what it cannot see, such as contradictions between keys, `nearhit check`
finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """Metadata of a field: its schema, whatever its type in the program is."""

    schema: Schema

    def __hash__(self) -> int:
        return hash(str(self.schema))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return dict(self.schema)


@dataclass(frozen=True, slots=True)
class Shorthand:
    """Metadata of a field: from the schema of its type to that of what may be written instead."""

    of: Callable[[Schema], Schema]

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return self.of(handler(core))


def or_written(*others: Schema) -> Shorthand:
    """One of the others in the place of the type; null is then none of it."""

    def of(inner: Schema) -> Schema:
        kept = [each for each in inner.get("anyOf", [inner]) if each != {"type": "null"}]
        return {"anyOf": [*kept, *others]}

    return Shorthand(of)


def text(pattern: str, description: str) -> Schema:
    """Text of which the whole is as `pattern` says."""
    return {"type": "string", "pattern": f"^(?:{pattern})$", "description": description}


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


_DURATION = text(r"\d{1,12}(\.\d{1,9})?(ms|s|m|h|d)", "a duration such as 250ms, 30s, 5m, 24h or 7d")
_LONGER = text(r"(?=.*[1-9])\d{1,12}(\.\d{1,9})?(ms|s|m|h|d)", "a duration such as 250ms, 30s, 5m, 24h or 7d")
_PERCENT = text(r"(100(\.0{1,9})?|0?\d{1,2}(\.\d{1,9})?)%", "a share such as 1%")
_SOME = text(r"(?=.*[1-9])(100(\.0{1,9})?|0?\d{1,2}(\.\d{1,9})?)%", "a share such as 1%")
_OFF = any_of({"const": "off"}, {"const": False})
DURATION = any_of(_DURATION, {"const": 0})
POSITIVE_DURATION = _LONGER
DURATION_OR_OFF = any_of(_LONGER, _OFF, {"type": "null"})
SHARE = any_of(_PERCENT, {"type": "number", "minimum": 0, "maximum": 1})
POSITIVE_SHARE = any_of(_SOME, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})
SIZE = any_of(
    text(r"\d{1,15}(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", "a size such as 64MiB or 1GB"),
    {"type": "integer", "minimum": 1},
)
RATE = text(r"\d{1,6}(\.\d{1,6})?/s", "a rate such as 50/s")
ADDRESS = text(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):\d{1,5}", "HOST:PORT such as 127.0.0.1:8080")
SWITCH = any_of({"type": "boolean"}, {"enum": ["on", "off"]})
NAME = text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name of letters, digits, '.', '_' and '-'")
ENVIRONMENT_NAME = text(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of an environment variable, not the secret itself")
DEVICE = text(r"cpu|cuda(:\d{1,2})?", "cpu, cuda or cuda:N")
KEY_HASH = text(r"[0-9a-fA-F]{64}", "the SHA-256 of an API key")
ONE: Schema = {"const": 1}
OFF = _OFF
PACE = text(r"\d{1,9}(\.\d{1,3})?(k|M)?/(s|min|h|day)", "a rate such as 20/s, 600/min, 5k/h or 1M/day")
DOLLARS = text(r"\d{1,9}(\.\d{1,6})? ?USD", "an amount such as 20 USD")
HTTP_URL = text(r"[Hh][Tt][Tt][Pp][Ss]?://.+", "a URL such as https://api.openai.com/v1")
GRPC_URL = text(r"[Gg][Rr][Pp][Cc][Ss]?://.+", "grpc://HOST:PORT or grpcs://HOST:PORT")
INDEX_URL = text(
    r"([Hh][Tt][Tt][Pp][Ss]?://[^@/]+(/.*)?|.+\.db)", "a URL such as http://127.0.0.1:19530, or a file *.db"
)
PARTS = any_of(
    {"type": "string", "minLength": 1, "description": "a backend"},
    {"type": "object", "minProperties": 1, "additionalProperties": POSITIVE_SHARE, "description": "backend: its part"},
)
_STEP: Schema = {"type": "number", "minimum": 0, "maximum": 1}
STEPS = any_of(_STEP, {"type": "array", "items": _STEP, "minItems": 1}, {"type": "null"})
