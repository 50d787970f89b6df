"""The declaration of the feature `route.complexity`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Unsupported
from gateway.features.classifier.classifier import Classified, ClassifierMetrics, Classifiers
from gateway.features.classifier.rule import SUMMARY, ComplexityRule


class Classifier(Feature):
    """A classifier of the operator's own, which scores the complexity of requests."""

    key = "route.complexity"
    after = "quality"
    summary = SUMMARY
    form = ComplexityRule | None
    among_tiers = True
    metrics = ClassifierMetrics
    stores = Unsupported("it keeps nothing of a request after its answer")

    def open(self, core: Core) -> Classifiers:
        classifiers = Classifiers(core.clock, core.telemetry.include(ClassifierMetrics()))
        core.stack.push_async_callback(classifiers.close)
        return classifiers

    def explain(self, request: RequestContext, route: Route) -> Mapping[str, str]:
        answer = request.of(Classified).answer
        return {} if answer is None else {"classifier": answer.explanation}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("a classifier that fails is in the log, and the gateway's own score counts")

    def simulate(self) -> Unsupported:
        return Unsupported("classifiers are not asked: each request keeps its recorded complexity")


CLASSIFIER = Classifier()
