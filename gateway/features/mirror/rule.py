"""The section `route.shadow` of a route."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config.fields import Text
from gateway.config.units import PositiveShare
from gateway.config.validation import Section


class ShadowRule(Section):
    """Mirroring: a share of the misses also goes to another backend."""

    backend: Text = Field(examples=["next"])
    """The backend that gets the copies."""
    share: PositiveShare = Field(examples=["1%"])
    """The share of the misses to copy, after the client's answer is complete."""
    per_hour: Annotated[int, Field(ge=1)] | None = None
    """Calls per hour. Without it, no bound."""


SUMMARY = (
    "`{backend: next, share: 1%}`: send a share of the misses to another backend as well, and compare both answers."
)
