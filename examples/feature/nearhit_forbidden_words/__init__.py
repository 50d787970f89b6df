"""A feature of nearhit in one file: refuse prompts that contain certain words."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.config.policy.model import Route
from gateway.config.validation import Section
from gateway.context import Handler, RequestContext
from gateway.errors import Forbidden
from gateway.feature import Concern, Core, Feature, FeatureStep, Place, Runtime, Unsupported
from gateway.messages import Response
from gateway.observability.metrics import Counter
from gateway.steps.guard import skip


class ForbiddenWordsRule(Section):
    """The words that no prompt of a route may contain."""

    words: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Whole words, in any case."""

    def in_prompt(self, request: RequestContext) -> list[str]:
        """Return the forbidden words of a request."""
        prompt = "" if request.call is None else request.call.prompt
        return [word for word in self.words if re.search(rf"\b{re.escape(word)}\b", prompt, re.IGNORECASE)]


def _rule_of(value: object) -> object:
    """Return the mapping that a plain list of words stands for."""
    return {"words": value} if isinstance(value, list) else value


class ForbiddenWordsMetrics:
    """The metrics of the feature."""

    def __init__(self) -> None:
        self.refused = Counter("nearhit_forbidden_words_total", "Prompts with a forbidden word", ("route",))


class ForbiddenWordsRuntime(Runtime):
    """The shared parts of the feature."""

    def __init__(self, metrics: ForbiddenWordsMetrics) -> None:
        self._metrics = metrics

    def refusal(self, route: Route, inner: Handler) -> Handler:
        """Return the step that refuses requests of a route."""
        rule = route.of(ForbiddenWordsRule)
        assert rule is not None  # only such routes have the step

        def refuse_or_pass(request: RequestContext) -> Response | Awaitable[Response]:
            if words := rule.in_prompt(request):
                self._metrics.refused.add(route.name)
                raise Forbidden(f"the prompt contains {', '.join(words)}, which route {route.name} forbids")
            return inner(request)

        return refuse_or_pass


class ForbiddenWords(Feature):
    """Refuses prompts that contain certain words."""

    key = "forbidden_words"
    summary = "A list such as `[kumquat]`: a prompt with one of these words gets 403."
    form = Annotated[ForbiddenWordsRule | None, BeforeValidator(_rule_of)]
    metrics = ForbiddenWordsMetrics
    steps = (
        FeatureStep("ForbiddenWords", Place.KEYS, "which prompts are refused", ForbiddenWordsRuntime.refusal, skip),
    )
    stores = Unsupported("nothing of a request is stored")

    def open(self, core: Core) -> ForbiddenWordsRuntime:
        return ForbiddenWordsRuntime(core.telemetry.include(ForbiddenWordsMetrics()))

    def explain(self, request: RequestContext, route: Route) -> Mapping[str, str]:
        rule = route.of(ForbiddenWordsRule)
        words = [] if rule is None else rule.in_prompt(request)
        return {"forbidden words": ", ".join(words) or "none"}

    def doctor(self, route: Route) -> list[Concern]:
        rule = route.of(ForbiddenWordsRule)
        short = [] if rule is None else [word for word in rule.words if len(word) < 2]
        return [Concern(f"{word!r} is in many prompts", "forbid longer words") for word in short]

    def simulate(self) -> Unsupported:
        return Unsupported("forbidden words are not looked for, because recorded traffic has no prompts")


FORBIDDEN_WORDS = ForbiddenWords()
