"""API keys: their text form, their records, and the port to where they are kept. Times are wall clock seconds."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.config.policy.limits import LimitRules, compile_limits
from gateway.limits import Limits
from gateway.principal import Principal, Role

# What an API key looks like: `nh_`, 36 random characters, 6 of a checksum. Pure but for the system's randomness.
#
# The prefix and the length let secret scanners know one (`PATTERN`); the checksum tells a key from what looks like one,
# and a typo from a key that is not known, without asking anybody. It is the form of GitHub's tokens ("Behind GitHub's
# new authentication token formats", 2021), with their CRC-32 in base 62.
#
# A key has 214 bits of randomness. What is kept of it is its plain SHA-256: slow, salted hashes are for secrets that
# can be guessed, and would cost each request what they cost a guess.

PREFIX = "nh_"

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase

RANDOM, CHECK = 36, 6  # characters; 62^6 is more than 2^32

PATTERN = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM + CHECK}}}", re.ASCII)


def new_key() -> str:
    body = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM))
    return body + _checksum(body)


def is_well_formed(text: str) -> bool:
    """Whether it is a key as `new_key` makes them."""
    return PATTERN.fullmatch(text) is not None and text[-CHECK:] == _checksum(text[:-CHECK])


def digest_of(text: str) -> str:
    """What is kept of a key, of the store's and of the configuration's. 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _checksum(body: str) -> str:
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECK):
        rest, digit = divmod(rest, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits


# API keys as they are kept. Pure. Times: wall clock, seconds.
VERSION = 1

_RULES: TypeAdapter[Any] = TypeAdapter(LimitRules)

State = Literal["active", "expired", "revoked"]


class KeyUnreadable(ValueError):
    """What lies in the store is no key, or one of another version."""


@dataclass(frozen=True, slots=True)
class KeySecret:
    """One text that the key is shown as; after a rotation there are two for a while."""

    digest: str
    hint: str  # its last characters, which are of the checksum
    created: float
    ends: float | None = None  # None: with the key


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    tenant: str
    role: Role
    models: tuple[str, ...]  # globs; empty: all
    limits: tuple[Mapping[str, Any], ...]  # as `limits` of a route writes them, without `per`
    created: float
    created_by: str
    expires: float | None
    secrets: tuple[KeySecret, ...]  # the youngest last
    revoked: float | None = None

    def state(self, now: float) -> State:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    def ended(self, now: float) -> float | None:
        """Since when it is of no use; None: it is."""
        if self.state(now) == "active":
            return None
        return min(end for end in (self.revoked, self.expires) if end is not None)

    def without_old_secrets(self, now: float) -> ApiKey:
        """Those that have ended are nobody's any more."""
        return replace(self, secrets=tuple(s for s in self.secrets if s.ends is None or s.ends > now))

    def until(self, digest: str) -> float | None:
        """When that secret of it ends."""
        ends = [s.ends for s in self.secrets if s.digest == digest and s.ends is not None]
        return min([*ends, *([] if self.expires is None else [self.expires])], default=None)

    def permit(self, digest: str | None, generation: int) -> Principal:
        """`digest` None: of a job, which was asked for while the key was good."""
        until = self.expires if digest is None else self.until(digest)
        limits = limits_of(self.limits)
        return Principal(self.id, self.name, self.tenant, self.role, self.models, limits, until, generation)


def limits_of(written: Sequence[Mapping[str, Any]]) -> tuple[Limits, ...]:
    """Raises pydantic's `ValidationError`."""
    return tuple(replace(rule, per="key") for rule in compile_limits(_RULES.validate_python(list(written))))


def encode(key: ApiKey) -> bytes:
    return orjson.dumps({"version": VERSION, **asdict(key)})


def decode(data: bytes) -> ApiKey:
    """Raises `KeyUnreadable`."""
    try:
        fields = orjson.loads(data)
        if fields.pop("version") != VERSION:
            raise ValueError("another version")
        secrets = tuple(KeySecret(**secret) for secret in fields.pop("secrets"))
        models, limits = tuple(fields.pop("models")), tuple(fields.pop("limits"))
        key = ApiKey(role=Role(fields.pop("role")), models=models, limits=limits, secrets=secrets, **fields)
        limits_of(key.limits)
    except (ValueError, TypeError, KeyError, AttributeError, ValidationError) as error:
        raise KeyUnreadable(f"no key of version {VERSION}: {type(error).__name__}") from None
    return key


def key_json(key: ApiKey, now: float) -> dict[str, Any]:
    """Without digests."""
    fields = asdict(key)
    secrets = [{name: s[name] for name in ("hint", "created", "ends")} for s in fields.pop("secrets")]
    return {"state": key.state(now), **fields, "secrets": secrets}


# Where keys are kept, for all gateways that share it.
class VersionConflict(Exception):
    """Something else lies there by now."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """`new` is to lie where `old` does; None: nothing. `digests` lead to it, `gone` no longer do."""

    id: str
    old: bytes | None
    new: bytes | None
    digests: Sequence[str]
    gone: Sequence[str]


class KeyStore(Protocol):
    """Every method raises `StoreUnavailable`. Records are those of `gateway.config.api_keys`."""

    async def version(self) -> bytes:
        """Another one after every change; cheap."""

    async def by_digest(self, digest: str) -> bytes | None: ...

    async def by_id(self, identity: str) -> bytes | None: ...

    async def listed(self) -> Sequence[bytes]: ...

    async def swap(self, change: KeyChange, *, synced: bool = False) -> bool:
        """Whether it is known to have reached the disk, which is waited for only where `synced`. Raises
        `VersionConflict`."""
