"""The settings of `identity: {type: oauth}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from gateway.config.backend_keys import file_fault
from gateway.config.errors import KeyPath
from gateway.config.fields import EnvironmentName, File, HttpUrl, Text
from gateway.config.identities import IdentitySection
from gateway.config.validation import Problem, one_of


class OAuthIdentity(IdentitySection):
    """Access tokens of an authorization server, for the gateway itself (RFC 6749, section 4.4)."""

    described_in = IdentitySection
    builder = "gateway.features.oauth_client.source:oauth_identity"

    type: Literal["oauth"]
    token_url: HttpUrl = Field(examples=["https://login.example.com/oauth2/token"])
    """The token endpoint."""
    client_id: Text = Field(examples=["nearhit"])
    """The name of the gateway there."""
    client_secret_env: EnvironmentName | None = None
    """The variable with the secret of the gateway."""
    client_secret_file: File | None = None
    """Instead: the file with the secret. It is read for each token."""
    scope: Text | None = None
    """The scopes to ask for, with spaces between them."""
    audience: Text | None = None
    """The audience to ask for, as Auth0 and Okta want it."""
    resource: Text | None = None
    """The resource to ask for (RFC 8707)."""
    client_auth: Annotated[Literal["basic", "post"], one_of("basic", "post")] = "basic"
    """`basic`: name and secret go in the header `Authorization`, which each server accepts. `post`: in the body."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if "client_secret_env" in settings and "client_secret_file" in settings:
            yield Problem(
                "client_secret_file", "cannot stand next to 'client_secret_env', expected only one of the two"
            )
        elif "client_secret_env" not in settings and "client_secret_file" not in settings:
            yield Problem(
                None, "'client_secret_env' is required, e.g. client_secret_env: NAME, or 'client_secret_file'"
            )

    def secrets(self) -> Iterator[tuple[KeyPath, str | None]]:
        yield ("client_secret_env",), self.client_secret_env

    def resolved(self, folder: Path) -> Self:
        if self.client_secret_file is None:
            return self
        return self.model_copy(update={"client_secret_file": (folder / self.client_secret_file).absolute()})

    def faults(self, folder: Path) -> Iterator[tuple[KeyPath, str]]:
        file = self.client_secret_file
        if file is not None and (fault := file_fault(folder / file)):
            yield ("client_secret_file",), f"{file}: {fault}"
