"""Serves GPTCache through the plainest aiohttp server: `gptcache_server.py PORT UPSTREAM`.

It runs in GPTCache's environment, which has nothing of the gateway. The cache is initialised for exact matches as its
documentation shows: a map in memory, with the text of the request as key.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web
from gptcache import cache
from gptcache.adapter.api import get, put
from gptcache.processor.pre import get_prompt

SESSION = web.AppKey("session", aiohttp.ClientSession)


async def answer(request: web.Request) -> web.Response:
    body = await request.read()
    question = body.decode()
    known = get(question)
    if known is not None:
        return web.Response(body=known.encode(), content_type="application/json", headers={"x-cache": "hit"})
    async with request.app[SESSION].post(
        sys.argv[2] + request.path, data=body, headers={"Content-Type": "application/json"}
    ) as response:
        text = await response.text()
    put(question, text)
    return web.Response(text=text, content_type="application/json")


async def session(app: web.Application) -> AsyncIterator[None]:
    app[SESSION] = aiohttp.ClientSession()
    yield
    await app[SESSION].close()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    cache.init(pre_embedding_func=get_prompt)
    app = web.Application()
    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
