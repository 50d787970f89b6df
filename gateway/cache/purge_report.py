"""What is asked of a removal, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.cache.bans import SHOWN_DIGITS
from gateway.errors import Refused
from gateway.messages import Entry

SAMPLES, QUESTION_SHOWN = 10, 80


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be removed, as it was asked for. At least one is given."""

    tags: tuple[str, ...] = ()
    tenant: str | None = None
    route: str | None = None
    model: str | None = None
    like: str | None = None
    min_similarity: float = 0.8
    older_than_s: float | None = None
    fingerprint: str | None = None
    all: bool = False
    backend: str | None = None

    def described(self) -> dict[str, Any]:
        """Without texts that users wrote."""
        given = {
            "tags": list(self.tags),
            "tenant": self.tenant and self.tenant[:SHOWN_DIGITS],
            "route": self.route,
            "model": self.model,
            "backend": self.backend,
            "like": self.like is not None,
            "min_similarity": None if self.like is None else self.min_similarity,
            "older_than_s": self.older_than_s,
            "fingerprint": self.fingerprint,
            "all": self.all,
        }
        return {name: value for name, value in given.items() if value not in (None, False, [])}


@dataclass(slots=True)
class Outcome:
    """Counts what has been done so far."""

    matched: int = 0
    removed: int = 0
    recorded: bool = False  # all gateways on the store heed it, also after a restart
    durable: bool = False  # it is known to have reached the store's disk
    samples: list[dict[str, Any]] = field(default_factory=list)
    late: set[str] = field(default_factory=set)  # close to the question, and only found in the store
    notes: list[str] = field(default_factory=list)  # what is likely not as it was meant

    def match(self, entries: Iterable[Entry], now: float) -> None:
        for entry in entries:
            self.matched += 1
            if len(self.samples) < SAMPLES:
                self.samples.append(sample_of(entry, now))

    def as_json(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            "removed": self.removed,
            "durable": self.durable,
            "samples": self.samples,
            "notes": self.notes,
        }


class Incomplete(Refused):
    """The store failed on the way; `outcome` says what has been done."""

    status = 503
    kind = "store_unavailable"

    def __init__(self, outcome: Outcome, error: str) -> None:
        where = (
            "the removal is in force in every gateway on this store, and what is left in it is not served"
            if outcome.recorded
            else "the removal is in force in this gateway alone, until the store answers or it restarts"
        )
        super().__init__(f"{error}; {where}: ask again", retry_after_s=1)
        self.outcome = outcome


def sample_of(entry: Entry, now: float) -> dict[str, Any]:
    """What an operator is shown of an entry."""
    return {
        "fingerprint": entry.fingerprint,
        "route": entry.route,
        "tenant": entry.tenant[:SHOWN_DIGITS],
        "model": entry.model,
        "age_s": round(max(0.0, now - entry.created), 3),
        "tags": list(entry.tags),
        "question": None if entry.question is None else entry.question[:QUESTION_SHOWN],
    }
