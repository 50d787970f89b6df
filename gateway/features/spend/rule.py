"""The section `spend` of a route."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from gateway.config.fields import optional_section
from gateway.config.schema_types import ON_OR_OFF, SWITCH, or_schemas
from gateway.config.units import Switch
from gateway.config.validation import Section


class SpendRule(Section):
    """The books of a route's calls."""

    users: Switch = False
    """`on`: book the end users that requests name, too. Their names are then in the store. Exact hits take the longer
    path, since the user is in the body."""


SpendForm = Annotated[
    SpendRule | None, BeforeValidator(optional_section(SpendRule, "{users: on}")), or_schemas(SWITCH), ON_OR_OFF
]
SUMMARY = "`on`: book who spends how much on which model, and what hits save, for `nearhit spend`. Or `{users: on}`."
