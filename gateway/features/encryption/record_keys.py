"""Encrypt the records of entries with AES-256-GCM, under one of several keys.

A sealed record is `SEALED`, the id of its key (4 bytes), a random nonce (12 bytes), then the ciphertext with its tag.
The associated data are the id and the entry's fingerprint, so a record opens under the name of its own entry only. The
scope is part of the ciphertext, and each lookup compares it with its own.

A nonce is random, so a key may write 2**32 records before a repeat is likelier than 2**-32 (NIST SP 800-38D, 8.3).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from gateway.adapters.redis.records import SEALED, RecordCodec, RecordInvalid
from gateway.config.environment import read_secret
from gateway.config.store import EncryptionKey, StoreEncryption
from gateway.errors import StartupError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ID_BYTES, NONCE_BYTES, TAG_BYTES = 4, 12, 16

MIN_SECRET = 32  # characters; the derivation is fast, so a short secret could be guessed

_HEAD = len(SEALED) + ID_BYTES
_BODY = _HEAD + NONCE_BYTES


class RecordKeys:
    """`RecordKeys` seals records with the first key, and opens those of all.

    `secrets` have at least `MIN_SECRET` random characters each. OpenSSL's bindings are large, so they are imported only
    where there are keys.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        aead = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
        self._invalid = import_module("cryptography.exceptions").InvalidTag
        # The secrets are random and not passwords, so they need no slow derivation.
        keys = [hashlib.sha256(b"nearhit/store/records/" + secret.encode()).digest() for secret in secrets]
        self._keys: dict[bytes, AESGCM] = {SEALED + _id_of(key): aead(key) for key in keys}
        self._head, self._first = next(iter(self._keys.items()))

    @property
    def id(self) -> str:
        """The id of the key that writes, in hex."""
        return self._head[len(SEALED) :].hex()

    def seal(self, record: bytes, fingerprint: str) -> bytes:
        """Encrypt a record, so that it opens under this fingerprint only."""
        nonce = os.urandom(NONCE_BYTES)
        return self._head + nonce + self._first.encrypt(nonce, record, self._head + fingerprint.encode())

    def open(self, sealed: bytes, fingerprint: str) -> bytes:
        """Decrypt a record. Raise `RecordInvalid`."""
        head = sealed[:_HEAD]
        key = self._keys.get(head)
        if key is None:
            raise RecordInvalid(
                f"a record of the key {head[len(SEALED) :].hex()}, which store.encryption does not have"
            )
        if len(sealed) < _BODY + TAG_BYTES:
            raise RecordInvalid("an encrypted record that is cut off")
        try:
            return key.decrypt(sealed[_HEAD:_BODY], sealed[_BODY:], head + fingerprint.encode())
        except self._invalid:
            raise RecordInvalid("an encrypted record that was changed, or belongs to another entry") from None

    def is_current(self, record: bytes) -> bool:
        """Return whether the first key has written a record."""
        return record.startswith(self._head)


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"nearhit/store/key-id/" + key).digest()[:ID_BYTES]


def codec_of(encryption: StoreEncryption, environ: Mapping[str, str]) -> RecordCodec:
    """Return the codec of the records, with the keys of the configuration. Raise `StartupError`."""
    secrets_of_keys = [_secret_of(key, at, environ) for at, key in enumerate(encryption.keys)]
    return RecordCodec(RecordKeys(secrets_of_keys), read_plain=encryption.read_plain)


def _secret_of(key: EncryptionKey, at: int, environ: Mapping[str, str]) -> str:
    """Return the secret of a key. Raise `StartupError` if there is none, or if it could be guessed."""
    where = f"store.encryption.keys[{at}]"
    if key.file is None:
        secret = read_secret(environ, key.env, where) or ""
    else:
        try:
            secret = key.file.read_text().strip()
        except (OSError, ValueError) as error:
            raise StartupError(f"{where}: {key.file} cannot be read: {error}") from None
    if len(secret) < MIN_SECRET:
        raise StartupError(
            f"{where}: the secret has {len(secret)} characters, expected at least {MIN_SECRET}, such as from "
            "openssl rand -base64 32"
        )
    return secret
