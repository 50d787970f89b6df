"""`/admin/keys`: API keys in the store. Only the response that creates a key has its text."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.middleware import actor_of
from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.responses import json_errors, json_response, parse_object, parse_section, read_body
from gateway.config.fields import Name, Text
from gateway.config.key_format import digest_of, new_key
from gateway.config.policy.limits import LimitRules
from gateway.config.units import Duration, DurationOrOff
from gateway.config.validation import Problem, Section, one_of
from gateway.errors import BadRequest, NotFound, Overloaded
from gateway.features.keys.records import (
    ApiKey,
    CacheAccess,
    KeyChange,
    KeySecret,
    KeyStore,
    KeyUnreadable,
    VersionConflict,
    decode,
    encode,
    key_json,
    listed_keys,
)
from gateway.features.keys.redis import RedisApiKeys
from gateway.ports import Clock
from gateway.principal import Role

# Requests of operators, and the changes that they make to a key. Pure.
MAX_SECRETS = 4

OVERLAP_S = 24 * 3600.0

Globs = Annotated[tuple[Text, ...], Field(strict=False, max_length=64)]

Access = Annotated[CacheAccess, one_of("read-write", "read-only")]

RoleName = Annotated[Literal["use", "operate", "admin"], one_of("use", "operate", "admin")]


class _Terms(Section):
    models: Globs | None = None
    """Globs of model names that the key may use. Empty: all."""
    limits: LimitRules | None = None
    """Limits of this key over all routes, in the form of a route's limits without `per`."""
    expires: DurationOrOff = None
    """The time until the key expires. `off`: never."""
    cache: Access | None = None
    """`read-only`: the key gets hits. It neither stores answers nor moves what routes learn. Default: `read-write`."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        limits = settings.get("limits")
        for rule in limits if isinstance(limits, list) else [limits]:
            if isinstance(rule, dict) and "per" in rule:
                yield Problem("limits", "per: a key's limits are its own, expected none")


class KeySpec(_Terms):
    """A new key."""

    name: Name = Field(examples=["ci"])
    tenant: Name = Field(examples=["acme"])
    """Keys of one tenant share its stored answers."""
    role: RoleName = "use"


class KeyUpdate(_Terms):
    """Changes of a key. A field that is left out stays. Empty `models` allow all, empty `limits` set none."""

    name: Name | None = None


class KeyRotation(Section):
    """The rotation of a key."""

    overlap: Duration = OVERLAP_S
    """The time for which the former text stays valid."""


def issue_key(wanted: KeySpec, body: Mapping[str, Any], by: str, now: float) -> tuple[ApiKey, str]:
    """Return a new key and its text, which is not stored. The key keeps its limits as `body` has them."""
    secret, text = _new_secret(now)
    key = ApiKey(
        id=f"key_{secrets.token_hex(8)}",
        name=wanted.name,
        tenant=wanted.tenant,
        role=Role(wanted.role),
        models=wanted.models or (),
        limits=_limits_of(body),
        created=now,
        created_by=by,
        expires=None if wanted.expires is None else now + wanted.expires,
        secrets=(secret,),
        cache=wanted.cache or "read-write",
    )
    return key, text


def changed(key: ApiKey, change: KeyUpdate, body: Mapping[str, Any], now: float) -> ApiKey:
    """Return the key with the changes. Raise `BadRequest`."""
    _require_active(key, now, verb="expired")
    if change.name is not None:
        key = replace(key, name=change.name)
    if change.models is not None:
        key = replace(key, models=change.models)
    if change.cache is not None:
        key = replace(key, cache=change.cache)
    if "limits" in body:
        key = replace(key, limits=_limits_of(body))
    if "expires" in body:
        key = replace(key, expires=None if change.expires is None else now + change.expires)
    return key


def rotate_key(key: ApiKey, rotation: KeyRotation, now: float) -> tuple[ApiKey, str]:
    """Return the key with a new secret, and its text. The former secrets end within the overlap. Raise `BadRequest`."""
    _require_active(key, now)
    ends = now + rotation.overlap
    former = [replace(s, ends=ends if s.ends is None else min(s.ends, ends)) for s in key.secrets]
    former = [s for s in former if s.ends is not None and s.ends > now]
    if len(former) >= MAX_SECRETS:
        raise BadRequest(
            f"{MAX_SECRETS} secrets of this key are good already: wait until one has ended, or give an overlap of 0s"
        )
    secret, text = _new_secret(now)
    return replace(key, secrets=(*former, secret)), text


def revoked(key: ApiKey, now: float) -> ApiKey:
    """Return the key as revoked for good. Raise `BadRequest` if it is revoked already."""
    if key.revoked is not None:
        raise BadRequest("the key is revoked already")
    return replace(key, revoked=now)


def _require_active(key: ApiKey, now: float, verb: str = "active") -> None:
    state = key.state(now)
    if state not in ("active", verb):
        raise BadRequest(f"the key is {state}: make a new one")


def _new_secret(now: float) -> tuple[KeySecret, str]:
    text = new_key()
    return KeySecret(digest_of(text), text[-4:], now), text


def _limits_of(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    limits = body.get("limits") or ()
    return (limits,) if isinstance(limits, dict) else tuple(limits)


# Changes of keys go to the store first, and then to this gateway.
MAX_KEYS = 10_000

RETENTION_S = 90 * 86_400.0  # an ended key is kept this long, to report that it has ended

MAX_ATTEMPTS = 5


class KeyAdmin:
    """`KeyAdmin` manages the keys in the store.

    Every method raises a `GatewayError` if it refuses, and `StoreUnavailable` if the store fails and nothing was done.
    """

    def __init__(self, store: KeyStore, refresh: Callable[[], Awaitable[None]], clock: Clock) -> None:
        """`refresh` lets this gateway hear of a change at once."""
        self._store = store
        self._refresh = refresh
        self._clock = clock

    async def listed(self) -> Sequence[ApiKey]:
        """Return all keys that this version can read, the newest first."""
        return await listed_keys(self._store)

    async def get_key(self, identity: str) -> ApiKey:
        """Return a key. Raise `NotFound`."""
        return _decode_key(await self._store.by_id(identity))

    async def create(self, wanted: KeySpec, body: Mapping[str, Any], by: str) -> tuple[ApiKey, str]:
        """Return a new key and its text, which cannot be shown again. `by` is the name of its creator."""
        now = self._clock.wall()
        await self._evict_expired(now)
        key, text = issue_key(wanted, body, by, now)
        await self._replace(None, key)
        return key, text

    async def change(self, identity: str, change: KeyUpdate, body: Mapping[str, Any]) -> ApiKey:
        """Change a key and return it. `body` has the changes as written."""
        key, _ = await self._update(identity, lambda key, now: changed(key, change, body, now))
        return key

    async def rotate(self, identity: str, rotation: KeyRotation) -> tuple[ApiKey, str]:
        """Return the key with a new secret, and its text."""
        texts: list[str] = []

        def update(key: ApiKey, now: float) -> ApiKey:
            key, text = rotate_key(key, rotation, now)
            texts.append(text)
            return key

        key, _ = await self._update(identity, update)
        return key, texts[-1]

    async def revoke(self, identity: str) -> tuple[ApiKey, bool]:
        """Revoke a key. Return it, and whether the change has reached the store's disk."""
        return await self._update(identity, revoked, synced=True)

    async def _update(
        self, identity: str, update: Callable[[ApiKey, float], ApiKey], *, synced: bool = False
    ) -> tuple[ApiKey, bool]:
        for _ in range(MAX_ATTEMPTS):
            data = await self._store.by_id(identity)
            before = _decode_key(data)
            now = self._clock.wall()
            key = update(before.without_old_secrets(now), now)
            try:
                return key, await self._replace(before, key, data, synced=synced)
            except VersionConflict:  # another gateway has changed it since it was read
                continue
        raise Overloaded("other requests are changing this key, nothing was done: try again", retry_after_s=1)

    async def _replace(
        self, before: ApiKey | None, key: ApiKey | None, data: bytes | None = None, *, synced: bool = False
    ) -> bool:
        former, digests = _secret_digests(before), _secret_digests(key)
        some = key or before
        assert some is not None
        new = None if key is None else encode(key)
        change = KeyChange(some.id, data, new, sorted(digests - former), sorted(former - digests))
        durable = await self._store.swap(change, synced=synced)
        await self._refresh()
        return durable

    async def _evict_expired(self, now: float) -> None:
        keys = await self.listed()
        if len(keys) < MAX_KEYS:
            return
        over = [key for key in keys if (key.ended(now) or now) < now - RETENTION_S]
        for key in over:
            data = await self._store.by_id(key.id)
            if data is not None:
                await self._replace(key, None, data)
        if len(keys) - len(over) >= MAX_KEYS:
            raise BadRequest(
                f"there are {MAX_KEYS} keys, and none ended more than 90 days ago: only such keys make room"
            )


