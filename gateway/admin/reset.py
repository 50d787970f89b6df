"""A route is made to forget what it has learnt: of hits, or of its models."""

from __future__ import annotations

from collections.abc import Collection

import orjson
from aiohttp import web

from gateway.admin.responses import json_answer
from gateway.cache.learned_state import Learning
from gateway.errors import StoreUnavailable


async def route_to_forget(request: web.Request, routes: Collection[str], wanted: str) -> str | web.Response:
    """The one of `routes`, all that have what is `wanted`, that the body names; else the refusal."""
    # A page of another site can send a form or plain text here without asking; JSON it cannot.
    if request.content_type != "application/json":
        return json_answer({"error": "expected content-type application/json"}, 415)
    try:
        given = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        given = None
    route = given.get("route") if isinstance(given, dict) else None
    if not isinstance(route, str):
        return json_answer({"error": 'expected a body such as {"route": "default"}'}, 400)
    if route not in routes:
        return json_answer({"error": f"no route {route[:64]!r} has {wanted}", "routes": list(routes)}, 404)
    return route


async def saved(learning: Learning, route: str) -> bool:
    """False: with the next change, or at the end; until then a restart would bring back what was forgotten."""
    try:
        await learning.save_one(route)
    except StoreUnavailable:
        return False
    return True
