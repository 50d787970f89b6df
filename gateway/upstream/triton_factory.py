"""Build an upstream from the address of a Triton server. Import it only if needed: gRPC and its messages are large."""

from __future__ import annotations

from gateway.config import TritonBackendConfig
from gateway.config.backends import GrpcUpstream
from gateway.ports import Clock
from gateway.upstream.factory import batching, model_names
from gateway.upstream.triton_backend import TritonBackend
from gateway.upstream.upstream import UpstreamConfig


def upstream(name: str, section: TritonBackendConfig, address: GrpcUpstream, clock: Clock) -> UpstreamConfig:
    """Return the upstream for one address of a Triton backend."""
    scheme, _, server = address.url.partition("://")
    backend = TritonBackend(
        name,
        server,
        tls=scheme == "grpcs",
        models=model_names(section),
        embedding_model=section.embedding_model,
        tensors=section.tensors,
        max_concurrency=section.max_concurrency,
        timeouts=section.timeouts,
        clock=clock,
        adaptive=section.adaptive,
        tenant_share=section.tenant_share,
    )
    batched = batching(backend, section, clock, shared=True)  # Triton gets no credentials
    return UpstreamConfig(
        batched,
        address.url,
        address.weight,
        backend.hosted,
        provider=section.adapter,
        models=model_names(section),
        metrics_url=address.metrics_url,
    )
