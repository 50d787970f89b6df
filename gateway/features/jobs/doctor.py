"""The check of `nearhit doctor`: whether the credentials of jobs can be encrypted."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.cli.doctor import Finding, ok, warning
from gateway.config import Config
from gateway.jobs import SEALING_KEY
from gateway.private_files import UMASK


def job_key(config: Config) -> Iterator[Finding]:
    """Check that the credentials of jobs can be encrypted. `secrets` checks the variable of `jobs.key_env`."""
    path = SEALING_KEY.path(config, config.jobs.key_env)
    if not config.jobs.enabled or config.jobs.key_env is not None:
        return
    if path is None:
        problem = "there is no key that encrypts the credentials of jobs: jobs with credentials are refused"
        yield warning("jobs", problem, "set jobs.key_env to a variable with one secret for all gateways on the store")
    elif not path.exists():
        yield ok("jobs", f"the first start makes a key in {path}, which encrypts the credentials of jobs")
    elif path.stat().st_mode & UMASK:
        yield warning("jobs", f"other users may read {path}, the key of jobs", f"chmod 600 {path}")
    else:
        yield ok("jobs", f"{path} encrypts the credentials of jobs")
