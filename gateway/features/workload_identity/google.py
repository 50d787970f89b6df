"""Access tokens and ID tokens of Google Cloud by `google-auth`.

The library reads the file of `GOOGLE_APPLICATION_CREDENTIALS` (a key, or the configuration of workload identity
federation), the login of gcloud, or the metadata server: https://google.aip.dev/auth/4110.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from functools import partial
from typing import Any

import google.auth
import google.auth.transport.requests
import requests
from google.auth.credentials import with_scopes_if_required
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.oauth2 import id_token

from gateway.features.workload_identity.settings import GoogleIdentity
from gateway.features.workload_identity.thread_source import ThreadSource
from gateway.ports import Clock
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import checked_key, masked
from gateway.upstream.shared_token import SharedToken, Token, TokenIdentity

REQUEST_S = 5.0  # the library's own limit is two minutes
EXPECTED = "expected GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, or a metadata server"


def google_identity(core: BackendCore, where: str, setting: GoogleIdentity, _key_header: str | None) -> TokenIdentity:
    """`google_identity` implements `IdentityBuilder`."""
    source = ThreadSource("google", partial(read_token, setting, core.clock))
    return TokenIdentity(SharedToken(source, core.clock, where), None)


def read_token(setting: GoogleIdentity, clock: Clock) -> Token[str]:
    """Return a new token. Raise `NoCredentials`."""
    with requests.Session() as session:
        call: Callable[..., Any] = partial(google.auth.transport.requests.Request(session), timeout=REQUEST_S)
        try:
            if setting.audience is None:
                # With scopes, the library would ask a second service for the number of the project.
                found, _ = google.auth.default(request=call)
                credentials = with_scopes_if_required(found, setting.scope.split())
            else:
                credentials = id_token.fetch_id_token_credentials(setting.audience, request=call)
            credentials.refresh(call)
        except DefaultCredentialsError as error:
            raise NoCredentials(f"there are none on this machine, {EXPECTED}", masked(str(error))) from None
        except TransportError as error:
            raise NoCredentials("Google cannot be reached", masked(str(error))) from None
        except GoogleAuthError as error:
            raise NoCredentials("Google refuses them", masked(str(error))) from None
    end = credentials.expiry  # in UTC, without a zone
    life_s = None if end is None else end.replace(tzinfo=UTC).timestamp() - clock.wall()
    return Token(checked_key(credentials.token), life_s)
