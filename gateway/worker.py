"""A gateway that is one of several workers behind one address, and the environment that its supervisor passes to it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gateway.cache.eviction import MEMORY_SHARE
from gateway.config import Config
from gateway.files import WORKERS

VARIABLE = "NEARHIT_WORKER"  # not a setting: it has no `__`


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """The environment of a worker. `data` and `admin` are descriptors of listening sockets that the supervisor keeps
    open. `told` is the pipe to the supervisor."""

    number: int
    workers: int
    data: int
    admin: int | None  # the first worker has the admin port
    told: int
    store: str  # the value of `store.url`

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> WorkerEnvironment | None:
        text = environ.get(VARIABLE)
        return None if text is None else cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def apply_to(self, config: Config) -> Config:
        """Return the configuration with this worker's share of each limit. Together the workers keep to the configured
        limits."""
        store, server, share = config.store, config.server, self.workers
        budget = store.max_bytes
        if budget is None and store.url == "embedded":
            budget = int(MEMORY_SHARE * store.max_memory)
        return config.model_copy(
            update={
                "data_dir": config.data_dir / WORKERS / str(self.number),
                "store": store.model_copy(
                    update={"url": self.store, "max_bytes": budget, "front_size": store.front_size // share}
                ),
                "server": server.model_copy(update={"max_inflight": _divide(server.max_inflight, share)}),
                "jobs": config.jobs.model_copy(update={"workers": _divide(config.jobs.workers, share)}),
                "backends": {
                    name: backend.model_copy(update={"max_concurrency": _divide(backend.max_concurrency, share)})
                    for name, backend in config.backends.items()
                },
            }
        )

    def notify_supervisor(self, event: str) -> None:
        """Report an event to the supervisor: `ready` once the worker listens, `warm` once its index is complete."""
        os.write(self.told, f"{event}\n".encode())


def data_socket(worker_environment: WorkerEnvironment | None) -> socket.socket | None:
    """Return the socket on which the data port listens already, or None if it must open its own."""
    return None if worker_environment is None else socket.socket(fileno=worker_environment.data)


def admin_socket(worker_environment: WorkerEnvironment | None) -> socket.socket | None:
    """Return the socket of the admin port, or None, as `data_socket`."""
    return (
        None
        if worker_environment is None or worker_environment.admin is None
        else socket.socket(fileno=worker_environment.admin)
    )


def _divide(whole: int, share: int) -> int:
    return -(-whole // share)
