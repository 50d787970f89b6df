"""What operators may say of keys, and what becomes of a key by it. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.api_keys import Key, Secret
from gateway.config.fields import Name, Text
from gateway.config.policy.limits import LimitRules
from gateway.config.units import Duration, DurationOrOff
from gateway.config.validation import Problem, Section, one_of
from gateway.errors import BadRequest
from gateway.key_format import digest_of, new_key
from gateway.roles import Role

MAX_SECRETS = 4
OVERLAP_S = 24 * 3600.0
Globs = Annotated[tuple[Text, ...], Field(strict=False, max_length=64)]
RoleName = Annotated[Literal["use", "operate", "admin"], one_of("use", "operate", "admin")]


class _Terms(Section):
    """`expires`: in how long, `off` for never. `limits`: as of a route, for each key by itself."""

    models: Globs | None = None
    limits: LimitRules | None = None
    expires: DurationOrOff = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        limits = given.get("limits")
        for rule in limits if isinstance(limits, list) else [limits]:
            if isinstance(rule, dict) and "per" in rule:
                yield Problem("limits", "per: a key's limits are its own, expected none")


class Wanted(_Terms):
    """`POST /admin/keys`."""

    name: Name = Field(examples=["ci"])
    tenant: Name = Field(examples=["acme"])
    role: RoleName = "use"


class Change(_Terms):
    """`POST /admin/keys/{id}`: what is given becomes so; an empty list of models or limits means all and none."""

    name: Name | None = None


class Rotation(Section):
    """`POST /admin/keys/{id}/rotate`: for how long the former secret is good, too."""

    overlap: Duration = OVERLAP_S


def made(wanted: Wanted, given: Mapping[str, Any], by: str, now: float) -> tuple[Key, str]:
    """The key and its text, which is kept nowhere. `given`: what was written, which is what is kept of the limits."""
    secret, text = _secret(now)
    key = Key(
        id=f"key_{secrets.token_hex(8)}",
        name=wanted.name,
        tenant=wanted.tenant,
        role=Role(wanted.role),
        models=wanted.models or (),
        limits=_written(given),
        created=now,
        created_by=by,
        expires=None if wanted.expires is None else now + wanted.expires,
        secrets=(secret,),
    )
    return key, text


def changed(key: Key, change: Change, given: Mapping[str, Any], now: float) -> Key:
    """Raises `BadRequest`."""
    _active(key, now, but="expired")
    if change.name is not None:
        key = replace(key, name=change.name)
    if change.models is not None:
        key = replace(key, models=change.models)
    if "limits" in given:
        key = replace(key, limits=_written(given))
    if "expires" in given:
        key = replace(key, expires=None if change.expires is None else now + change.expires)
    return key


def rotated(key: Key, rotation: Rotation, now: float) -> tuple[Key, str]:
    """Another text beside those that are good, which end within the overlap. Raises `BadRequest`."""
    _active(key, now)
    ends = now + rotation.overlap
    former = [replace(s, ends=ends if s.ends is None else min(s.ends, ends)) for s in key.secrets]
    former = [s for s in former if s.ends is not None and s.ends > now]
    if len(former) >= MAX_SECRETS:
        raise BadRequest(
            f"{MAX_SECRETS} secrets of this key are good already: wait until one has ended, or give an overlap of 0s"
        )
    secret, text = _secret(now)
    return replace(key, secrets=(*former, secret)), text


def revoked(key: Key, now: float) -> Key:
    """At once and for good. Raises `BadRequest` where it is already."""
    if key.revoked is not None:
        raise BadRequest("the key is revoked already")
    return replace(key, revoked=now)


def _active(key: Key, now: float, but: str = "active") -> None:
    state = key.state(now)
    if state not in ("active", but):
        raise BadRequest(f"the key is {state}: make a new one")


def _secret(now: float) -> tuple[Secret, str]:
    text = new_key()
    return Secret(digest_of(text), text[-4:], now), text


def _written(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    limits = given.get("limits") or ()
    return (limits,) if isinstance(limits, dict) else tuple(limits)
