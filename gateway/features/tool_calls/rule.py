"""The key `tools` of the section `cache.admit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.cache.tool_calls import ToolCallRule
from gateway.calls import Call
from gateway.config.errors import format_value
from gateway.config.fields import Text
from gateway.config.schema_types import SWITCH, FileForm, or_schemas
from gateway.config.units import parse_switch
from gateway.dialect_traits import ToolCall
from gateway.features.tool_calls.identifiers import all_occur, identifiers_of
from gateway.outcomes import Admission

# The fields of a request that hold its texts.
TURNS = ("messages", "input", "contents", "system", "instructions", "systemInstruction", "prompt")


@dataclass(frozen=True, slots=True)
class NamedTools(ToolCallRule):
    """The tools that a stored answer may call. Arguments must not carry an identifier that the request's own turns
    lack: such an order number or session id came from elsewhere."""

    globs: tuple[str, ...]

    def refuse(self, call: Call, tool_calls: Sequence[ToolCall]) -> Admission | None:
        if not all(any(fnmatchcase(made.name, glob) for glob in self.globs) for made in tool_calls):
            return Admission.TOOLS
        identifiers = {identifier for made in tool_calls for identifier in identifiers_of(made.arguments)}
        if not identifiers or all_occur(identifiers, [call.body.get(key) for key in TURNS]):
            return None
        return Admission.FOREIGN_ID


def _tool_names(value: object) -> object:
    """Return the globs of a switch or a list: `on` stands for every name, `off` for none."""
    if isinstance(value, list | tuple):
        return tuple(value)
    try:
        return ("*",) if parse_switch(value) else ()
    except ValueError:
        expected = "expected on, off or a list of tools such as [get_weather]"
        raise ValueError(f"{expected}, got {format_value(value)}") from None


def _named(globs: tuple[str, ...]) -> NamedTools | None:
    return NamedTools(globs) if globs else None


ToolsForm = Annotated[
    tuple[Text, ...],
    Field(strict=False),
    BeforeValidator(_tool_names),
    or_schemas(SWITCH),
    FileForm(lambda rule: "off" if rule is None else "on" if rule.globs == ("*",) else list(rule.globs)),
    AfterValidator(_named),
]
SUMMARY = (
    'Responses that call tools are stored too: of the tools in a list of globs such as `[get_weather, "search_*"]`, or '
    "of any with `on`. A call with an identifier that its request does not have is never stored or served."
)
