"""Who may ask, who may operate, and how that is written down: `auth` and `audit` of `config.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.fields import EnvironmentName, ExactUrl, HttpUrl, KeyHash, Name, Text
from gateway.config.units import Duration, Size
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of

Algorithm = Annotated[
    Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"],
    one_of("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"),
]
Values = Annotated[tuple[Text, ...], Field(strict=False), NOT_EMPTY]


class RoleMapping(Section):
    """Which values of a claim stand for which role."""

    admin: Values | None = None
    operate: Values | None = None
    use: Values | None = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if not any(given.get(role) for role in ("admin", "operate", "use")):
            yield Problem(None, "a role is required, e.g. admin: [platform-team]")

    def as_mapping(self) -> Mapping[str, tuple[str, ...]]:
        return {"admin": self.admin or (), "operate": self.operate or (), "use": self.use or ()}


class OidcConfig(Section):
    """An OpenID Connect issuer whose tokens open the admin port."""

    issuer: ExactUrl = Field(examples=["https://id.example.com/realms/ops"])
    audience: Text = Field(examples=["nearhit"])
    jwks_url: HttpUrl | None = None  # None: what the issuer's discovery document says
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False), NOT_EMPTY] = ("RS256", "ES256")
    role_claim: Text = "groups"  # by its name, or a path such as realm_access.roles
    roles: RoleMapping = Field(examples=["{admin: [platform-team]}"])
    name_claim: Text = "sub"
    leeway: Annotated[Duration, Field(le=300)] = 30.0  # clocks that differ
    private_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()  # that may be asked by plain http


class AuthConfig(Section):
    """Who may ask, and who is who."""

    mode: Annotated[Literal["passthrough", "keys"], one_of("passthrough", "keys")] = "passthrough"
    keys: Mapping[Name, Annotated[tuple[KeyHash, ...], Field(strict=False), NOT_EMPTY]] = Field(default={})
    key_grace: Duration = 600.0  # how long keys of the store that are known are good where it does not answer
    admin_token_env: EnvironmentName | None = None
    oidc: OidcConfig | None = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        keys, mode = given.get("keys", {}), given.get("mode", "passthrough")
        if mode == "passthrough" and keys:
            yield Problem("keys", "no other mode reads these, expected mode: keys beside them")
        tenants = keys if isinstance(keys, dict) else {}
        owners: dict[str, str] = {}
        for tenant, hashes in tenants.items():
            listed = {item for item in hashes if isinstance(item, str)} if isinstance(hashes, list) else set()
            for key in listed:
                if (owner := owners.setdefault(key, tenant)) != tenant:
                    yield Problem("keys", f"{owner!r} and {tenant!r} share a key, expected one tenant a key")


class AuditTrailConfig(Section):
    """The trail of what was done on the admin port: `audit.jsonl` in `data_dir`."""

    max_size: Size = 16 * 2**20  # of one file
    files: Annotated[int, Field(ge=1, le=1_000)] = 8  # in all; then the oldest goes
