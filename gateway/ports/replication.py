"""What gateways on one store tell each other, through the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ChangeKind(StrEnum):
    """What has changed in the store. The value is a field's name in the log."""

    VECTORS = "vectors"  # entries with a vector came, or entries went: fingerprints
    RECORDS = "records"  # entries came that no index finds: fingerprints
    COUNTEREXAMPLE = "counterexample"  # its key
    BANS = "bans"  # something was removed; nothing further
    SAID = "said"  # what a gateway tells the others beside what it stores: base64 of msgpack, a topic and what it needs


@dataclass(frozen=True, slots=True)
class Change:
    """`kind` None: of a gateway of another version, which this one does not understand."""

    kind: ChangeKind | None
    by: str  # the gateway that made it
    at: float  # seconds since the epoch, by the store's clock
    value: str
    position: str = ""  # of itself in the log

    @property
    def names(self) -> list[str]:
        """The fingerprints."""
        return self.value.split()


@dataclass(frozen=True, slots=True)
class Page:
    """What followed upon a position."""

    changes: Sequence[Change]
    position: str  # behind them
    missed: bool  # something between the position that was asked for and these is no longer there
    more: bool  # others come after them
    added: int  # changes that were ever made, the ones after these included
    kept: int  # how many of those are still there
    now: float  # seconds since the epoch, by the store's clock


@dataclass(frozen=True, slots=True)
class Published:
    """A policy that one of the gateways on a store was told to put in force."""

    hash: str
    files: Mapping[str, str]  # name -> content
    author: str
    comment: str
    at: float  # seconds since 1970, by the clock of the gateway that was told


Lineage = frozenset[str]
"""Hashes of policies that gateways on a store have had in common, and have left."""


def number_of(position: str) -> tuple[int, int]:
    """What positions are compared by."""
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence or 0)


class ChangeLog(Protocol):
    """Changes in the order in which the store has seen them; the oldest are forgotten. Every method raises
    `StoreUnavailable`."""

    async def end(self) -> str:
        """The position behind the youngest change."""

    async def oldest(self) -> str:
        """The position behind the oldest change that is still there."""

    async def read(self, after: str) -> Page: ...

    async def wait(self, after: str) -> None:
        """Returns once there is a change after `after`, or after a while."""


class SpokenLog(ChangeLog, Protocol):
    """A log in which gateways talk, beside what they store. Raises `StoreUnavailable`."""

    async def say(self, values: Sequence[str]) -> str:
        """As changes of kind `SAID`, in order -> the position of the last one. There must be one."""


class Replies(Protocol):
    """Answers to what one gateway has asked all others. Raises `StoreUnavailable`."""

    async def reply(self, name: str, answer: bytes) -> None: ...

    async def wait(self, name: str, seconds: float) -> bytes | None:
        """The first one; None where there is none in that time."""
