"""Clients' credentials while their jobs wait: in the store they lie encrypted, or not at all. Imported where there is a
key: OpenSSL's bindings are not small."""

from __future__ import annotations

import base64
import hashlib

import msgpack
from cryptography.fernet import Fernet, InvalidToken

from gateway.job_store import ODD, Headers, Unsealable


class Sealer:
    """With AES-128-CBC and HMAC-SHA256 (Fernet), under a key derived from `secret`: 32 random bytes or more, in any
    form. To change it is to lose the credentials of jobs that wait: they fail, and say why."""

    def __init__(self, secret: str) -> None:
        # The secret is random, not a password: no slow derivation is needed.
        digest = hashlib.sha256(b"nearhit/jobs/credentials/" + secret.encode()).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(digest))

    def seal(self, headers: Headers, job: str) -> bytes:
        """Bound to the job: what was sealed for one opens for no other."""
        return self._fernet.encrypt(msgpack.packb([job, headers], unicode_errors=ODD))

    def open(self, sealed: bytes, job: str) -> Headers:
        """Raises `Unsealable`."""
        try:
            owner, headers = msgpack.unpackb(self._fernet.decrypt(sealed), unicode_errors=ODD)
        except InvalidToken:
            raise Unsealable("its credentials were sealed with another key (jobs.key_env)") from None
        if owner != job:
            raise Unsealable("its credentials are those of another job")
        return tuple((str(name), str(value)) for name, value in headers)
