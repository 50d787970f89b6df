"""The declaration of the feature `guard`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import RequestContext
from gateway.feature import Concern, Core, Feature, FeatureStep, Place, Unsupported
from gateway.features.guard.rule import SUMMARY, GuardForm, GuardRule, guard_problems
from gateway.features.guard.step import GuardMetrics, GuardRuntime


class Guard(Feature):
    """A server of the operator's own that judges requests and answers."""

    key = "guard"
    summary = SUMMARY
    form = GuardForm
    metrics = GuardMetrics
    steps = (
        FeatureStep(
            "RequestGuard",
            Place.KEYS,
            "a server judges each request, hits included",
            GuardRuntime.judge_requests,
            None,
        ),
        FeatureStep(
            "AnswerGuard",
            Place.ANSWERS,
            "a server judges each answer before it is stored and sent",
            GuardRuntime.judge_answers,
            None,
        ),
    )
    stores = Unsupported("verdicts are remembered in memory, by digest, for guard.remember")

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        return guard_problems(route)

    def open(self, core: Core) -> GuardRuntime:
        runtime = GuardRuntime(core, core.telemetry.include(GuardMetrics()))
        core.stack.push_async_callback(runtime.close)
        return runtime

    def explain(self, request: RequestContext, route: Route) -> Mapping[str, str]:
        rule = route.of(GuardRule)
        if rule is None:
            return {}
        judged = [f"{side} by {url}" for side, url in (("request", rule.request), ("answer", rule.response)) if url]
        version = f", version {rule.version or rule.digest}" if rule.response else ""
        return {"guard": f"{' and '.join(judged)}{version}; on_error: {rule.on_error}; explain does not ask it"}

    def doctor(self, route: Route) -> Iterator[Concern]:
        rule = route.of(GuardRule)
        urls = dict.fromkeys(url for url in (rule and rule.request, rule and rule.response) if url)
        for url in urls:
            if url.lower().startswith("http:") and not _is_near(url):
                yield Concern(
                    f"the guard of route {route.name} is at {url}, so prompts cross the network unencrypted",
                    "give guard an https URL, or run the guard next to the gateway",
                )

    def simulate(self) -> Unsupported:
        return Unsupported("guards are not asked: requests are replayed as they were recorded")


def _is_near(url: str) -> bool:
    """Return whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


GUARD = Guard()
