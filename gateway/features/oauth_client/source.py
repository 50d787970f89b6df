"""Fetch access tokens from a token endpoint."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

import aiohttp
import orjson

from gateway.config.environment import read_secret
from gateway.features.oauth_client.settings import OAuthIdentity
from gateway.ports import Clock
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import checked_key, masked, read_key, seconds
from gateway.upstream.shared_token import SharedToken, Token, TokenIdentity

CONNECT_S, TOTAL_S = 3.0, 10.0
MAX_BYTES = 64 * 1024
_ERROR = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # a code of RFC 6749, section 5.2


def oauth_identity(core: BackendCore, where: str, setting: OAuthIdentity, _key_header: str | None) -> TokenIdentity:
    """`oauth_identity` implements `IdentityBuilder`. Its tokens are bearer tokens in each dialect (RFC 6750)."""
    secret = read_secret(core.environ, setting.client_secret_env, f"{where}.client_secret_env")
    return TokenIdentity(SharedToken(TokenEndpoint(setting, secret, core.clock), core.clock, where), None)


class TokenEndpoint:
    """`TokenEndpoint` implements `TokenSource`. Without a `secret`, the file of the settings has it."""

    def __init__(self, settings: OAuthIdentity, secret: str | None, clock: Clock) -> None:
        self._settings = settings
        self._secret = secret
        self._clock = clock

    async def read(self) -> Token[str]:
        settings = self._settings
        try:
            return await self._fetch(self._secret if self._secret is not None else self._secret_of_file())
        except NoCredentials as fault:
            raise NoCredentials(f"{settings.token_url}: {fault}", fault.detail) from None
        except TimeoutError:
            raise NoCredentials(f"{settings.token_url}: it does not answer within {TOTAL_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoCredentials(f"{settings.token_url}: it cannot be reached ({type(error).__name__})") from None

    async def close(self) -> None:
        """There is nothing to end: each token has a connection of its own."""

    def _secret_of_file(self) -> str:
        file = self._settings.client_secret_file
        assert file is not None  # or there is a variable
        try:
            return read_key(file, self._clock.wall())
        except NoCredentials as fault:
            raise NoCredentials(f"client_secret_file: {fault}") from None

    async def _fetch(self, secret: str) -> Token[str]:
        settings = self._settings
        asked = {"scope": settings.scope, "audience": settings.audience, "resource": settings.resource}
        form = {"grant_type": "client_credentials"} | {name: value for name, value in asked.items() if value}
        headers = {"Accept": "application/json", "User-Agent": "nearhit"}
        if settings.client_auth == "post":
            form |= {"client_id": settings.client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}"  # RFC 6749, section 2.3.1
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        timeout = aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.post(settings.token_url, data=form, allow_redirects=False) as response,
        ):
            answer, fields = bytearray(), dict[str, Any]()
            async for piece in response.content.iter_any():
                answer += piece
                if len(answer) > MAX_BYTES:
                    raise NoCredentials(f"its answer is larger than {MAX_BYTES} bytes")
            try:
                value = orjson.loads(answer)
                fields = value if isinstance(value, dict) else fields
            except orjson.JSONDecodeError:
                pass
            if response.status != 200:
                raise _refusal(response.status, fields, secret)
            return _token_of(fields)


def _refusal(status: int, fields: Mapping[str, Any], secret: str) -> NoCredentials:
    code, words = fields.get("error"), fields.get("error_description")
    named = f": {code}" if isinstance(code, str) and _ERROR.fullmatch(code) and code != secret else ""
    detail = masked(words, secret) if isinstance(words, str) else ""
    return NoCredentials(f"it answers with status {status}{named}", detail)


def _token_of(fields: Mapping[str, Any]) -> Token[str]:
    token, kind, life = fields.get("access_token"), fields.get("token_type"), fields.get("expires_in")
    if not isinstance(token, str) or not token:
        raise NoCredentials("its answer has no access_token, expected the JSON object of RFC 6749")
    if isinstance(kind, str) and kind.lower() != "bearer":
        raise NoCredentials("its token is of another type, expected token_type: Bearer")
    return Token(checked_key(token.strip()), None if life is None else seconds(life, "expires_in"))
