"""The declaration of the feature `cache.admit.tools`."""

from __future__ import annotations

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Runtime, Unsupported
from gateway.features.tool_calls.rule import SUMMARY, ToolsForm


class ToolCalls(Feature):
    """Stored answers that call tools. Its rule is the port `gateway.cache.tool_calls.ToolCallRule`."""

    key = "cache.admit.tools"
    after = "max_temperature"
    summary = SUMMARY
    form = ToolsForm
    stores = Unsupported("answers that call tools are entries")

    def open(self, core: Core) -> Runtime:
        return Runtime()

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("an explanation has no answer, and so no tool calls")

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rule")

    def simulate(self) -> None:
        return None  # answers that call tools are admitted as the policy says; their arguments are not recorded


TOOL_CALLS = ToolCalls()
