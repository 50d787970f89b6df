"""The setting `auth.credential_headers`: headers that count as keys besides those that look like one."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.credentials import TRACING

_ENTRY = re.compile(r"!?[-!#$%&'*+.^_`|~0-9A-Za-z?\[\]]+")
# Headers that every request may have with another value, that frame it, or that the caches read.
_NEVER = TRACING | {"cache-control", "connection", "content-length", "content-type", "host", "transfer-encoding"}


def _checked(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        if not _ENTRY.fullmatch(entry):
            raise ValueError(
                f"{entry[:64]!r} is no name of a header, expected one such as x-team-key, x-*-key or !x-nonce"
            )
        if entry.lower().lstrip("!") in _NEVER or not entry.strip("!*?"):
            raise ValueError(f"{entry!r} cannot tell clients apart, expected a header with a key, such as x-team-key")
    return entries


CredentialHeaders = Annotated[
    tuple[str, ...],
    AfterValidator(_checked),
    Field(strict=False, examples=["[x-team-key]"]),
]
