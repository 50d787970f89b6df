"""The declaration of the feature `record`."""

from __future__ import annotations

from gateway.cache.stored_parts import TRAFFIC
from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Runtime, Unsupported
from gateway.features.recorder.recorder import RecorderMetrics, Unrecorded, open_recorder
from gateway.features.recorder.rule import SUMMARY, RecordForm, RecordRule


class Record(Feature):
    """The traffic log, which `nearhit simulate` replays."""

    key = "record"
    after = "limits"
    summary = SUMMARY
    form = RecordForm
    meters = True
    embeds = True
    metrics = RecorderMetrics
    stores = (TRAFFIC,)

    def open(self, core: Core) -> Runtime:
        if core.recording is None:
            return Unrecorded()
        return open_recorder(core.recording, core.telemetry.include(RecorderMetrics()))

    def shows_prompts(self, route: Route) -> bool:
        rule = route.of(RecordRule)
        return rule is not None and rule.prompts

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("every explanation says that no decision reads the traffic log")

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("a folder that cannot be written is in the log of the gateway")

    def simulate(self) -> None:
        return None  # a simulation replays what it has recorded


RECORD = Record()
