"""Build upstreams from the addresses of Triton servers. Import it only if needed: gRPC and its messages are large."""

from __future__ import annotations

from gateway.features.triton.backend import TritonBackend
from gateway.features.triton.model_health import Locks, ModelCare
from gateway.features.triton.settings import GrpcUpstream, TritonBackendConfig
from gateway.upstream.building import BackendCore, batching, metrics_tasks, model_names
from gateway.upstream.retry import Resends
from gateway.upstream.upstream import UpstreamConfig, UpstreamTask


class TritonUpstreams:
    """`TritonUpstreams` implements `UpstreamBuilder`."""

    def __init__(self, core: BackendCore) -> None:
        self._clock = core.clock
        self._telemetry = core.telemetry
        self._locks: Locks = {}

    def __call__(self, name: str, section: TritonBackendConfig, _: Resends) -> list[UpstreamConfig]:
        return [self._upstream(name, section, address) for address in section.addresses]

    def _upstream(self, name: str, section: TritonBackendConfig, address: GrpcUpstream) -> UpstreamConfig:
        backend = TritonBackend(name, address, section, self._clock)
        models = model_names(section)
        tasks: list[UpstreamTask] = [
            lambda endpoint: ModelCare(
                endpoint, backend.hosted, self._clock, self._telemetry, reload=section.reload, locks=self._locks
            ).run()
        ]
        tasks += metrics_tasks(address.metrics_url, models)
        return UpstreamConfig(
            batching(backend, section, self._clock, shared=True),  # Triton gets no credentials
            address.url,
            address.weight,
            backend.hosted.conditions,
            provider=section.adapter,
            models=models,
            tasks=tasks,
            versions=backend.versions,
        )
