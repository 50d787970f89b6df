"""The public keys of an OpenID Connect issuer, cached. PyJWT parses them.

There is one fetch at a time. An unknown key name leads to a new fetch, because issuers rotate their keys. Such fetches
are at least `RETRY_S` apart, because anybody can invent names.

PyJWT's own client is not used. It reads responses of any size. It drops expired keys even if the issuer does not
answer, and calls an unreachable issuer for every token.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from jwt import PyJWK, PyJWKSet
from jwt.exceptions import PyJWTError

from gateway.adapters.system.ssrf_guard import is_allowed
from gateway.errors import Overloaded
from gateway.ports import Clock

LOG = logging.getLogger("nearhit.oidc")
DISCOVERY = "/.well-known/openid-configuration"
CONNECT_S, TOTAL_S = 3.0, 5.0
MAX_BYTES = 256 * 1024
REFRESH_S = 600.0  # age at which keys are fetched again
STALE_S = 3600.0  # age up to which keys are used if the issuer does not answer
RETRY_S = 15.0  # between fetches for unknown keys, and after a failed fetch


class JwksFailed(Exception):
    """The keys could not be fetched. The message is one sentence for the operator."""


class Jwks:
    """`Jwks` caches the keys of one issuer.

    Without `url` the issuer's discovery document has it. `plain` lists hosts, as `host` or `host:port`, that may use
    plain http. Raise `JwksFailed` for plain http to other hosts.
    """

    def __init__(self, issuer: str, url: str | None, plain: frozenset[str], clock: Clock) -> None:
        self._issuer = issuer
        self._url = url
        self._plain = plain
        self._clock = clock
        self._require_https(url or issuer)
        self._keys: list[PyJWK] = []
        self._fetched_at = self._attempted_at = float("-inf")  # monotonic clock
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None) -> PyJWK | None:
        """Return the key, or None if the issuer does not have it. Raise `Overloaded` if there are no valid keys and
        none can be fetched."""
        now = self._clock.monotonic()
        key = self._find_key(kid)
        if key is None or now - self._fetched_at > REFRESH_S:
            async with self._fetching:
                if self._clock.monotonic() - self._attempted_at >= RETRY_S:
                    await self._refresh()
            key = self._find_key(kid)
        if self._clock.monotonic() - self._fetched_at > STALE_S:
            raise Overloaded(
                "the keys of the token issuer are not available now: try again", retry_after_s=int(RETRY_S)
            )
        return key

    def _find_key(self, kid: str | None) -> PyJWK | None:
        if kid is None and len(self._keys) == 1:
            return self._keys[0]
        return next((key for key in self._keys if key.key_id == kid), None)

    async def _refresh(self) -> None:
        self._attempted_at = self._clock.monotonic()
        try:
            self._keys = _keys_of(await self._fetch())
            self._fetched_at = self._clock.monotonic()
        except JwksFailed as error:
            LOG.warning("the keys of the token issuer could not be fetched: %s", error)

    async def _fetch(self) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers={"User-Agent": "nearhit"}) as session:
            return await _object(session, self._url or await self._discover_url(session))

    async def _discover_url(self, session: aiohttp.ClientSession) -> str:
        """Return the URL of the keys. OpenID Connect Discovery 1.0, section 4.3: the document must name this issuer."""
        document = await _object(session, self._issuer.rstrip("/") + DISCOVERY)
        if document.get("issuer") != self._issuer:
            raise JwksFailed("the discovery document names another issuer, expected that of auth.oidc.issuer")
        return self._require_https(document.get("jwks_uri"))

    def _require_https(self, url: object) -> str:
        """Return `url`. Plain http is refused, because a party that can change the keys in transit can use the admin
        port."""
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if host is None:
            raise JwksFailed("expected a URL such as https://id.example.com/keys")
        if parts.scheme != "https" and not is_allowed(host, port or 80, self._plain):
            raise JwksFailed("expected https; auth.oidc.private_hosts lists hosts that may use plain http")
        return parts.geturl()


async def _object(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    data = bytearray()
    try:
        async with session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise JwksFailed(f"{url} answers with status {response.status}, expected 200")
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise JwksFailed(f"{url} answers with more than {MAX_BYTES} bytes")
        value = orjson.loads(data)
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        raise JwksFailed(f"{url} cannot be read: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise JwksFailed(f"{url} does not answer with a JSON object")
    return value


def _keys_of(document: dict[str, Any]) -> list[PyJWK]:
    try:
        keys = PyJWKSet.from_dict(document).keys
    except PyJWTError as error:
        raise JwksFailed(f"the set of keys cannot be read: {error}") from None
    usable = [key for key in keys if key.key_type != "oct"]  # a published shared secret is not a secret
    if not usable:
        raise JwksFailed("the key set has no usable key")
    return usable
