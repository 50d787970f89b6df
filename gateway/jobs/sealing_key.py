"""Find the secret that encrypts the credentials of jobs, or make one for a gateway with a store of its own."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from gateway.adapters.redis.embedded_valkey import socket_path
from gateway.config import Config
from gateway.config.environment import read_secret
from gateway.errors import StartupError
from gateway.files import shared_dir

LOG = logging.getLogger("nearhit.jobs")

KEY_LENGTH = 32  # minimum length of a secret, in characters

KEY_FILE = "jobs.key"  # in the data folder that all workers share


def key_file(config: Config) -> Path | None:
    """Return the file of the secret that the gateway makes itself. None: `jobs.key_env` names one, or other gateways
    may be on the store, which need the same secret."""
    folder = shared_dir(config.data_dir)
    own_store = ("embedded", f"unix://{socket_path(folder.resolve() / 'store')}")  # the latter in a worker
    return folder / KEY_FILE if config.jobs.key_env is None and config.store.url in own_store else None


def sealing_secret(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the secret; None: there is none. Make it at the first start of a gateway with an embedded store.

    A short secret causes a warning: the key derivation is fast, so the secret could be guessed. The secret is still
    accepted, because queued jobs may be sealed with it. Raise `StartupError` if the variable is empty, or the file
    cannot be used.
    """
    path = key_file(config)
    variable = config.jobs.key_env
    secret = read_secret(environ, variable, "jobs.key_env") if path is None else _read_or_make(path)
    if secret is not None and len(secret) < KEY_LENGTH:
        fields = {"variable": variable, "characters": len(secret), "todo": "openssl rand -base64 32"}
        LOG.warning(f"the secret of jobs.key_env has fewer than {KEY_LENGTH} characters", extra={"fields": fields})
    return secret


def _read_or_make(path: Path) -> str:
    try:
        if not path.exists():
            _make(path)
        secret = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise StartupError(f"the key of jobs, {path}, cannot be used: {error}") from None
    if len(secret) < KEY_LENGTH:
        raise StartupError(f"the key of jobs, {path}, is damaged: restore it, or remove it to have a new one made")
    return secret


def _make(path: Path) -> None:
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
    fields = {"file": str(path), "todo": "keep it with backups of the store: waiting jobs need it"}
    LOG.info("a key was made that encrypts the credentials of jobs", extra={"fields": fields})
