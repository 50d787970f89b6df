"""The declaration of the feature `trace`."""

from __future__ import annotations

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, FeatureStep, Place, Unsupported
from gateway.features.prompt_traces.rule import SUMMARY, TraceForm
from gateway.features.prompt_traces.step import TRACED, PromptTraces
from gateway.steps.guard import skip


class Trace(Feature):
    """Prompts and answers in exported traces."""

    key = "trace"
    summary = SUMMARY
    form = TraceForm
    steps = (
        FeatureStep(
            "TracedTexts", Place.KEYS, "prompts and answers in the spans of requests", PromptTraces.texts, skip
        ),
    )
    stores = (TRACED,)

    def open(self, core: Core) -> PromptTraces:
        return PromptTraces()

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("no decision reads what traces have")

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit doctor tries telemetry.traces, whatever its routes export")

    def simulate(self) -> Unsupported:
        return Unsupported("a simulation exports no traces")


TRACE = Trace()
"""The section `trace` of a route."""
