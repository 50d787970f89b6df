"""The hours that a report covers. They count from the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from gateway.admin.operations import TypedDict
from gateway.config.units import parse_positive_duration
from gateway.errors import BadRequest
from gateway.features.spend.rows import HOUR_S
from gateway.features.spend.store import KEPT_S

_From = TypedDict(
    "_From",
    {
        "from": Annotated[
            str,
            Field(
                description="The day or hour (UTC) with which the report begins. Default: with the month.",
                examples=["2026-11-01"],
            ),
        ]
    },
    total=False,
)


class PeriodQuery(_From, total=False):
    to: Annotated[str, Field(examples=["2026-12-01"])]
    """The day or hour (UTC) before which the report ends. Default: now."""
    since: Annotated[str, Field(examples=["7d"])]
    """Instead of `from`: how long before the end the report begins."""


def hours_of(query: Mapping[str, str], now: int, first: int) -> tuple[int, int]:
    """Return the first hour of a report and the hour after its last one. `now` is in seconds. Without `from` and
    `since` the report begins with the hour `first`. Raise `BadRequest`."""
    if "from" in query and "since" in query:
        raise BadRequest("expected from or since, not both")
    end = min(_hour("to", query["to"]), now // HOUR_S + 1) if "to" in query else now // HOUR_S + 1
    if "since" in query:
        try:
            length = parse_positive_duration(query["since"])
        except ValueError as error:
            raise BadRequest(f"since: {error}") from None
        # An hour has one sum, so the report begins with the hour in which the time begins.
        first = int((now if "to" not in query else end * HOUR_S) - length) // HOUR_S
    elif "from" in query:
        first = _hour("from", query["from"])
    return max(first, (now - KEPT_S) // HOUR_S), end


def first_of_month(now: int) -> int:
    """Return the first hour of the month (UTC) of a time in seconds."""
    month = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0)
    return int(month.timestamp()) // HOUR_S


def iso_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _hour(name: str, text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) // HOUR_S
    except (ValueError, OverflowError):
        raise BadRequest(f"{name}: expected a day or a time such as 2026-11-01 or 2026-11-01T06:00") from None
