"""JSON Web Tokens of an OpenID Connect issuer, for the admin port: who it says one is, and which role that has here.

Checked as RFC 8725 has it: algorithms are those of the configuration, never those that a token asks for, and none of
them takes a shared secret; a key serves its own algorithm alone; nothing that a token names (`jku`, `x5u`, `jwk`) is
fetched or believed; issuer and audience are compared whole.
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

from gateway.adapters.system.jwks import Jwks, JwksFailed
from gateway.admin.middleware import Check
from gateway.config.auth import OidcConfig
from gateway.errors import Forbidden, StartupError, Unauthorized
from gateway.ports import Clock
from gateway.principal import Actor, Role

MAX_TOKEN = 16 * 1024  # bytes; what a header line of `server.max_header` takes

MAX_NAME = 128

REQUIRED = ("exp", "iss", "aud")

# Only the kind of fault is told: whoever shows a token has it in his hands, and nobody else is told anything.
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
        """The one of that name; None: there is none. Without a name: the only one. Raises `Overloaded`."""


class OidcVerifier:
    """`check` is a check of the admin port's entrance."""

    def __init__(self, rules: OidcConfig, keys: KeySource) -> None:
        self._rules = rules
        self._keys = keys

    async def check(self, text: str) -> Actor | None:
        """None: it is no such token. Raises `Unauthorized`, `Forbidden`, or `Overloaded` where the issuer's keys cannot
        be had."""
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
            raise Unauthorized("the issuer has no such key: the token is of another one, or older than its keys")
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
            said = next(
                (sentence for kind, sentence in JWT_ERRORS if isinstance(error, kind)), "the token is malformed"
            )
            raise Unauthorized(said) from None
        except (ValueError, TypeError):  # of a key that is of another kind than its algorithm says
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
    """The most that a claim's values stand for. `value`: a text, words in one (RFC 8693 section 4.2), or a list."""
    if isinstance(value, str):
        values = {value, *value.split(" ")}
    elif isinstance(value, list):
        values = {item for item in value if isinstance(item, str)}
    else:
        return None
    found = [role for role in Role if values & set(roles.get(role, ()))]
    return found[-1] if found else None


def _claim_at(claims: Mapping[str, Any], path: str) -> object:
    """A claim by its name, or one within others: `realm_access.roles`. A name that has dots is taken as it is first,
    since such as `https://example.com/roles` are usual."""
    if path in claims:
        return claims[path]
    found: object = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _is_usable(key: PyJWK, algorithm: str) -> bool:
    """RFC 7517 sections 4.2 and 4.4: what a key says of itself is heeded."""
    said: Mapping[str, Any] = key._jwk_data
    return said.get("use", "sig") == "sig" and said.get("alg", algorithm) == algorithm and said.get("kty") != "oct"


# What checks the tokens of an OpenID Connect issuer. Imported where one is configured: signatures need OpenSSL's
# bindings.
def token_check(oidc: OidcConfig, clock: Clock) -> Check:
    """Raises `StartupError`."""
    try:
        keys = Jwks(oidc.issuer, oidc.jwks_url, frozenset(oidc.private_hosts), clock)
    except JwksFailed as error:
        setting = "issuer" if oidc.jwks_url is None else "jwks_url"
        raise StartupError(f"auth.oidc.{setting}: {error}") from None
    return OidcVerifier(oidc, keys).check
