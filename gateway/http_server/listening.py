"""Takes what a gateway needs before it serves: its data directory, its addresses, and enough open files."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from gateway.adapters.redis.store_client import MAX_CONNECTIONS
from gateway.adapters.system.tls_reloader import CertificateUnusable, ReloadingCertificate
from gateway.config import Config
from gateway.config.schema import ServerConfig
from gateway.context import Handler
from gateway.errors import StartupError
from gateway.extensions import Extensions
from gateway.ports import Clock
from gateway.private_files import FILE, FOLDER, make_private
from gateway.steps.error_boundary import Inflight

T = TypeVar("T")

# Ports of features, by their key in `server`.
PORTS = Extensions("nearhit.ports", {"grpc": "gateway.features.kserve.grpc.port:GrpcPort"})


class Port(Protocol):
    """A port for clients, besides that of HTTP."""

    async def start(self) -> tuple[str, int]:
        """Listen and return the address, with the port that the system chose if the configured one is 0. Raise
        `OSError`."""

    async def stop(self) -> None:
        """Accept no more calls, wait up to `drain_timeout` for the calls in flight, then abort them."""


class DataDirLock:
    """Locks a data directory for one gateway: two would overwrite each other's store. Its files become private."""

    def __init__(self, data_dir: Path) -> None:
        try:
            data_dir.mkdir(parents=True, exist_ok=True, mode=FOLDER)
            self._file = os.fdopen(os.open(data_dir / "lock", os.O_WRONLY | os.O_CREAT, FILE), "w")
        except OSError as error:
            raise StartupError(
                f"the data directory {data_dir} cannot be written ({error.strerror}): expected write access there, "
                "or another data_dir"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StartupError(
                f"another gateway uses the data directory {data_dir}: stop it, or give this one another data_dir"
            ) from None
        make_private(data_dir)

    def release(self) -> None:
        self._file.close()


async def listening(start: Awaitable[T], key: str, address: object) -> T:
    """Return the result of `start`. Raise `StartupError`, which names the configuration `key` of the address."""
    try:
        return await start
    except OSError as error:
        reason = "the port is taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        raise StartupError(f"cannot listen on {address} ({key}): {reason}") from None


def certificates_of(server: ServerConfig) -> tuple[ssl.SSLContext | None, ReloadingCertificate | None]:
    """Return the TLS context of the data port, and the certificate for the gRPC port. Raise `StartupError`."""
    if server.tls is None:
        return None, None
    try:
        certificate = ReloadingCertificate(server.tls)
        return certificate.context(), certificate
    except CertificateUnusable as error:
        raise StartupError(f"server.tls: {error}") from None


def grpc_port_of(
    server: ServerConfig, clock: Clock, handler: Handler, inflight: Inflight, certificate: ReloadingCertificate | None
) -> Port | None:
    """Build the gRPC port; None if none is configured, so that gRPC is not imported. Raise `StartupError`."""
    if server.grpc is None:
        return None
    build = PORTS.load("grpc")
    try:
        port: Port = build(server, clock, handler, inflight, certificate)
        return port
    except CertificateUnusable as error:
        raise StartupError(f"server.tls: {error}") from None


LOG = logging.getLogger("nearhit")

SPARE_FILES = 64  # libraries, logs, models, the event loop

STORE_FILES = MAX_CONNECTIONS + 2  # one that watches the store, and one that requests share


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The files that a gateway may have open at its limits: each connection is one. `inflight` counts the requests of
    clients, and `calls` those at backends."""

    inflight: int
    calls: int

    @property
    def files(self) -> int:
        return self.inflight + self.calls + STORE_FILES + SPARE_FILES

    @property
    def ample(self) -> int:
        """The limit to ask for: connections stay open between requests."""
        return 2 * self.files


def needed(config: Config) -> OpenFiles:
    calls = sum(section.max_concurrency * len(section.addresses) for section in config.backends.values())
    return OpenFiles(config.server.max_inflight, calls)


def allowed() -> int:
    """Return the greatest number of open files that `allow_files` can set."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard


def allow_files(config: Config) -> None:
    """Raise the process limit of open files, which shells set low, to the need of the configuration. The system may
    allow less; then log a warning. Without free files, connections are silently neither accepted nor refused."""
    wanted = needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted.ample:
        return
    raised = min(wanted.ample, allowed())
    with suppress(OSError, ValueError):  # a sandbox may refuse, or the system's bound is below the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft < wanted.files:
        fields = {"may_be_open": soft, "needed": wanted.files, "todo": f"raise it to {wanted.ample}: ulimit -n"}
        LOG.warning("the limit of open files is too low", extra={"fields": fields})
