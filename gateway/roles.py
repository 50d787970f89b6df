"""What somebody may do, and who somebody is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    """Each may do what those before it may."""

    USE = "use"  # ask the data port; of the admin port only who one is
    OPERATE = "operate"  # look at everything but keys and the audit trail, remove answers, see to jobs
    ADMIN = "admin"  # policies, keys, stored answers in bulk, the audit trail

    def covers(self, needed: Role) -> bool:
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who uses the admin port. `by`: how that is known."""

    name: str
    role: Role
    by: Literal["loopback", "token", "key", "oidc"]
    tenant: str | None = None  # of a key


# Whoever reaches a port on loopback that asks for nothing.
LOOPBACK = Actor("loopback", Role.ADMIN, "loopback")
TOKEN = Actor("token", Role.ADMIN, "token")
