"""Notices tenants that are too wide or too narrow, where backends check the credentials.

Clients that show none share their answers. A key that counts as many tenants shares nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from gateway.bounded_cache import BoundedCache
from gateway.cache.keys import SHARE_GLOBAL
from gateway.context import RequestContext
from gateway.credentials import Credentials
from gateway.messages import Response
from gateway.outcomes import Verdict

LOG = logging.getLogger("nearhit")

SHARED = (Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE, Verdict.COALESCED)
MAX_KEYS, MAX_TENANTS = 256, 64  # that are remembered: of a gateway, of each key


class AnonymousHits:
    """Warns once, at the first answer that a client without credentials shares with another."""

    def __init__(self) -> None:
        self.has_warned = False

    def watch(self, request: RequestContext, answer: Response | Awaitable[Response]) -> Response | Awaitable[Response]:
        """Return the answer."""
        if isinstance(answer, Response):
            self._see(request, answer)
            return answer
        return self._wait(request, answer)

    async def _wait(self, request: RequestContext, answer: Awaitable[Response]) -> Response:
        response = await answer
        self._see(request, response)
        return response

    def _see(self, request: RequestContext, response: Response) -> None:
        if self.has_warned or request.owner == SHARE_GLOBAL or response.provenance.verdict not in SHARED:
            return
        self.has_warned = True
        LOG.warning(
            "clients without credentials share their answers: this one was made for another request. Send a key with "
            "each request, or name its header in auth.credential_headers",
            extra={"fields": {**request.log_fields, "route": request.route}},
        )


class TenantsOfKeys:
    """Counts the tenants that each key has been, and names the headers that make them differ."""

    def __init__(self) -> None:
        self._seen: BoundedCache[str, set[str]] = BoundedCache(MAX_KEYS)
        self._most = 1
        self._headers: tuple[str, ...] = ()

    def see(self, shown: Credentials) -> None:
        """Note what a request shows whose head is new."""
        if shown.key is None:
            return
        tenants = self._seen.get(shown.account)
        if tenants is None:
            self._seen.put(shown.account, tenants := set())
        if len(tenants) < MAX_TENANTS:
            tenants.add(shown.tenant)
            if len(tenants) > self._most:
                self._most, self._headers = len(tenants), shown.names[1:]

    def report(self) -> dict[str, Any]:
        """Return the number of tenants of the key with the most, at most `MAX_TENANTS`, and the headers beside it."""
        return {"tenants": self._most, "headers": list(self._headers)}
