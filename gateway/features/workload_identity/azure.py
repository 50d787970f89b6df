"""Access tokens of Microsoft Entra ID by `azure-identity`.

The library tries the environment, the workload identity of Kubernetes, the managed identity of the machine, and the
command lines of Azure: https://aka.ms/azsdk/python/identity/credential-chains.
"""

from __future__ import annotations

import time
from typing import Any

from azure.core.exceptions import ClientAuthenticationError
from azure.identity import DefaultAzureCredential

from gateway.features.workload_identity.settings import AzureIdentity
from gateway.features.workload_identity.thread_source import ThreadSource
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import checked_key, masked
from gateway.upstream.shared_token import SharedToken, Token, TokenIdentity

LIMITS = {"connection_timeout": 3, "read_timeout": 5, "retry_total": 1, "process_timeout": 10}  # in seconds
DEVELOPERS = "SharedTokenCacheCredential"  # the first of the sources that only the desks of developers have
EXPECTED = "expected a workload identity, a managed identity, AZURE_CLIENT_ID with a secret, or `az login`"


def azure_identity(core: BackendCore, where: str, setting: AzureIdentity, _key_header: str | None) -> TokenIdentity:
    """`azure_identity` implements `IdentityBuilder`. Its tokens are bearer tokens, also for Azure's dated API."""
    source = ThreadSource("azure", lambda: read_token(setting))
    return TokenIdentity(SharedToken(source, core.clock, where), None)


def read_token(setting: AzureIdentity) -> Token[str]:
    """Return a token. Its credential is a new one each time, because one that stays repeats a token that was refused.
    Raise `NoCredentials`."""
    tenant: dict[str, Any] = {}
    if setting.tenant_id is not None:
        tenant = {
            "workload_identity_tenant_id": setting.tenant_id,
            "additionally_allowed_tenants": [setting.tenant_id],
        }
    client = {} if setting.client_id is None else {"managed_identity_client_id": setting.client_id}
    with DefaultAzureCredential(**client, **tenant, **LIMITS) as credential:
        try:
            token = credential.get_token(setting.scope, tenant_id=setting.tenant_id)
        except ClientAuthenticationError as error:  # also if there is nothing that could ask
            words = str(error).partition(DEVELOPERS)[0]
            raise NoCredentials(f"Microsoft Entra ID gives none, {EXPECTED}", masked(words)) from None
    return Token(checked_key(token.token), token.expires_on - time.time())
