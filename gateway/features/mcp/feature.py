"""The declaration of the feature `cache.mcp`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import RequestContext
from gateway.feature import Core, Feature, FeatureStep, Place, Unsupported
from gateway.features.mcp.results import McpKnowledge
from gateway.features.mcp.rule import SUMMARY, McpForm, mcp_problems
from gateway.features.mcp.step import McpRuntime
from gateway.steps.guard import leave_caches


class Mcp(Feature):
    """Results of MCP servers."""

    key = "cache.mcp"
    after = "admit"
    summary = SUMMARY
    form = McpForm
    steps = (
        FeatureStep(
            "McpResults",
            Place.KEYS,
            "which results of MCP servers are cached, and for whom",
            McpRuntime.results,
            leave_caches,
        ),
        FeatureStep(
            "SharedResults",
            Place.LOOKUP,
            "MCP results that all clients may share",
            McpRuntime.shared_results,
            leave_caches,
        ),
    )
    stores = Unsupported("the changes that servers announced are digests in memory")

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        return mcp_problems(route)

    def open(self, core: Core) -> McpRuntime:
        knowledge = McpKnowledge(core.publisher("mcp"))
        core.subscribe("mcp", lambda name: knowledge.apply_change(name, core.clock.wall()))
        return McpRuntime(knowledge, core.clock, core.flights, core.exact_cache)

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("its keys, lookups and refusals are those that every explanation shows")

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rule")

    def simulate(self) -> Unsupported:
        return Unsupported("results of MCP servers are not replayed, because a server's announcements are not recorded")


MCP_RESULTS = Mcp()
