"""The section `session` of a route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from gateway.config.errors import format_value
from gateway.config.units import PositiveDuration
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of

SessionName = Literal["x-session-id", "previous_response_id", "prompt_cache_key", "user", "turns"]


class SessionRule(Section):
    """Sessions: a conversation keeps to its backend."""

    by: Annotated[
        tuple[Annotated[SessionName, one_of(*get_args(SessionName))], ...], Field(strict=False), NOT_EMPTY
    ] = ("x-session-id", "previous_response_id", "turns")
    """The names of a session; the first that a request has counts. `x-session-id` is a header, the others are of the
    body. `turns`: the hash of the first turns."""
    idle: PositiveDuration = 600.0
    """After this time without a request, a session may fall to a lighter tier."""
    hold: Annotated[Literal["tier", "upstream", "off"], one_of("tier", "upstream", "off")] = "tier"
    """`tier`: keep the backend, and within a tool loop its upstream. `upstream`: keep the upstream always. `off`: no
    sessions."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        by = settings.get("by")
        if isinstance(by, list):
            for place, name in enumerate(by):
                if name in by[:place]:
                    yield Problem("by", f"{format_value(name)} is there twice, expected each name once")
                    return


def _unless_off(rule: SessionRule | None) -> SessionRule | None:
    return None if rule is None or rule.hold == "off" else rule


SessionForm = Annotated[SessionRule | None, AfterValidator(_unless_off)]
SUMMARY = "`{idle: 10m, hold: tier}`: a conversation keeps to its backend. Without it, each request is routed alone."
