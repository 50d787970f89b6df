"""Find the secret that encrypts the credentials of jobs, or make one for a gateway with a store of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from gateway.adapters.redis.key_files import KeyFile
from gateway.config import Config

SEALING_KEY = KeyFile(
    "jobs.key",
    "jobs",
    "encrypts the credentials of jobs",
    "waiting jobs need it",
    logging.getLogger("nearhit.jobs"),
)


def key_file(config: Config) -> Path | None:
    """Return the file of the secret that the gateway makes itself; None: see `KeyFile.path`."""
    return SEALING_KEY.path(config, config.jobs.key_env)


def sealing_secret(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the secret; None: there is none. A short one is accepted, because queued jobs may be sealed with it.

    Raise `StartupError`.
    """
    return SEALING_KEY.secret(config, environ, config.jobs.key_env, "jobs.key_env")
