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


# Roles and actors.
class Role(StrEnum):
    """Roles in ascending order. Each includes the rights of those before it."""

    USE = "use"  # use the data port; on the admin port, only look up the own identity
    OPERATE = "operate"  # read everything but keys and the audit trail, purge answers, manage jobs
    ADMIN = "admin"  # manage policies and keys, import and export stored answers, read the audit trail

    def covers(self, needed: Role) -> bool:
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Actor:
    """A user of the admin port. `by` is the way it was authenticated."""

    name: str
    role: Role
    by: Literal["loopback", "token", "key", "oidc"]
    tenant: str | None = None  # the key's, if a key authenticated it


# Any client of a port on loopback that requires no authentication.
LOOPBACK = Actor("loopback", Role.ADMIN, "loopback")

TOKEN = Actor("token", Role.ADMIN, "token")

CONFIGURED = -1  # generation of the keys in config.yaml, which change only with a restart

# Paths that a key restricted to some models may also use: the list of models, and the server's health.
ABOUT = ("/v1/models", "/v2/health")

# A job names the key of its client in a header that no client can send: no header name begins with a colon on any wire.
HEADER = ":nearhit-key"
# The same for the party that its limits count for, where that is not its tenant: `Client.account`.
ACCOUNT = ":nearhit-account"


@dataclass(frozen=True, slots=True)
class Principal:
    """A client with the rights of its key. `generation` is that of the keys when the store was read
    (`gateway.features.keys.cache`)."""

    id: str  # of the key, or "" for a key of the configuration
    name: str
    tenant: str
    role: Role
    models: tuple[str, ...] = ()  # globs of model names as clients send them; () allows all
    limits: tuple[Limits, ...] = ()  # over all routes together
    until: float | None = None  # wall clock, seconds
    generation: int = CONFIGURED
    read_only: bool = False  # it gets hits, and changes neither the cache nor what routes learn

    def check_models(self, models: Sequence[str], method: str, path: str) -> None:
        """Raise `Forbidden` unless the key covers each of the models that a request names."""
        if not self.models or (not models and _about(method, path)):
            return
        only = f"this API key is for the models {_listed(self.models)}"
        if not models:
            raise Forbidden(f"{only}, and this request does not name the one it uses")
        for model in models:
            if not any(fnmatchcase(model, glob) for glob in self.models):
                raise Forbidden(f"{only}, not for {model[:100]!r}")


def _about(method: str, path: str) -> bool:
    """Return whether the request only lists models or checks health. Paths with dot segments do not count, because a
    backend may resolve them to another path."""
    within = any(path == about or path.startswith(about + "/") for about in ABOUT)
    return method in ("GET", "HEAD") and within and not {".", ".."} & set(unquote(path).split("/"))


def _listed(globs: Sequence[str]) -> str:
    return ", ".join(globs[:5]) + (", ..." if len(globs) > 5 else "")
