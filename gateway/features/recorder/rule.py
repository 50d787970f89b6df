"""The section `record` of a route."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from gateway.config.fields import optional_section
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import PositiveShare, Switch
from gateway.config.validation import Section


class RecordRule(Section):
    """The part of a route's traffic that `nearhit simulate` gets."""

    share: PositiveShare = 1.0
    """The share of the questions to record, with every request of a drawn question."""
    prompts: Switch = False
    """`on`: record the questions too, so that neighbours which were never judged can be judged later."""


RecordForm = Annotated[
    RecordRule | None, BeforeValidator(optional_section(RecordRule, "{share: 10%}")), or_schemas(SWITCH), ON_OR_OFF
]
SUMMARY = (
    "`on`: record what decides about the route's requests, without any text, for `nearhit simulate`. Or `{share: 10%, "
    "prompts: on}`."
)
