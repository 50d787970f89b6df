"""`OidcVerifier` authenticates users of the admin port by JSON Web Tokens of an OpenID Connect issuer.

It follows RFC 8725:

- The configuration decides on the algorithms, not the token. None of them uses a shared secret.
- A key is used with its own algorithm only.
- The gateway neither fetches nor trusts anything that a token names (`jku`, `x5u`, `jwk`).
- Issuer and audience must be equal to those of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jwt
from jwt import PyJWK
from jwt.exceptions import (
    ExpiredSignatureError,
    ImmatureSignatureError,
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from gateway.admin.middleware import Check
from gateway.config.auth import OidcConfig
from gateway.errors import Forbidden, StartupError, Unauthorized
from gateway.features.oidc.jwks import Jwks, JwksFailed
from gateway.ports import Clock
from gateway.principal import Actor, Role

MAX_TOKEN = 16 * 1024  # bytes; the size of a header line within `server.max_header`

MAX_NAME = 128

REQUIRED = ("exp", "iss", "aud")

# An error names the kind of fault only. The client has the token and can look at the details itself.
JWT_ERRORS: tuple[tuple[type[PyJWTError], str], ...] = (
    (ExpiredSignatureError, "the token has expired"),
    (ImmatureSignatureError, "the token is not valid yet"),
    (InvalidAudienceError, "the token is for another audience"),
    (InvalidIssuerError, "the token is of another issuer"),
    (MissingRequiredClaimError, "the token lacks a claim: expected exp, iss and aud"),
    (InvalidSignatureError, "the signature of the token is wrong"),
)


class KeySource(Protocol):
    """The public keys of an issuer."""

    async def key(self, kid: str | None) -> PyJWK | None:
        """Return the key of this id, or the only key if `kid` is None. Return None without such a key. Raise
        `Overloaded`."""


class OidcVerifier:
    """`OidcVerifier` checks the tokens of one issuer. Its `check` is a `Check` of the admin port."""

    def __init__(self, rules: OidcConfig, keys: KeySource) -> None:
        self._rules = rules
        self._keys = keys

    async def check(self, text: str) -> Actor | None:
        """Return the actor of a token. Return None if the text is not a JSON Web Token.

        Raise `Unauthorized`, `Forbidden`, or `Overloaded` if the issuer's keys are not available.
        """
        if text.count(".") != 2 or len(text) > MAX_TOKEN:
            return None
        try:
            header = jwt.get_unverified_header(text)
        except PyJWTError:
            return None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._rules.algorithms:
            raise Unauthorized(f"the token is signed otherwise, expected {', '.join(self._rules.algorithms)}")
        key = await self._keys.key(kid if isinstance(kid, str) else None)
        if key is None or not _is_usable(key, algorithm):
            raise Unauthorized("the issuer has no such key: the token is from another issuer, or older than the keys")
        return self._actor(self._claims(text, key, algorithm))

    def _claims(self, text: str, key: PyJWK, algorithm: str) -> Mapping[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key=key.key,
                algorithms=[algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                leeway=self._rules.leeway,
                options={"require": list(REQUIRED), "enforce_minimum_key_length": True},
            )
        except PyJWTError as error:
            reason = next(
                (sentence for kind, sentence in JWT_ERRORS if isinstance(error, kind)), "the token is malformed"
            )
            raise Unauthorized(reason) from None
        except (ValueError, TypeError):  # the type of the key does not fit its algorithm
            raise Unauthorized("the token does not fit the issuer's key") from None
        return claims

    def _actor(self, claims: Mapping[str, Any]) -> Actor:
        name = _claim_at(claims, self._rules.name_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise Unauthorized(f"the token does not say who it is for, expected the claim {self._rules.name_claim}")
        role = highest_role(_claim_at(claims, self._rules.role_claim), self._rules.roles.as_mapping())
        if role is None:
            raise Forbidden(
                f"this token has no role here: expected the claim {self._rules.role_claim} to have a value of "
                "auth.oidc.roles"
            )
        return Actor(name[:MAX_NAME], role, "oidc")


def highest_role(value: object, roles: Mapping[str, Iterable[str]]) -> Role | None:
    """Return the highest role that a claim's values stand for. Return None for no role.

    `value` is a list, or a text that may have several words (RFC 8693 section 4.2).
    """
    if isinstance(value, str):
        values = {value, *value.split(" ")}
    elif isinstance(value, list):
        values = {item for item in value if isinstance(item, str)}
    else:
        return None
    matches = [role for role in Role if values & set(roles.get(role, ()))]
    return matches[-1] if matches else None


def _claim_at(claims: Mapping[str, Any], path: str) -> object:
    """Return a claim by its name or its path, such as `realm_access.roles`.

    The whole name is tried first, because names such as `https://example.com/roles` have dots.
    """
    if path in claims:
        return claims[path]
    claim: object = claims
    for part in path.split("."):
        claim = claim.get(part) if isinstance(claim, dict) else None
    return claim


def _is_usable(key: PyJWK, algorithm: str) -> bool:
    """Return whether the key may verify signatures of this algorithm (RFC 7517, sections 4.1, 4.2 and 4.4)."""
    jwk: Mapping[str, Any] = key._jwk_data
    return jwk.get("use", "sig") == "sig" and jwk.get("alg", algorithm) == algorithm and jwk.get("kty") != "oct"


# This module is imported only if an issuer is configured, because signatures need the bindings of OpenSSL.
def token_check(oidc: OidcConfig, clock: Clock) -> Check:
    """Return the check of the issuer's tokens. Raise `StartupError`."""
    try:
        keys = Jwks(oidc.issuer, oidc.jwks_url, frozenset(oidc.private_hosts), clock)
    except JwksFailed as error:
        setting = "issuer" if oidc.jwks_url is None else "jwks_url"
        raise StartupError(f"auth.oidc.{setting}: {error}") from None
    return OidcVerifier(oidc, keys).check
