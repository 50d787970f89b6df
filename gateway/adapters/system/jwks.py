"""The public keys of an OpenID Connect issuer, kept for a while. PyJWT reads them.

One fetch at a time. A key's name that is not known makes for a new fetch, since issuers rotate theirs. That is not more
often than every `RETRY_S`: names are a stranger's to invent. PyJWT's own client is not used: it reads answers of any
size, drops its keys with their time where the issuer does not answer, and asks one that is away for every token.
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
REFRESH_S = 600.0  # keys are asked for anew after this
STALE_S = 3600.0  # and are good for this long if the issuer does not answer
RETRY_S = 15.0  # between two fetches that a token's unknown key makes for, and after one that failed


class JwksFailed(Exception):
    """One sentence for the operator."""


class Jwks:
    """`url` None: the issuer's discovery document says where its keys are. `plain`: hosts, as `host` or `host:port`,
    that may be asked by plain http. Raises `JwksFailed` where another one is to be."""

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
        """Raises `Overloaded` where there are none, and none can be had."""
        now = self._clock.monotonic()
        found = self._find_key(kid)
        if found is None or now - self._fetched_at > REFRESH_S:
            async with self._fetching:
                if self._clock.monotonic() - self._attempted_at >= RETRY_S:
                    await self._refresh()
            found = self._find_key(kid)
        if self._clock.monotonic() - self._fetched_at > STALE_S:
            raise Overloaded("the keys of the tokens' issuer cannot be had now: try again", retry_after_s=int(RETRY_S))
        return found

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
            LOG.warning("the keys of the tokens' issuer could not be fetched: %s", error)

    async def _fetch(self) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers={"User-Agent": "nearhit"}) as session:
            return await _object(session, self._url or await self._discover_url(session))

    async def _discover_url(self, session: aiohttp.ClientSession) -> str:
        """OpenID Connect Discovery 1.0, section 4.3: the document is the issuer's own, or nobody's."""
        document = await _object(session, self._issuer.rstrip("/") + DISCOVERY)
        if document.get("issuer") != self._issuer:
            raise JwksFailed("the discovery document names another issuer, expected that of auth.oidc.issuer")
        return self._require_https(document.get("jwks_uri"))

    def _require_https(self, url: object) -> str:
        """`url` itself: who can change keys on their way opens the admin port."""
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if host is None:
            raise JwksFailed("expected a URL such as https://id.example.com/keys")
        if parts.scheme != "https" and not is_allowed(host, port or 80, self._plain):
            raise JwksFailed("expected https; auth.oidc.private_hosts lists hosts that may be asked by http")
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
    usable = [key for key in keys if key.key_type != "oct"]  # a shared secret that is published is none
    if not usable:
        raise JwksFailed("a set of keys has none that can be used")
    return usable
