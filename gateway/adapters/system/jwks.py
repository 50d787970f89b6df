"""The public keys of an OpenID Connect issuer, over HTTP, kept for a while.

One fetch at a time; what comes is bounded in size, number and time, and where it comes from is checked like a webhook's
target, though an operator has named it: the discovery document names a second URL. A key's name that is not known makes
for a new fetch, since issuers rotate theirs, but not more often than every `AGAIN_S`: names are a stranger's to invent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from gateway.adapters.system.ssrf_guard import TargetRefused, check_url
from gateway.adapters.system.ssrf_safe_http import CheckedSessions
from gateway.errors import Overloaded
from gateway.ports import Clock

LOG = logging.getLogger("nearhit.oidc")
DISCOVERY = "/.well-known/openid-configuration"
SETTING = "auth.oidc.private_hosts"
CONNECT_S, TOTAL_S = 3.0, 5.0
MAX_BYTES, MAX_KEYS = 256 * 1024, 64
FRESH_S = 600.0  # keys are asked for anew after this
STALE_S = 3600.0  # and are good for this long if the issuer does not answer
AGAIN_S = 15.0  # between two fetches that a token's unknown key makes for, and after one that failed


class JwksFailed(Exception):
    """One sentence for the log."""


class Jwks:
    """`url` None: the issuer's discovery document says where its keys are. `allowed`: hosts that may be private and
    asked by plain http. Raises `TargetRefused` where a URL is none to be asked."""

    def __init__(
        self,
        issuer: str,
        url: str | None,
        allowed: frozenset[str],
        clock: Clock,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._issuer = issuer
        self._url = url
        self._allowed = allowed
        self._clock = clock
        check_url(url or issuer, allowed, SETTING)
        self._sessions = CheckedSessions(allowed, connect_s=CONNECT_S, total_s=TOTAL_S, resolver=resolver)
        self._keys: dict[str | None, PyJWK] = {}
        self._fetched = self._tried = float("-inf")  # monotonic clock
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None) -> PyJWK | None:
        """Raises `Overloaded` where there are none, and none can be had."""
        now = self._clock.monotonic()
        found = self._named(kid)
        if found is None or now - self._fetched > FRESH_S:
            async with self._fetching:
                if self._clock.monotonic() - self._tried >= AGAIN_S:
                    await self._refresh()
            found = self._named(kid)
        if self._clock.monotonic() - self._fetched > STALE_S:
            raise Overloaded("the keys of the tokens' issuer cannot be had now: try again", retry_after_s=int(AGAIN_S))
        return found

    async def close(self) -> None:
        await self._sessions.close()

    def _named(self, kid: str | None) -> PyJWK | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refresh(self) -> None:
        self._tried = self._clock.monotonic()
        try:
            url = self._url or await self._discovered()
            self._keys = _keys_of(await self._object(url))
            self._fetched = self._clock.monotonic()
        except (JwksFailed, TargetRefused) as error:
            LOG.warning("the keys of the tokens' issuer could not be fetched: %s", error)

    async def _discovered(self) -> str:
        """OpenID Connect Discovery 1.0, section 4.3: the document is the issuer's own, or nobody's."""
        document = await self._object(self._issuer.rstrip("/") + DISCOVERY)
        if document.get("issuer") != self._issuer:
            raise JwksFailed("the discovery document names another issuer, expected that of auth.oidc.issuer")
        return check_url(document.get("jwks_uri"), self._allowed, SETTING)

    async def _object(self, url: str) -> dict[str, Any]:
        try:
            async with self._sessions.of(url).get(
                url, headers={"Accept": "application/json", "User-Agent": "nearhit"}, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise JwksFailed(f"{url} answers with status {response.status}, expected 200")
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > MAX_BYTES:
                        raise JwksFailed(f"{url} answers with more than {MAX_BYTES} bytes")
        except TimeoutError:
            raise JwksFailed(f"{url} takes more than {TOTAL_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise JwksFailed(f"{url} cannot be asked: {type(error).__name__}") from None
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise JwksFailed(f"{url} does not answer with a JSON object")
        return value


def _keys_of(document: Mapping[str, Any]) -> dict[str | None, PyJWK]:
    """By their names. Those that cannot be read are left out: an issuer may have kinds that we do not know."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise JwksFailed("a set of keys has no 'keys'")
    found: dict[str | None, PyJWK] = {}
    for each in listed[:MAX_KEYS]:
        try:
            key = PyJWK.from_dict(each)
        except (PyJWTError, ValueError, TypeError, AttributeError, KeyError):
            continue
        if key.key_type != "oct":  # a shared secret that is published is none
            found.setdefault(key.key_id, key)
    if not found:
        raise JwksFailed("a set of keys has none that can be read")
    return found
