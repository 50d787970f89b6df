"""`/admin/keys`: API keys that live in the store. Their texts are in the answer that makes them, and nowhere else."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from gateway.admin.audit import note
from gateway.admin.key_admin import Keychain
from gateway.admin.key_requests import Change, Rotation, Wanted
from gateway.admin.middleware import actor_of
from gateway.admin.responses import answered, json_answer, object_of, section_of, whole_body
from gateway.api_keys import Key, shown
from gateway.errors import BadRequest, NotFound
from gateway.ports import Clock

STATES = ("active", "expired", "revoked", "all")
ID = re.compile(r"key_[0-9a-f]{16}", re.ASCII)
NOT_ASKED = "auth.mode is passthrough: the data port asks for no keys, this one opens the admin port alone"


class KeysHandler:
    """`asked_for`: whether the data port wants keys."""

    def __init__(self, keychain: Keychain, clock: Clock, *, asked_for: bool) -> None:
        self._keychain = keychain
        self._clock = clock
        self._asked_for = asked_for

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/keys", answered(self._list)),
            web.post("/admin/keys", answered(self._create)),
            web.get("/admin/keys/{key}", answered(self._show)),
            web.post("/admin/keys/{key}", answered(self._change)),
            web.post("/admin/keys/{key}/rotate", answered(self._rotate)),
            web.post("/admin/keys/{key}/revoke", answered(self._revoke)),
        ]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        state, tenant = request.query.get("state", "active"), request.query.get("tenant")
        if state not in STATES:
            raise BadRequest(f"state: expected one of {', '.join(STATES)}")
        now = self._clock.wall()
        found = [key for key in await self._keychain.listed() if tenant in (None, key.tenant)]
        return json_answer({"keys": [shown(key, now) for key in found if state in ("all", key.state(now))]})

    async def _show(self, request: web.Request) -> web.StreamResponse:
        return self._told(await self._keychain.one(_identity(request)))

    async def _create(self, request: web.Request) -> web.StreamResponse:
        given = object_of(await whole_body(request), 'a key, such as {"name": "ci", "tenant": "acme"}')
        key, text = await self._keychain.create(section_of(Wanted, given), given, actor_of(request).name)
        _note(request, key)
        warning = {} if self._asked_for else {"warning": NOT_ASKED}
        return self._told(key, **warning, key=text)

    async def _change(self, request: web.Request) -> web.StreamResponse:
        given = object_of(await whole_body(request), 'changes, such as {"expires": "30d"}')
        if not given:
            raise BadRequest("nothing is to change: expected name, models, limits or expires")
        key = await self._keychain.change(_identity(request), section_of(Change, given), given)
        _note(request, key, changed=sorted(given))
        return self._told(key)

    async def _rotate(self, request: web.Request) -> web.StreamResponse:
        body = await whole_body(request)
        rotation = section_of(Rotation, object_of(body, 'terms, such as {"overlap": "24h"}') if body.strip() else {})
        key, text = await self._keychain.rotate(_identity(request), rotation)
        _note(request, key, overlap_s=rotation.overlap)
        return self._told(key, key=text)

    async def _revoke(self, request: web.Request) -> web.StreamResponse:
        key, durable = await self._keychain.revoke(_identity(request))
        _note(request, key)
        return self._told(key, durable=durable)

    def _told(self, key: Key, /, **more: Any) -> web.Response:
        return json_answer({**more, **shown(key, self._clock.wall())})


def _identity(request: web.Request) -> str:
    """Raises `NotFound`; what somebody pasted there by mistake is not repeated."""
    identity = request.match_info["key"]
    if ID.fullmatch(identity) is None:
        raise NotFound("there is no such key: expected its id, such as key_0123456789abcdef")
    return identity


def _note(request: web.Request, key: Key, **more: Any) -> None:
    note(request, key=key.id, name=key.name, tenant=key.tenant, granted=key.role, **more)
