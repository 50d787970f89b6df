"""The section `trace` of a route."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.config.fields import optional_section
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import Switch
from gateway.config.validation import Section


class TraceRule(Section):
    """The texts of a route's requests in its exported traces."""

    prompts: Switch = True
    """`on`: the prompt is in the span of its request, as `gen_ai.input.messages`."""
    answers: Switch = True
    """`on`: the text of the answer is in the span of its request, as `gen_ai.output.messages`."""
    max_chars: Annotated[int, Field(ge=1, le=65_536)] = 4_096
    """Characters of each text, from its beginning."""


TraceForm = Annotated[
    TraceRule | None,
    BeforeValidator(optional_section(TraceRule, "{answers: off}")),
    or_schemas(SWITCH),
    ON_OR_OFF,
]
SUMMARY = (
    "`on`: prompts and answers are in the traces that `telemetry.traces` exports, without the personal data that "
    "`privacy` finds. `off`: never."
)
