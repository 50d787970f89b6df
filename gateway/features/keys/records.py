"""The records of API keys, and the port of their store. Times are wall clock seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, get_args

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.config.policy.limits import LimitRules, compile_limits
from gateway.limits import Limits
from gateway.principal import Principal, Role

VERSION = 1

_RULES: TypeAdapter[Any] = TypeAdapter(LimitRules)

State = Literal["active", "expired", "revoked"]

CacheAccess = Literal["read-write", "read-only"]


class KeyUnreadable(ValueError):
    """A record of the store is not a key, or has another version."""


@dataclass(frozen=True, slots=True)
class KeySecret:
    """One secret of a key. After a rotation a key has two for a while."""

    digest: str
    hint: str  # its last characters, which belong to the checksum
    created: float
    ends: float | None = None  # None if it ends with the key


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The record of a key."""

    id: str
    name: str
    tenant: str
    role: Role
    models: tuple[str, ...]  # globs; an empty tuple allows all
    limits: tuple[Mapping[str, Any], ...]  # in the form of a route's `limits`, without `per`
    created: float
    created_by: str
    expires: float | None
    secrets: tuple[KeySecret, ...]  # the newest last
    revoked: float | None = None
    cache: CacheAccess = "read-write"

    def state(self, now: float) -> State:
        """Return the state at a time."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    def ended(self, now: float) -> float | None:
        """Return the time at which the key ended, or None if it is active."""
        if self.state(now) == "active":
            return None
        return min(end for end in (self.revoked, self.expires) if end is not None)

    def without_old_secrets(self, now: float) -> ApiKey:
        """Return the key without the secrets that have ended."""
        return replace(self, secrets=tuple(s for s in self.secrets if s.ends is None or s.ends > now))

    def until(self, digest: str) -> float | None:
        """Return the time at which a secret of the key ends, or None if it does not."""
        ends = [s.ends for s in self.secrets if s.digest == digest and s.ends is not None]
        return min([*ends, *([] if self.expires is None else [self.expires])], default=None)

    def permit(self, digest: str | None, generation: int) -> Principal:
        """Return the principal of a request with this secret. Without one, return that of a job that was accepted while
        the key was valid."""
        until = self.expires if digest is None else self.until(digest)
        limits = limits_of(self.limits)
        read_only = self.cache == "read-only"
        return Principal(self.id, self.name, self.tenant, self.role, self.models, limits, until, generation, read_only)


def limits_of(written: Sequence[Mapping[str, Any]]) -> tuple[Limits, ...]:
    """Return the compiled limits of a key. Raise pydantic's `ValidationError`."""
    return tuple(replace(rule, per="key") for rule in compile_limits(_RULES.validate_python(list(written))))


def encode(key: ApiKey) -> bytes:
    """Return the record for the store."""
    fields = {"version": VERSION, **asdict(key)}
    if key.cache == "read-write":  # as before this field, so that earlier versions can read the key
        del fields["cache"]
    return orjson.dumps(fields)


def decode(data: bytes) -> ApiKey:
    """Return the key of a record. Raise `KeyUnreadable`."""
    try:
        fields = orjson.loads(data)
        if fields.pop("version") != VERSION:
            raise ValueError("another version")
        secrets = tuple(KeySecret(**secret) for secret in fields.pop("secrets"))
        models, limits = tuple(fields.pop("models")), tuple(fields.pop("limits"))
        key = ApiKey(role=Role(fields.pop("role")), models=models, limits=limits, secrets=secrets, **fields)
        limits_of(key.limits)
        if key.cache not in get_args(CacheAccess):
            raise ValueError("another access to the cache")
    except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
        raise KeyUnreadable(f"no key of version {VERSION}: {type(error).__name__}") from None
    return key


def key_json(key: ApiKey, now: float) -> dict[str, Any]:
    """Return the key for JSON, without digests."""
    fields = asdict(key)
    secrets = [{name: s[name] for name in ("hint", "created", "ends")} for s in fields.pop("secrets")]
    return {"state": key.state(now), **fields, "secrets": secrets}


class VersionConflict(Exception):
    """Another gateway has changed the record since it was read."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A compare-and-swap: `new` replaces `old`, and None stands for no record.

    The index then maps `digests` to the key, and no longer maps `gone`.
    """

    id: str
    old: bytes | None
    new: bytes | None
    digests: Sequence[str]
    gone: Sequence[str]


class KeyStore(Protocol):
    """The port of the store of API keys. Every method raises `StoreUnavailable`."""

    async def version(self) -> bytes:
        """Return a version that differs after every change. The call is cheap."""

    async def by_digest(self, digest: str) -> bytes | None:
        """Return the record of the key with a secret of this digest, or None."""

    async def by_id(self, identity: str) -> bytes | None:
        """Return the record of a key, or None."""

    async def listed(self) -> Sequence[bytes]:
        """Return the records of all keys."""

    async def swap(self, change: KeyChange, *, synced: bool = False) -> bool:
        """Apply a change, and return whether it has certainly reached the disk.

        Wait for the disk only if `synced`. Raise `VersionConflict`.
        """


async def listed_keys(store: KeyStore) -> Sequence[ApiKey]:
    """Return all keys that this version can read, the newest first. Raise `StoreUnavailable`."""
    keys = []
    for data in await store.listed():
        try:
            keys.append(decode(data))
        except KeyUnreadable:  # of a later version; a client that uses it is refused
            continue
    return sorted(keys, key=lambda key: (-key.created, key.id))
