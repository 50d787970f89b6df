"""Schemas of Gemini's protocol: a subset of OpenAPI's, as JSON Schema. Pure. https://ai.google.dev/api/caching#Schema"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.dialect_traits import AnswerParts, DemandedForm, Schema, ToolCall
from gateway.dialects.structured_answers import as_dict, as_list, tool_schemas
from gateway.features.gemini.answers import candidates_of, parts_of
from gateway.features.gemini.requests import camel_case, settings_of

NUMBERS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum"}
)
LEFT_OUT = frozenset({"nullable", "propertyOrdering", "example"})


def json_schema(schema: Any) -> Any:
    """Return a schema of Gemini's protocol as JSON Schema: types in lower case, integers in place of texts."""
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        name = key if "_" not in key else next(iter(camel_case({key: None})))
        if name == "type" and isinstance(value, str):
            plain[name] = value.lower()
        elif name in NUMBERS and isinstance(value, str):  # JSON writes 64-bit integers of protocol buffers as texts
            plain[name] = int(value) if value.lstrip("-").isdigit() else value
        elif name == "properties" and isinstance(value, Mapping):
            plain[name] = {each: json_schema(inner) for each, inner in value.items()}
        elif name == "anyOf" and isinstance(value, list):
            plain[name] = [json_schema(each) for each in value]
        elif name == "items":
            plain[name] = json_schema(value)
        elif name not in LEFT_OUT:
            plain[name] = value
    return _nullable(plain) if schema.get("nullable") is True else plain


def _nullable(plain: dict[str, Any]) -> dict[str, Any]:
    if "enum" in plain and isinstance(plain["enum"], list):
        plain["enum"] = [*plain["enum"], None]
    if isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    elif "anyOf" in plain:
        plain["anyOf"] = [*plain["anyOf"], {"type": "null"}]
    return plain


def answer_schema(config: Mapping[str, Any]) -> Any:
    """Return the JSON Schema that a request demands of its answer, or None."""
    for key in ("responseJsonSchema", "_responseJsonSchema"):
        if config.get(key) is not None:
            return config[key]
    schema = config.get("responseSchema")
    return None if schema is None else json_schema(schema)


def declarations_of(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the declared functions, each with the JSON Schema of its arguments as `schema`."""
    for tool in as_list(body.get("tools")):
        for function in as_list(as_dict(tool).get("functionDeclarations")):
            if isinstance(function, dict):
                own = function.get("parametersJsonSchema")
                yield {**function, "schema": json_schema(function.get("parameters")) if own is None else own}


def demanded_form(body: Mapping[str, Any]) -> DemandedForm:
    schema: Schema | None = answer_schema(settings_of(body))
    text = schema if isinstance(schema, dict | bool) else None
    return DemandedForm(text, tool_schemas([*declarations_of(body)], "schema"))


def read_parts_of_answer(body: Mapping[str, Any]) -> AnswerParts:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for candidate in candidates_of(body):
        parts = [part for part in parts_of(candidate) if not part.get("thought")]
        made = [part["functionCall"] for part in parts if "functionCall" in part]
        calls += [ToolCall(each["name"], each.get("args") or {}) for each in made]
        if not made:
            texts.append("".join(part["text"] for part in parts if "text" in part))
    return AnswerParts(tuple(texts), tuple(calls))
