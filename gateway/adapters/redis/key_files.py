"""Secrets that a gateway with a store of its own makes for itself, in the data folder that all workers share."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.adapters.redis.embedded_valkey import socket_path
from gateway.config import Config
from gateway.config.environment import read_secret
from gateway.errors import StartupError
from gateway.files import shared_dir

KEY_LENGTH = 32  # minimum length of a secret, in characters


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A secret that a variable has, or that the gateway makes in a file of the data folder."""

    name: str  # of the file
    purpose: str  # of the key, for messages
    deed: str  # of the key, for messages
    loss: str  # what a backup without the file lacks
    log: logging.Logger

    def path(self, config: Config, variable: str | None) -> Path | None:
        """Return the file. Return None if `variable` has the secret, or other gateways may be on the store, which need
        the same one."""
        folder = shared_dir(config.data_dir)
        own_store = ("embedded", f"unix://{socket_path(folder.resolve() / 'store')}")  # the latter in a worker
        return folder / self.name if variable is None and config.store.url in own_store else None

    def secret(self, config: Config, environ: Mapping[str, str], variable: str | None, where: str) -> str | None:
        """Return the secret of the variable that the key `where` names, or of the file, or None.

        Make it at the first start of a gateway with an embedded store. A short secret of a variable causes a warning:
        the key derivation is fast, so the secret could be guessed. Raise `StartupError` if the variable is empty, or
        the file cannot be used.
        """
        path = self.path(config, variable)
        secret = read_secret(environ, variable, where) if path is None else self._read_or_make(path)
        if secret is not None and len(secret) < KEY_LENGTH:
            fields = {"variable": variable, "characters": len(secret), "todo": "openssl rand -base64 32"}
            self.log.warning(f"the secret of {where} has fewer than {KEY_LENGTH} characters", extra={"fields": fields})
        return secret

    def _read_or_make(self, path: Path) -> str:
        try:
            if not path.exists():
                self._make(path)
            secret = path.read_text().strip()
        except (OSError, ValueError) as error:
            raise StartupError(f"the key of {self.purpose}, {path}, cannot be used: {error}") from None
        if len(secret) < KEY_LENGTH:
            raise StartupError(
                f"the key of {self.purpose}, {path}, is damaged: restore it, or remove it to have a new one made"
            )
        return secret

    def _make(self, path: Path) -> None:
        """Write a new secret. If several workers start together, the first one wins."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(KEY_LENGTH) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)
        except FileExistsError:
            return
        finally:
            new.unlink()
        fields = {"file": str(path), "todo": f"keep it with backups of the store: {self.loss}"}
        self.log.info(f"a key was made that {self.deed}", extra={"fields": fields})
