"""The port of what builds the upstreams of backends: each adapter has its own, in the core or in a feature."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from gateway.config import Config
from gateway.config.backends import RemoteBackendSection
from gateway.context import Backend
from gateway.dialects.model_names import ModelNames
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.upstream.http_client import Identity
from gateway.upstream.retry import Resends
from gateway.upstream.upstream import UpstreamConfig, UpstreamTask


@dataclass(frozen=True, slots=True)
class BackendCore:
    """The parts of the gateway that upstreams are built with."""

    config: Config
    environ: Mapping[str, str]
    clock: Clock
    telemetry: Telemetry


class UpstreamBuilder(Protocol):
    """Builds the upstreams of all backends of one adapter. It is made once, with the `BackendCore`."""

    def __call__(self, name: str, section: Any, resends: Resends) -> Sequence[UpstreamConfig]:
        """Return the upstreams of a backend, in a running event loop.

        `section` is of the class that the adapter declares. `resends` permits a transport to send a call again. Raise
        `StartupError` if the backend cannot be used.
        """


class IdentityBuilder(Protocol):
    """Builds the identity that a key of a backend sets."""

    def __call__(self, core: BackendCore, where: str, setting: Any, key_header: str | None) -> Identity:
        """Return the identity, in a running event loop.

        `where` is the path of the key, for messages, and `setting` is its value. `key_header` is the header with the
        bare API key in the endpoint's dialect; None if `Authorization` has it as a bearer token. Raise `StartupError`
        if the identity cannot be used.
        """


def batching(backend: Backend, section: RemoteBackendSection, clock: Clock, *, shared: bool) -> Backend:
    """Return the backend, with batching if it is configured. `shared` as in `Batching`."""
    if section.batch is None:
        return backend
    batched: Backend = import_module("gateway.upstream.batching").Batching(backend, section.batch, clock, shared=shared)
    return batched


def metrics_tasks(url: str | None, models: ModelNames, tls: ssl.SSLContext | None = None) -> list[UpstreamTask]:
    """Return the task that reads the metrics of an upstream's server; none without their URL. `tls` is as the
    backend sets it."""
    if url is None:
        return []
    reader = import_module("gateway.upstream.server_metrics").MetricsReader  # few backends have such a URL
    return [lambda endpoint: reader(endpoint, url, models.upstream_names, tls).run()]


def model_names(section: RemoteBackendSection) -> ModelNames:
    """Return the mapping of model names that is configured for a backend."""
    return ModelNames(section.model, tuple(section.models.items()))
