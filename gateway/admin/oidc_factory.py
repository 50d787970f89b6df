"""What checks the tokens of an OpenID Connect issuer. Imported where one is configured: signatures need OpenSSL's
bindings."""

from __future__ import annotations

from gateway.adapters.system.jwks import Jwks
from gateway.adapters.system.ssrf_guard import TargetRefused
from gateway.admin.oidc import Tokens
from gateway.config.auth import Oidc
from gateway.errors import StartFailed
from gateway.ports import Clock


class OidcParts:
    """Raises `StartFailed`."""

    def __init__(self, oidc: Oidc, clock: Clock) -> None:
        try:
            self._jwks = Jwks(oidc.issuer, oidc.jwks_url, frozenset(oidc.private_hosts), clock)
        except TargetRefused as error:
            setting = "issuer" if oidc.jwks_url is None else "jwks_url"
            raise StartFailed(f"auth.oidc.{setting}: {error}") from None
        self.check = Tokens(oidc, self._jwks).check

    async def close(self) -> None:
        await self._jwks.close()
