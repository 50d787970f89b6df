"""The rows of the books: whose calls, and their counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

HOUR_S = 3_600
NANOS = 1_000_000_000  # of a dollar: small calls cost some millionths
MAX_NAME = 200  # characters; longer names are cut
# Characters of an end user, who may be several names in JSON. Nobody could erase a part of one, so a longer one is kept
# as `others`.
MAX_USER = 512

DIMENSIONS = ("tenant", "key", "user", "route", "backend", "model")
PERIODS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00Z"}  # what a report may have rows by, besides: the hours have them


class Party(NamedTuple):
    """The owner of a budget: a route, or one tenant or key on it. `kind` is `tenant` or `key`; empty: the route."""

    route: str
    kind: str = ""
    name: str = ""


class Payer(NamedTuple):
    """The row that a call belongs to. An empty name: the call has none, such as a request without an API key."""

    tenant: str = ""
    key: str = ""
    user: str = ""
    route: str = ""
    backend: str = ""
    model: str = ""

    def packed(self) -> bytes:
        """Return the name of the row in the store."""
        user = self.user if len(self.user) <= MAX_USER else OTHERS.user
        names = (*(name[:MAX_NAME] for name in self[:2]), user, *(name[:MAX_NAME] for name in self[3:]))
        return orjson.dumps([name.encode("utf-8", "replace").decode() for name in names])

    @staticmethod
    def of(packed: bytes) -> Payer | None:
        """Return None if a later version wrote something else."""
        try:
            names = orjson.loads(packed)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(names, list) or len(names) != len(DIMENSIONS) or not all(isinstance(n, str) for n in names):
            return None
        return Payer(*names)


OTHERS = Payer(*["others"] * len(DIMENSIONS))
"""The row of all calls beyond the bound on rows."""


@dataclass(slots=True)
class Counts:
    """The counts of a row. `cost` and `saved` are in billionths of a dollar. `calls` are those to backends, and
    `unpriced` those of them without a price."""

    requests: int = 0
    hits: int = 0
    calls: int = 0
    unpriced: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    cost: int = 0
    saved: int = 0
    saved_tokens: int = 0

    def add(self, other: Counts) -> None:
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def packed(self) -> str:
        return " ".join(str(getattr(self, name)) for name in NAMES)

    @staticmethod
    def of(packed: bytes) -> Counts:
        """Return the counts in the store. Raise `ValueError` if they are none."""
        return Counts(*map(int, packed.split()[: len(NAMES)]))


NAMES = tuple(each.name for each in fields(Counts))


Groups = dict[tuple[str, ...], Counts]
"""Counts by some dimensions."""


def add_hour(groups: Groups, hour: int, rows: Iterable[tuple[Payer, Counts]], by: Sequence[str]) -> None:
    """Add the rows of an hour, by these dimensions and periods."""
    begin = datetime.fromtimestamp(hour * HOUR_S, UTC)
    periods = {name: begin.strftime(form) for name, form in PERIODS.items()}
    for payer, counts in rows:
        names = tuple(periods[name] if name in periods else getattr(payer, name) for name in by)
        groups.setdefault(names, Counts()).add(counts)


def shown(counts: Counts) -> dict[str, Any]:
    """Return the counts as a report shows them. The cost is None if no call has a price."""
    return {
        "requests": counts.requests,
        "hits": counts.hits,
        "tokens": counts.input + counts.output,
        "cost": None if counts.calls and counts.unpriced == counts.calls else dollars(counts.cost),
        "saved": dollars(counts.saved),
    }


def dollars(nanos: int) -> float:
    return nanos / NANOS


def report(groups: Groups, by: Sequence[str]) -> Mapping[str, Any]:
    """Return the report: the rows with the highest cost first, and their sum."""
    total = Counts()
    for counts in groups.values():
        total.add(counts)
    ordered = sorted(groups.items(), key=lambda row: (-row[1].cost, -row[1].saved, row[0]))
    unpriced = {"not_priced": total.unpriced} if total.unpriced else {}
    return {
        "rows": [{**dict(zip(by, names, strict=True)), **shown(counts)} for names, counts in ordered],
        "total": shown(total) | unpriced,
    }
