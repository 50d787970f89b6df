"""A fact from asking an endpoint of `adapter: openai` for its list of models: whether its API is where its URL says."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from gateway.dialects.base_url import ends_in_version
from gateway.dialects.known import VERSIONED
from gateway.upstream.aiohttp_session import open_session

THERE = (200, 401, 403)  # no credentials are shown: an API may want some before it tells
NOT_FOUND = 404


async def likely_base(url: str, limit_s: float) -> str | None:
    """The base URL that is likely meant: the same with /v1, where there is a list of models and none at `url`. None:
    nothing speaks against `url`, or it cannot be told within `limit_s`."""
    if ends_in_version(urlsplit(url).path):
        return None
    below = url + VERSIONED
    async with open_session(limit_s, 1) as session:
        try:
            async with asyncio.timeout(limit_s):
                if await _listing(session, url) == NOT_FOUND and await _listing(session, below) in THERE:
                    return below
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
    return None


async def _listing(session: aiohttp.ClientSession, url: str) -> int:
    """The status of the list of models."""
    async with session.get(URL(f"{url}/models", encoded=True), allow_redirects=False) as response:
        return response.status
