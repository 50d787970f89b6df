"""Build the upstream pools of the configured backends. The adapter of a backend says what builds its upstreams."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pkgutil import resolve_name

from gateway.config import BackendSection, Config
from gateway.config.backends import RemoteBackendSection
from gateway.dialects.known import DIALECTS
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.upstream.backend import BackendRules, UpstreamPool
from gateway.upstream.building import BackendCore, UpstreamBuilder
from gateway.upstream.hedging import HedgeRules
from gateway.upstream.retry import Resends, RetryBudget
from gateway.upstream.upstream import Upstream


def build_pools(
    config: Config, environ: Mapping[str, str], clock: Clock, telemetry: Telemetry
) -> dict[str, UpstreamPool]:
    """Build the pool of each backend. Call it in the running event loop.

    Raise `StartupError` if the environment lacks a named secret, or if the dialect of another package is broken. Raise
    `ModelMissing` or `ModelCorrupt` if a local model cannot be loaded.
    """
    DIALECTS.prepare(section.adapter for section in config.backends.values())
    core = BackendCore(config, environ, clock, telemetry)
    places = dict.fromkeys(section.builder for section in config.backends.values())
    builders: dict[str, UpstreamBuilder] = {place: resolve_name(place)(core) for place in places}
    pools = {}
    for name, section in config.backends.items():
        rules = _rules(section)
        budget = RetryBudget(rules.retry_share)
        resends = Resends(name, budget, clock, telemetry.retries)
        upstreams = [
            Upstream(upstream, clock, telemetry) for upstream in builders[section.builder](name, section, resends)
        ]
        pools[name] = UpstreamPool(name, upstreams, clock, telemetry, rules, random.random, budget)
    return pools


def _rules(section: BackendSection) -> BackendRules:
    total_s = section.timeouts.total
    if not isinstance(section, RemoteBackendSection):
        return BackendRules(attempts=1, total_s=total_s)  # a retry on the same machine would fail again
    hedge = None if section.hedge is None else HedgeRules(section.hedge.after, section.hedge.budget)
    counts_cached = section.sticky == "prefix" or section.price.cached_input_per_million is not None
    return BackendRules(section.sticky, section.retries.budget, section.retries.attempts, hedge, counts_cached, total_s)