def _decode_key(data: bytes | None) -> ApiKey:
    if data is None:
        raise NotFound("there is no such key")
    try:
        return decode(data)
    except KeyUnreadable as error:
        raise BadRequest(f"the key cannot be read by this gateway: {error}") from None


def _secret_digests(key: ApiKey | None) -> set[str]:
    return set() if key is None else {secret.digest for secret in key.secrets}


STATES = ("active", "expired", "revoked", "all")

ID = re.compile(r"key_[0-9a-f]{16}", re.ASCII)

PASSTHROUGH_WARNING = "auth.mode is passthrough: the data port requires no keys, so this key is for the admin port only"


class SecretReport(TypedDict):
    hint: str
    """The last characters of the text."""
    created: float
    """Seconds since 1970."""
    ends: float | None
    """Null: with the key."""


class KeyReport(TypedDict):
    state: Literal["active", "expired", "revoked"]
    id: str
    name: str
    tenant: str
    role: Role
    models: list[str]
    """Globs of model names. Empty: all."""
    limits: list[dict[str, Any]]
    created: float
    """Seconds since 1970."""
    created_by: str
    expires: float | None
    """Seconds since 1970. Null: never."""
    revoked: float | None
    cache: CacheAccess
    secrets: list[SecretReport]


class IssuedKey(KeyReport):
    key: str
    """The text of the key. It cannot be shown again."""
    warning: NotRequired[str]


