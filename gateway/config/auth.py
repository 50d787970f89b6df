"""The sections `auth` and `audit` of `config.yaml`: tenants, access to the admin port, and its audit trail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.credential_headers import CredentialHeaders
from gateway.config.fields import EnvironmentName, ExactUrl, HttpUrl, KeyHash, Name, Text
from gateway.config.units import Duration, Size
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.credentials import CredentialRules

Algorithm = Annotated[
    Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"],
    one_of("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"),
]
Values = Annotated[tuple[Text, ...], Field(strict=False), NOT_EMPTY]


class RoleMapping(Section):
    """The values of a claim that stand for each role. At least one role is required."""

    admin: Values | None = None
    """Values of `role_claim` for the role `admin`, such as `[platform-team]`."""
    operate: Values | None = None
    """Values of `role_claim` for the role `operate`."""
    use: Values | None = None
    """Values of `role_claim` for the role `use`."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if not any(settings.get(role) for role in ("admin", "operate", "use")):
            yield Problem(None, "a role is required, e.g. admin: [platform-team]")

    def as_mapping(self) -> Mapping[str, tuple[str, ...]]:
        """Return the values of each role."""
        return {"admin": self.admin or (), "operate": self.operate or (), "use": self.use or ()}


class OidcConfig(Section):
    """An OpenID Connect issuer whose tokens open the admin port."""

    issuer: ExactUrl = Field(examples=["https://id.example.com/realms/ops"])
    """The issuer's URL, exactly as the issuer names itself, to the last slash."""
    audience: Text = Field(examples=["nearhit"])
    """The audience that tokens must have."""
    jwks_url: HttpUrl | None = None
    """The URL of the issuer's keys. Without it the gateway reads the discovery document."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False), NOT_EMPTY] = ("RS256", "ES256")
    """Signature algorithms to accept. Also possible: `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES384`, `ES512`,
    `EdDSA`."""
    role_claim: Text = "groups"
    """The claim with the roles, as a name or a path such as `realm_access.roles`."""
    roles: RoleMapping = Field(examples=["{admin: [platform-team]}"])
    """The values of `role_claim` that stand for each role here. At least one role is required."""
    name_claim: Text = "sub"
    """The claim with the user's name, as a name or a path."""
    leeway: Annotated[Duration, Field(le=300)] = 30.0
    """The difference between clocks to tolerate, at most `5m`."""
    private_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Hosts of the issuer, as `host` or `host:port`, that the gateway may call over plain HTTP."""


class AuthConfig(Section):
    """Tenants, API keys, and access to the admin port."""

    mode: Annotated[Literal["passthrough", "keys"], one_of("passthrough", "keys")] = "passthrough"
    """`passthrough`: the client's credentials go to the backend, and their hash is the tenant. `keys`: the gateway
    checks API keys."""
    keys: Mapping[Name, Annotated[tuple[KeyHash, ...], Field(strict=False), NOT_EMPTY]] = Field(default={})
    """For `keys`: each tenant with the SHA-256 of its API keys, in hex. Keys made at run time are valid as well."""
    credential_headers: CredentialHeaders = ()
    """Names or globs of further headers that count as keys. One that begins with `!` does not count, such as
    `!x-rotating-token`. The last one that fits a header decides."""
    key_grace: Duration = 600.0
    """How long keys that this gateway knows stay valid while the store does not answer."""
    admin_token_env: EnvironmentName | None = None
    """The variable with the bearer token of the admin port. A browser asks for it as a password."""
    oidc: OidcConfig | None = None
    """An OpenID Connect issuer whose tokens open the admin port."""

    @property
    def credential_rules(self) -> CredentialRules:
        return CredentialRules(self.credential_headers)

    @property
    def passthrough_rules(self) -> CredentialRules | None:
        """The rules that make the tenant, or None if the API keys have tenants."""
        return self.credential_rules if self.mode == "passthrough" else None

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        keys, mode = settings.get("keys", {}), settings.get("mode", "passthrough")
        if mode == "passthrough" and keys:
            yield Problem("keys", "have no effect in mode passthrough, expected mode: keys")
        tenants = keys if isinstance(keys, dict) else {}
        owners: dict[str, str] = {}
        for tenant, hashes in tenants.items():
            listed = {item for item in hashes if isinstance(item, str)} if isinstance(hashes, list) else set()
            for key in listed:
                if (owner := owners.setdefault(key, tenant)) != tenant:
                    yield Problem(
                        "keys", f"{owner!r} and {tenant!r} have the same key, expected one tenant for each key"
                    )


class AuditTrailConfig(Section):
    """The audit trail of the admin port: `audit.jsonl` in `data_dir`."""

    max_size: Size = 16 * 2**20
    """The size of `data_dir/audit.jsonl` at which the gateway begins a new file."""
    files: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Files to keep, the current one included. Beyond it the oldest is removed."""
