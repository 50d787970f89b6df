"""Encrypt clients' credentials while their jobs wait: the store never has them in clear.

OpenSSL's bindings are large, so they are imported when the first job with credentials comes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import msgpack

from gateway.features.jobs.store import ODD, Headers, Unsealable

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class Sealer:
    """`Sealer` encrypts with AES-128-CBC and HMAC-SHA256 (Fernet), under a key derived from `secret`.

    `secret` has at least 32 random bytes, in any form. After a change of the secret, the credentials of waiting jobs
    are lost: the jobs fail with an error that says so.
    """

    def __init__(self, secret: str) -> None:
        # The secret is random and not a password, so it needs no slow derivation.
        digest = hashlib.sha256(b"nearhit/jobs/credentials/" + secret.encode()).digest()
        self._key = base64.urlsafe_b64encode(digest)

    @cached_property
    def _fernet(self) -> Fernet:
        fernet: Fernet = import_module("cryptography.fernet").Fernet(self._key)
        return fernet

    def seal(self, headers: Headers, job: str) -> bytes:
        """Encrypt the headers for one job; they open for no other job."""
        return self._fernet.encrypt(msgpack.packb([job, headers], unicode_errors=ODD))

    def open(self, sealed: bytes, job: str) -> Headers:
        """Decrypt the headers. Raise `Unsealable`."""
        try:
            owner, headers = msgpack.unpackb(self._fernet.decrypt(sealed), unicode_errors=ODD)
        except import_module("cryptography.fernet").InvalidToken:
            raise Unsealable("the credentials were encrypted with another key (jobs.key_env)") from None
        if owner != job:
            raise Unsealable("the credentials belong to another job")
        return tuple((str(name), str(value)) for name, value in headers)
