"""How the admin port answers."""

from __future__ import annotations

import orjson
from aiohttp import web

from gateway.errors import BadRequest

NO_STORE = {"Cache-Control": "no-store"}


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json", headers=NO_STORE)


def asked_number(request: web.Request, name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most` of the query. Raises `BadRequest`."""
    given = request.query.get(name, str(default))
    if not given.isascii() or not given.isdigit() or len(given) > 6 or not 1 <= int(given) <= most:
        raise BadRequest(f"{name}: expected a whole number from 1 to {most}")
    return int(given)