class RevokedKey(KeyReport):
    durable: bool
    """Whether the change has reached the store's disk."""


class KeysQuery(TypedDict, total=False):
    state: Annotated[Literal["active", "expired", "revoked", "all"], Field(default="active")]
    tenant: str


class KeysReport(TypedDict):
    keys: list[KeyReport]


class KeysAdmin:
    """`KeysAdmin` serves `/admin/keys`."""

    def __init__(self, core: AdminCore) -> None:
        self._keychain = KeyAdmin(RedisApiKeys(core.stores.redis), core.keys.refresh, core.clock)
        self._clock = core.clock
        self._keys_required = core.config.auth.mode == "keys"  # on the data port

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/keys", json_errors(self._list)),
            web.post("/admin/keys", json_errors(self._create)),
            web.get("/admin/keys/{key}", json_errors(self._show)),
            web.post("/admin/keys/{key}", json_errors(self._change)),
            web.post("/admin/keys/{key}/rotate", json_errors(self._rotate)),
            web.post("/admin/keys/{key}/revoke", json_errors(self._revoke)),
        ]

    @operation(KeysReport, query=KeysQuery)
    async def _list(self, request: web.Request) -> web.StreamResponse:
        """List the keys of one state, the newest first."""
        state, tenant = request.query.get("state", "active"), request.query.get("tenant")
        if state not in STATES:
            raise BadRequest(f"state: expected one of {', '.join(STATES)}")
        now = self._clock.wall()
        keys = [key for key in await self._keychain.listed() if tenant in (None, key.tenant)]
        return json_response({"keys": [key_json(key, now) for key in keys if state in ("all", key.state(now))]})

    @operation(KeyReport)
    async def _show(self, request: web.Request) -> web.StreamResponse:
        """Show one key, without its text."""
        return self._key_response(await self._keychain.get_key(_identity(request)))

    @operation(IssuedKey, body=KeySpec)
    async def _create(self, request: web.Request) -> web.StreamResponse:
        """Create a key. Only this response has its text."""
        body = parse_object(await read_body(request), 'a key, such as {"name": "ci", "tenant": "acme"}')
        key, text = await self._keychain.create(parse_section(KeySpec, body), body, actor_of(request).name)
        _audit_key(request, key)
        warning = {} if self._keys_required else {"warning": PASSTHROUGH_WARNING}
        return self._key_response(key, **warning, key=text)

    @operation(KeyReport, body=KeyUpdate)
    async def _change(self, request: web.Request) -> web.StreamResponse:
        """Change the name, models, limits, expiry or cache access of a key. At least one field is required."""
        body = parse_object(await read_body(request), 'changes, such as {"expires": "30d"}')
        if not body:
            raise BadRequest("nothing is to change: expected name, models, limits, expires or cache")
        key = await self._keychain.change(_identity(request), parse_section(KeyUpdate, body), body)
        _audit_key(request, key, changed=sorted(body))
        return self._key_response(key)

    @operation(IssuedKey, body=KeyRotation, body_required=False)
    async def _rotate(self, request: web.Request) -> web.StreamResponse:
        """Give a key a new text. The former text stays valid for `overlap`."""
        body = await read_body(request)
        rotation = parse_section(
            KeyRotation, parse_object(body, 'terms, such as {"overlap": "24h"}') if body.strip() else {}
        )
        key, text = await self._keychain.rotate(_identity(request), rotation)
        _audit_key(request, key, overlap_s=rotation.overlap)
        return self._key_response(key, key=text)

    @operation(RevokedKey)
    async def _revoke(self, request: web.Request) -> web.StreamResponse:
        """Revoke a key for good."""
        key, durable = await self._keychain.revoke(_identity(request))
        _audit_key(request, key)
        return self._key_response(key, durable=durable)

    def _key_response(self, key: ApiKey, /, **more: Any) -> web.Response:
        return json_response({**more, **key_json(key, self._clock.wall())})


def _identity(request: web.Request) -> str:
    """Return the id of the path. Raise `NotFound` without quoting it: it may be a key pasted by mistake."""
    identity = request.match_info["key"]
    if ID.fullmatch(identity) is None:
        raise NotFound("there is no such key: expected its id, such as key_0123456789abcdef")
    return identity


def _audit_key(request: web.Request, key: ApiKey, **more: Any) -> None:
    add_audit_fields(request, key=key.id, name=key.name, tenant=key.tenant, granted=key.role, **more)
