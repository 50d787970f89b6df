"""Find the secret of erasures, or make one for a gateway with a store of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway.adapters.redis.key_files import KeyFile
from gateway.config import Config

ERASURE_KEY = KeyFile(
    "erasure.key",
    "erasures",
    "makes the digests of subjects, and signs reports of erasures",
    "without it no erasure finds them",
    logging.getLogger("nearhit.removal"),
)


def erasure_secret(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the secret, or None. Raise `StartupError`."""
    return ERASURE_KEY.secret(config, environ, config.store.erasure_key_env, "store.erasure_key_env")
