"""Write the upstream's name of a model into a request that passes through: into its query, JSON body or form. Pure.

A body that two readers could read differently stays as it is, and its backend judges it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from gateway.dialects.forms import parse_form, write_form
from gateway.dialects.json_body import dump_json, read_object
from gateway.dialects.named_models import FIELD, MAX_FIELDS, BodyKind, kind_of
from gateway.errors import BadRequest

Names = Mapping[str, str]  # of clients, each with the one that goes upstream


@dataclass(frozen=True, slots=True)
class Renaming:
    """The names of a backend that hold for calls that pass through."""

    names: Names

    def query(self, query: str) -> str:
        return renamed_query(query, self.names)

    def body(self, body: bytes, content_type: str) -> tuple[bytes, str] | None:
        return renamed_body(body, content_type, self.names)


def renamed_query(query: str, names: Names) -> str:
    """Return a query with the upstream's name of its model."""
    if FIELD not in query:
        return query
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return query
    renamed = [(name, names.get(value, value) if name == FIELD else value) for name, value in pairs]
    return query if renamed == pairs else urlencode(renamed)


def renamed_body(body: bytes, content_type: str, names: Names) -> tuple[bytes, str] | None:
    """Return a body with the upstream's name of its model, and its Content-Type. None: it stays as it is."""
    kind = kind_of(content_type, body)
    try:
        if kind is BodyKind.JSON:
            return _renamed_object(body, content_type, names)
        if kind is BodyKind.MULTIPART:
            return _renamed_form(body, content_type, names)
    except BadRequest:
        return None
    if kind is BodyKind.FORM:
        text = body.decode("utf-8", "replace")
        renamed = renamed_query(text, names)
        return None if renamed == text else (renamed.encode(), content_type)
    return None


def _renamed_object(body: bytes, content_type: str, names: Names) -> tuple[bytes, str] | None:
    fields, _ = read_object(body)
    if (name := _name_of(fields, names)) is not None:
        return dump_json({**fields, FIELD: name}), content_type
    session = fields.get("session")  # of OpenAI's realtime API
    if FIELD not in fields and isinstance(session, Mapping) and (name := _name_of(session, names)) is not None:
        return dump_json({**fields, "session": {**session, FIELD: name}}), content_type
    return None


def _name_of(fields: Mapping[str, Any], names: Names) -> str | None:
    value = fields.get(FIELD)
    return names.get(value) if isinstance(value, str) else None


def _renamed_form(body: bytes, content_type: str, names: Names) -> tuple[bytes, str] | None:
    parts = parse_form(body, content_type)
    models = [part for part in parts if part.name == FIELD and part.filename is None]
    name = names.get(models[0].data.decode("utf-8", "replace")) if len(models) == 1 else None
    if name is None or not all(part.is_plain for part in parts):
        return None
    return write_form([replace(part, data=name.encode()) if part is models[0] else part for part in parts])
