"""Who asks: every request gets the tenant whose answers it may see."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.access.failures import Failures
from gateway.access.key_text import PREFIX, digest_of, well_formed
from gateway.access.keyring import Found, Keyring
from gateway.access.permits import HEADER, Permit
from gateway.credentials import key_of, tenant_of
from gateway.errors import TooManyFailures, Unauthorized
from gateway.messages import Request, Response
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler

SENTENCES = {
    "unknown": "the API key is not known",
    "expired": "the API key has expired",
    "revoked": "the API key was revoked",
    "mistyped": "the API key is cut or mistyped: its checksum does not fit",
}


class Passthrough:
    """The backend judges the credentials; their full hash is the tenant, so that only who shows the same ones again
    gets answers that were made with them."""

    def __call__(self, request: Request, forward: Handler) -> Awaitable[Response]:
        request.trace.tenant = tenant_of(request.headers)
        return forward(request)


class Keys:
    """The gateway judges the credentials. `failures` bounds what an address can have looked up that is no key: one that
    is known already is served whatever came from its address before."""

    def __init__(self, keyring: Keyring, failures: Failures, telemetry: Telemetry) -> None:
        self._keyring = keyring
        self._failures = failures
        self._telemetry = telemetry

    async def __call__(self, request: Request, forward: Handler) -> Response:
        if request.trace.permit is not None:  # it was at hand when the request was looked up, a moment ago
            return await forward(request)
        text = key_of(request.headers)
        if text is None:
            self._telemetry.auth_failures.add("data", "missing")
            raise Unauthorized("an API key is required: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        digest = digest_of(text)  # a lookup by full hash: its timing tells nothing of a key
        permit = self._keyring.at_hand(digest)
        if permit is None:
            permit = await self._asked(request, text, digest)
        request.trace.tenant, request.trace.permit = permit.tenant, permit
        return await forward(request)

    async def _asked(self, request: Request, text: str, digest: str) -> Permit:
        """Raises `Unauthorized`, `TooManyFailures`, or `Overloaded` where the store does not answer."""
        wait_s = self._failures.wait_s(request.peer)
        if wait_s is not None:
            self._telemetry.auth_failures.add("data", "too-many")
            raise TooManyFailures(retry_after_s=wait_s)
        if well_formed(text):
            found: Found = await self._keyring.find(digest)
        else:
            found = "mistyped" if text.startswith(PREFIX) else "unknown"
        if isinstance(found, Permit):
            return found
        self._failures.failed(request.peer)
        self._telemetry.auth_failures.add("data", found)
        raise Unauthorized(SENTENCES[found])


class KeyOfJob:
    """Of a job that is run: what the key that it was asked for with may, by now."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def __call__(self, request: Request, forward: Handler) -> Response:
        identity = request.headers.get(HEADER)
        if identity is not None:
            found = await self._keyring.find_by_id(identity)
            if not isinstance(found, Permit):
                raise Unauthorized(SENTENCES[found])
            request.trace.permit = found
        return await forward(request)
