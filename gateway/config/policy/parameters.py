"""The parameters that a tier sets on its requests: `{backend: main, parameters: {reasoning_effort: low}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gateway.config.errors import format_value, unknown_name
from gateway.config.schema_types import Schema

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # ascending
MIN_BUDGET = 1024  # tokens: the least that Anthropic's API accepts
OPENING = "["  # no name of a backend has it


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a request. None leaves the client's own value."""

    reasoning_effort: str | None = None  # one of `EFFORTS`
    thinking_budget: int | None = None  # tokens, at least `MIN_BUDGET`, or 0 for no thinking
    max_tokens: int | None = None  # of the answer, at least 1

    def __str__(self) -> str:
        parameters = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ",".join(f"{name}={value}" for name, value in parameters if value is not None)


@dataclass(frozen=True, slots=True)
class TunedBackend:
    """A backend with parameters. Decisions, answers, entries and logs carry its `name`, such as
    `main[reasoning_effort=low]`."""

    backend: str  # as the configuration names it
    parameters: Parameters

    @property
    def name(self) -> str:
        return f"{self.backend}{OPENING}{self.parameters}]"


def untuned(name: str) -> str:
    """Return the backend of the configuration that a name of a decision or an answer stands for."""
    return name.partition(OPENING)[0]


def parse_parameters(value: object) -> Parameters:
    """Parse the parameters of a tier. Raise `ValueError`."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"parameters: expected a mapping such as {{reasoning_effort: low}}, got {format_value(value)}")
    names = [each.name for each in fields(Parameters)]
    for key in value:
        if key not in names:
            raise ValueError(f"parameters: {unknown_name(f'key {format_value(key)}', key, names)}")
    return Parameters(
        _effort(value),
        _tokens(value, "thinking_budget", f"0 or a whole number of at least {MIN_BUDGET}", MIN_BUDGET, zero=True),
        _tokens(value, "max_tokens", "a whole number of at least 1", 1),
    )


def _effort(value: Mapping[str, Any]) -> str | None:
    effort = value.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise ValueError(
            f"parameters.reasoning_effort: expected one of: {', '.join(EFFORTS)}, got {format_value(effort)}"
        )
    return effort


def _tokens(value: Mapping[str, Any], key: str, expected: str, least: int, *, zero: bool = False) -> int | None:
    tokens = value.get(key)
    if tokens is None:
        return None
    if isinstance(tokens, bool) or not isinstance(tokens, int) or (tokens < least and not (zero and tokens == 0)):
        raise ValueError(f"parameters.{key}: expected {expected}, got {format_value(tokens)}")
    return tokens


PARAMETERS_SCHEMA: Schema = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "reasoning_effort": {"enum": list(EFFORTS), "description": "the effort of a reasoning model"},
        "thinking_budget": {
            "anyOf": [{"const": 0}, {"type": "integer", "minimum": MIN_BUDGET}],
            "description": "tokens for thinking; 0: no thinking",
        },
        "max_tokens": {"type": "integer", "minimum": 1, "description": "the most tokens of an answer"},
    },
}
