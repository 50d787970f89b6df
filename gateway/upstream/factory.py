"""Build the upstream pools of the configured backends, with an adapter for each upstream."""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib import import_module

from yarl import URL

from gateway.config import BackendSection, Config, OnnxBackendConfig, OpenAIBackendConfig, TritonBackendConfig
from gateway.config.backends import HttpUpstream
from gateway.config.environment import read_secret
from gateway.context import Backend
from gateway.dialects.known import DIALECTS
from gateway.dialects.model_names import ModelNames
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.upstream import onnx_factory
from gateway.upstream.aiohttp_session import AiohttpSession
from gateway.upstream.backend import BackendRules, UpstreamPool
from gateway.upstream.hedging import HedgeRules
from gateway.upstream.http_backend import HttpBackend
from gateway.upstream.http_client import AiohttpClient, Http1Client, HttpClient, MayResend, always
from gateway.upstream.retry import Resends, RetryBudget
from gateway.upstream.upstream import Upstream, UpstreamConfig


def build_pools(
    config: Config, environ: Mapping[str, str], clock: Clock, telemetry: Telemetry
) -> dict[str, UpstreamPool]:
    """Build the pool of each backend. Call it in the running event loop.

    Raise `StartupError` if the environment lacks a named secret, or if the dialect of another package is broken. Raise
    `ModelMissing` or `ModelCorrupt` if a local model cannot be loaded.
    """
    DIALECTS.prepare(section.adapter for section in config.backends.values())
    pools = {}
    for name, section in config.backends.items():
        rules = _rules(section)
        budget = RetryBudget(rules.retry_share)
        resends = Resends(name, budget, clock, telemetry.retries)
        upstreams = [
            Upstream(upstream, clock, telemetry)
            for upstream in _upstreams(name, section, config, environ, clock, resends)
        ]
        pools[name] = UpstreamPool(name, upstreams, clock, telemetry, rules, random.random, budget)
    return pools


def reloads(section: BackendSection) -> bool:
    """Return whether a dead model of this backend is reloaded."""
    return isinstance(section, TritonBackendConfig) and section.reload


def _rules(section: BackendSection) -> BackendRules:
    total_s = section.timeouts.total
    if isinstance(section, OnnxBackendConfig):
        return BackendRules(attempts=1, total_s=total_s)  # a retry on the same machine would fail again
    hedge = None if section.hedge is None else HedgeRules(section.hedge.after, section.hedge.budget)
    counts_cached = section.sticky == "prefix" or section.price.cached_input_per_million is not None
    return BackendRules(section.sticky, section.retries.budget, section.retries.attempts, hedge, counts_cached, total_s)


def _upstreams(
    name: str,
    section: BackendSection,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    resends: Resends,
) -> list[UpstreamConfig]:
    if isinstance(section, OnnxBackendConfig):
        return [onnx_factory.upstream(name, section, clock)]
    if isinstance(section, TritonBackendConfig):
        triton = import_module("gateway.upstream.triton_factory")  # imports gRPC, which is large
        return [triton.upstream(name, section, address, clock) for address in section.addresses]
    shared = read_secret(environ, section.api_key_env, f"backends.{name}.api_key_env")
    upstreams = []
    for i, address in enumerate(section.addresses):
        own = read_secret(environ, address.api_key_env, f"backends.{name}.upstreams[{i}].api_key_env")
        upstreams.append(_http(name, section, address, own or shared, config, clock, resends))
    return upstreams


def _http(
    name: str,
    section: OpenAIBackendConfig,
    address: HttpUpstream,
    api_key: str | None,
    config: Config,
    clock: Clock,
    resends: Resends,
) -> UpstreamConfig:
    passthrough = config.auth.mode == "passthrough"
    # Twice as many connections as calls, because some of them only wait for the end of a body.
    session = AiohttpSession(section.timeouts.connect, 2 * section.max_concurrency)
    backend = HttpBackend(
        name,
        address.url,
        speaks=section.adapter,
        client=client_of(section, address.url, session, resends.allow),
        session=session,
        models=model_names(section),
        api_key=api_key,
        forward_credentials=passthrough,
        credential_rules=config.auth.credential_rules,
        max_concurrency=section.max_concurrency,
        timeouts=section.timeouts,
        clock=clock,
        adaptive=section.adaptive,
        tenant_share=section.tenant_share,
        cache_control=section.cache_control,
        admitted_origins=frozenset(config.server.cors.origins),
        stream_usage=section.stream_usage,
        max_event=config.server.max_event,
        silence_s=config.server.stream_keep_alive,
        reasoning_content=section.reasoning_content,
        unsigned_thinking=section.unsigned_thinking,
    )
    own_account = api_key is not None or not passthrough
    batched = batching(backend, section, clock, shared=own_account)
    return UpstreamConfig(
        batched,
        address.url,
        address.weight,
        provider=section.adapter,
        models=model_names(section),
        own_account=own_account,
    )


def client_of(
    section: OpenAIBackendConfig, url: str, session: AiohttpSession, may_resend: MayResend = always
) -> HttpClient:
    """Return the HTTP client of an upstream. Only the `aiohttp` client uses `session`."""
    origin = str(URL(url).origin())
    if section.client == "aiohttp":
        return AiohttpClient(origin, session, may_resend)
    return Http1Client(
        origin,
        connect_s=section.timeouts.connect,
        max_connections=section.max_concurrency,
        may_resend=may_resend,
    )


def batching(
    backend: Backend, section: OpenAIBackendConfig | TritonBackendConfig, clock: Clock, *, shared: bool
) -> Backend:
    """Return the backend, with batching if it is configured. `shared` as in `Batching`."""
    if section.batch is None:
        return backend
    batched: Backend = import_module("gateway.upstream.batching").Batching(backend, section.batch, clock, shared=shared)
    return batched


def model_names(section: OpenAIBackendConfig | TritonBackendConfig) -> ModelNames:
    """Return the mapping of model names that is configured for a backend."""
    return ModelNames(section.model, tuple(section.models.items()))
