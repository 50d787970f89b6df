"""What checks the tokens of an OpenID Connect issuer. Imported where one is configured: signatures need OpenSSL's
bindings."""

from __future__ import annotations

from gateway.adapters.system.jwks import Jwks, JwksFailed
from gateway.admin.middleware import Check
from gateway.admin.oidc import Tokens
from gateway.config.auth import Oidc
from gateway.errors import StartFailed
from gateway.ports import Clock


def token_check(oidc: Oidc, clock: Clock) -> Check:
    """Raises `StartFailed`."""
    try:
        keys = Jwks(oidc.issuer, oidc.jwks_url, frozenset(oidc.private_hosts), clock)
    except JwksFailed as error:
        setting = "issuer" if oidc.jwks_url is None else "jwks_url"
        raise StartFailed(f"auth.oidc.{setting}: {error}") from None
    return Tokens(oidc, keys).check
