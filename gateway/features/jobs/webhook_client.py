"""The HTTP client for webhooks."""

from __future__ import annotations

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway.adapters.system.ssrf_guard import TargetRefused, check_url
from gateway.adapters.system.ssrf_safe_http import AddressRefused, SsrfSafeSessions
from gateway.features.jobs.store import WebhookOutcome

CONNECT_S, TOTAL_S = 5.0, 15.0  # the specification advises 15 to 30 seconds
MAX_READ_BYTES = 4096  # maximum read of a response: only its status matters


class WebhookClient:
    """`WebhookClient` sends webhooks. `allowed` lists hosts that may be private and use plain http. `resolver` replaces
    aiohttp's own in tests."""

    def __init__(self, allowed: frozenset[str], resolver: AbstractResolver | None = None) -> None:
        self._allowed = allowed
        self._sessions = SsrfSafeSessions(allowed, connect_s=CONNECT_S, total_s=TOTAL_S, resolver=resolver)

    async def send(self, url: str, headers: dict[str, str], payload: bytes) -> WebhookOutcome:
        try:
            check_url(url, self._allowed)  # the operator may have changed the list since the job was accepted
        except TargetRefused:
            return WebhookOutcome(None, "refused")
        try:
            async with self._sessions.of(url).post(
                url,
                data=payload,
                headers={**headers, "Content-Type": "application/json", "User-Agent": "nearhit-webhook"},
                allow_redirects=False,  # a redirect's target was not checked, and is not the one that the client named
            ) as response:
                await response.content.read(MAX_READ_BYTES)
                return WebhookOutcome(response.status, f"status {response.status}")
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, AddressRefused)
            return WebhookOutcome(None, "refused" if refused else "no connection")
        except TimeoutError:
            return WebhookOutcome(None, "too slow")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return WebhookOutcome(None, type(error).__name__)

    async def close(self) -> None:
        await self._sessions.close()
