"""The declaration of the feature `privacy`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

from gateway.calls import Call
from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import Handler, RequestContext, RequestState
from gateway.feature import Core, Feature, FeatureStep, Place, Runtime, Unsupported
from gateway.features.privacy.rule import SUMMARY, PrivacyRule, privacy_problems
from gateway.messages import Response
from gateway.observability.metrics import Counter
from gateway.steps.guard import skip
from gateway.steps.parse_and_route import Reader


class PersonalData(RequestState):
    """The kinds of personal data that the route of a request looks for and that the request has."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: tuple[str, ...] = ()


class PrivacyMetrics:
    """The metrics of the feature."""

    def __init__(self) -> None:
        self.personal_data = Counter(
            "nearhit_personal_data_total",
            "Requests with personal data, by the kind and by what the caches make of it",
            ("route", "kind", "action"),
        )


class PrivacyRuntime(Runtime):
    """The shared parts of the feature."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: PrivacyMetrics) -> None:
        self._metrics = metrics

    def reader(self, route: Route) -> Reader | None:
        rule = route.of(PrivacyRule)
        if rule is None:
            return None

        def read(request: RequestContext, call: Call) -> Call:
            call, request.of(PersonalData).kinds = rule.read(call)
            return call

        return read

    def count(self, route: Route, inner: Handler) -> Handler:
        """Return the step that counts the requests of a route with personal data."""
        rule, counter = route.of(PrivacyRule), self._metrics.personal_data
        action = "" if rule is None else rule.action

        def count_kinds(request: RequestContext) -> Response | Awaitable[Response]:
            kinds = request.of(PersonalData).kinds
            if kinds:
                request.on_written = None  # no fast path: each such request counts
                for kind in kinds:
                    counter.add(route.name, kind, action)
            return inner(request)

        return count_kinds


class Privacy(Feature):
    """Personal data in requests."""

    key = "privacy"
    after = "session"
    summary = SUMMARY
    form = PrivacyRule | None
    metrics = PrivacyMetrics
    steps = (
        FeatureStep(
            "CountPersonalData", Place.KEYS, "requests with personal data count, by kind", PrivacyRuntime.count, skip
        ),
    )
    stores = Unsupported("personal data is found and not kept")

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        return privacy_problems(route)

    def open(self, core: Core) -> PrivacyRuntime:
        return PrivacyRuntime(core.telemetry.include(PrivacyMetrics()))

    def explain(self, request: RequestContext, route: Route) -> Mapping[str, str]:
        kinds, rule = request.of(PersonalData).kinds, route.of(PrivacyRule)
        return {"personal data": f"{', '.join(kinds)}: {rule.action}"} if kinds and rule is not None else {}

    def explain_fields(self, request: RequestContext, route: Route) -> Mapping[str, Any]:
        rule = route.of(PrivacyRule)
        return {"personal_data": request.of(PersonalData).kinds, "privacy": None if rule is None else rule.action}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rule")

    def simulate(self) -> Unsupported:
        return Unsupported(
            "personal data is not looked for again: requests keep what privacy made of them when they were recorded"
        )


PRIVACY = Privacy()
