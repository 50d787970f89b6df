"""The settings of `identity: {type: azure | google | aws}`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.errors import KeyPath
from gateway.config.fields import HttpUrl, Text
from gateway.config.identities import IdentitySection
from gateway.config.schema_types import ScalarForm

_REGION = ScalarForm(r"[a-z]{2,4}(?:-[a-z]+)+-\d{1,2}", "a region of AWS such as us-east-1")
_ROLE = ScalarForm(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}", "the ARN of a role of IAM")
_SERVICE = ScalarForm(r"[a-z0-9][a-z0-9-]{0,63}", "the name of a service in signatures such as bedrock")


def _read(form: ScalarForm) -> BeforeValidator:
    return BeforeValidator(lambda value: form.read(value)[0])


Region = Annotated[str, _read(_REGION), WithJsonSchema(_REGION.schema)]
Role = Annotated[str, _read(_ROLE), WithJsonSchema(_ROLE.schema)]
Service = Annotated[str, _read(_SERVICE), WithJsonSchema(_SERVICE.schema)]


class _CloudIdentity(IdentitySection):
    """An identity by the library of a cloud, which is an extra."""

    module: ClassVar[str]
    """The library, as it is imported."""
    package: ClassVar[str]
    """The library, as it is installed."""

    def faults(self, folder: Path) -> Iterator[tuple[KeyPath, str]]:
        if not _is_installed(self.module):
            extra = self.type
            yield (
                ("type",),
                f"needs the package {self.package}, which is not installed, expected pip install 'nearhit[{extra}]'",
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


class AzureIdentity(_CloudIdentity):
    """Access tokens of Microsoft Entra ID, for the workload or the machine."""

    described_in = IdentitySection
    builder = "gateway.features.workload_identity.azure:azure_identity"
    module, package = "azure.identity", "azure-identity"

    type: Literal["azure"]
    scope: Text = "https://cognitiveservices.azure.com/.default"
    """The scope to ask for. The default is that of Azure OpenAI; `https://ai.azure.com/.default` is that of Foundry."""
    tenant_id: Text | None = None
    """The tenant, if it is another one than that of `AZURE_TENANT_ID`."""
    client_id: Text | None = None
    """The client id of a managed identity that a user has assigned, or of the workload identity. Without it
    `AZURE_CLIENT_ID` counts."""


class GoogleIdentity(_CloudIdentity):
    """Access tokens of Google Cloud by the application's default credentials, or ID tokens for one service."""

    described_in = IdentitySection
    builder = "gateway.features.workload_identity.google:google_identity"
    module, package = "google.auth", "google-auth"

    type: Literal["google"]
    scope: Text = "https://www.googleapis.com/auth/cloud-platform"
    """The scopes to ask for, with spaces between them."""
    audience: HttpUrl | None = None
    """Instead of an access token: an ID token for this service, such as the URL of a service on Cloud Run."""


class AwsIdentity(_CloudIdentity):
    """Signatures of AWS (Signature Version 4) with the credentials that the AWS command line would use."""

    described_in = IdentitySection
    builder = "gateway.features.workload_identity.aws:aws_identity"
    module, package = "botocore", "botocore"

    type: Literal["aws"]
    region: Region | None = Field(default=None, examples=["us-east-1"])
    """The region. Without it the one in the host of the URL counts, then that of the environment or the profile."""
    service: Service = "bedrock"
    """The name of the service in signatures: `bedrock`, `sagemaker`, `execute-api`, `lambda`."""
    profile: Text | None = None
    """The profile in the files of the AWS command line."""
    role: Role | None = None
    """The role to assume with these credentials, such as one of another account."""
    external_id: Text | None = None
    """The external id that the role asks for."""
