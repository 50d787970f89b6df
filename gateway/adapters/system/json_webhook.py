"""Sends a message to the URL that an operator has set for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp

PAUSES_S = (1.0, 5.0)  # between the attempts
TOTAL_S, CONNECT_S = 10.0, 5.0  # of an attempt


async def deliver(url: str, payload: Mapping[str, object], on_attempt: Callable[[str], None]) -> bool:
    """Post an object as JSON, up to three times. Return whether the receiver took it (2xx). `on_attempt` is told
    `sent` or `failed` of each attempt."""
    timeout = aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for pause in (*PAUSES_S, None):
            if await _post(session, url, payload):
                on_attempt("sent")
                return True
            on_attempt("failed")
            if pause is not None:
                await asyncio.sleep(pause)
    return False


async def _post(session: aiohttp.ClientSession, url: str, payload: Mapping[str, object]) -> bool:
    try:
        async with session.post(url, json=payload, allow_redirects=False) as response:
            return response.status < 300
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return False
