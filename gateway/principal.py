"""The principal of a request: its role, and what its key allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import unquote

from gateway.errors import Forbidden
from gateway.limits import Limits


# What somebody may do, and who somebody is. Pure.
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

CONFIGURED = -1  # the generation of keys of config.yaml: they change with a restart alone

# What a key of some models may ask besides them: which there are, and whether the server lives.
ABOUT = ("/v1/models", "/v2/health")

# A job carries who asked for it in a header that no client can send: no name begins with a colon on any wire.
HEADER = ":nearhit-key"


@dataclass(frozen=True, slots=True)
class Principal:
    """`generation`: of the keys, when the store was asked (`gateway.steps.key_cache`)."""

    id: str  # of the key; empty: one of the configuration
    name: str
    tenant: str
    role: Role
    models: tuple[str, ...] = ()  # globs of names as clients send them; empty: all
    limits: tuple[Limits, ...] = ()  # over all routes together
    until: float | None = None  # wall clock, seconds
    generation: int = CONFIGURED

    def check_model(self, model: str | None, method: str, path: str) -> None:
        """`model` None: no dialect knows the request. Raises `Forbidden`."""
        if not self.models or (model is None and _about(method, path)):
            return
        if model is None:
            raise Forbidden(f"this API key is for the models {_listed(self.models)}, and this path does not name one")
        if not any(fnmatchcase(model, glob) for glob in self.models):
            raise Forbidden(f"this API key is for the models {_listed(self.models)}, not for {model[:100]!r}")


def _about(method: str, path: str) -> bool:
    """Whether it only asks what there is. What a backend may take for another path is none of it."""
    within = any(path == about or path.startswith(about + "/") for about in ABOUT)
    return method in ("GET", "HEAD") and within and not {".", ".."} & set(unquote(path).split("/"))


def _listed(globs: Sequence[str]) -> str:
    return ", ".join(globs[:5]) + (", ..." if len(globs) > 5 else "")
