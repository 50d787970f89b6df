"""How many files a gateway may have open: a connection of a client or to a backend is one each."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from dataclasses import dataclass

from gateway.adapters.redis.store_client import MAX_CONNECTIONS
from gateway.config import Config, OnnxBackendConfig

LOG = logging.getLogger("nearhit")
SPARE_FILES = 64  # libraries, logs, models, the loop's own
STORE_FILES = MAX_CONNECTIONS + 2  # one to watch it, and the one that commands of requests share


@dataclass(frozen=True, slots=True)
class Needed:
    """`inflight`: requests of clients; `calls`: of them at backends, all at their limits."""

    inflight: int
    calls: int

    @property
    def files(self) -> int:
        return self.inflight + self.calls + STORE_FILES + SPARE_FILES

    @property
    def ample(self) -> int:
        """What to allow: connections stay open between requests."""
        return 2 * self.files


def needed(config: Config) -> Needed:
    calls = sum(
        0 if isinstance(section, OnnxBackendConfig) else section.max_concurrency * len(section.addresses)
        for section in config.backends.values()
    )
    return Needed(config.server.max_inflight, calls)


def allowed() -> int:
    """How many `allow_files` can have this process open."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard


def allow_files(config: Config) -> None:
    """Raises this process's own limit, which shells set low, to what the configuration may take, as far as the system
    lets it. Without a file to open connections are neither accepted nor refused, and nothing says so: hence the
    warning."""
    wanted = needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted.ample:
        return
    raised = min(wanted.ample, allowed())
    with suppress(OSError, ValueError):  # a sandbox refuses it, or the system's own bound is below the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft < wanted.files:
        fields = {"may_be_open": soft, "needed": wanted.files, "todo": f"raise it to {wanted.ample}: ulimit -n"}
        LOG.warning("too few files may be open", extra={"fields": fields})
