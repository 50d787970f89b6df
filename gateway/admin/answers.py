"""How the admin port answers."""

from __future__ import annotations

import orjson
from aiohttp import web

NO_STORE = {"Cache-Control": "no-store"}


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json", headers=NO_STORE)
