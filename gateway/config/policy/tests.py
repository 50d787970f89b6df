"""Expectations: the section `tests` of a policy file, as written and as compiled.

`gateway.admin.policy_tests` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from gateway.config.errors import ConfigError, KeyPath
from gateway.config.fields import Text
from gateway.config.validation import Problem, Section, one_of
from gateway.config.yaml_loader import YamlSource
from gateway.outcomes import Bypass

MAX_EXPECTATIONS = 200  # in one file
# The other reasons depend on a store, an embedder or a client that waits, and a test has none of them.
_REASONS = (
    Bypass.PASS_THROUGH,
    Bypass.NO_STORE,
    Bypass.PERSONAL_DATA,
    Bypass.NO_CACHE,
    Bypass.NO_TEXT,
    Bypass.SEQUENCE,
    Bypass.SHARED_MEMORY,
    Bypass.RAW,
    Bypass.BACKGROUND,
    Bypass.CONVERSATION,
    Bypass.POLICY,
    Bypass.MESSAGE,
    Bypass.TOOL,
)
CACHES = ("semantic", "exact", "off", *map(str, _REASONS))
_BODIES = ("/v1/chat/completions", "/v1/messages")  # paths for which a question makes the whole body


class RequestRule(Section):
    """The parts of a request that a policy looks at."""

    path: Text = _BODIES[0]
    """The path of the request."""
    model: Text | None = None
    """The model of a request without `body`. Without it, `unnamed`."""
    tenant: Text | None = None
    """The tenant of the request. Without it, `anonymous`."""
    headers: Mapping[Text, Text] = Field(default={})
    """The headers of the request."""
    question: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    """The text of one user message, for `/v1/chat/completions` and `/v1/messages`. Without it, a short question."""
    body: Mapping[str, Any] | None = None
    """Instead of `question` and `model`: the whole body."""
    complexity: Annotated[float, Field(ge=0, le=1)] | None = None
    """The complexity in [0, 1], to test the rule and not the estimate. Without it, the gateway estimates it."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if settings.get("body") is not None:
            for key in ("question", "model"):
                if settings.get(key) is not None:
                    yield Problem(key, "cannot stand next to body, expected only one of the two")
        elif settings.get("question") is not None and settings.get("path", _BODIES[0]) not in _BODIES:
            yield Problem("question", f"works with {' and '.join(_BODIES)} only, expected body for this path")


class ExpectRule(Section):
    """The decision that the policy must make. Every given key must agree."""

    route: Text | None = None
    """The name of the rule that decides."""
    backend: Text | None = None
    """The backend that is called first."""
    tier: Text | None = None
    """The tier that is called first: `light`, `large`, or the name of a middle tier."""
    cache: Annotated[str | None, one_of(*CACHES), WithJsonSchema({"enum": [*CACHES, False, None]})] = None
    """The lookup: `semantic` (exact, then by similarity), `exact`, `off`, or the reason of a bypass."""
    share: Annotated[Literal["user", "tenant", "global"], one_of("user", "tenant", "global")] | None = None
    """The clients that share the entry: `user`, `tenant` or `global`."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if not any(value is not None for value in settings.values()):
            yield Problem(
                None, "an expectation is required, expected one or more of: route, backend, tier, cache, share"
            )


class ExpectationRule(Section):
    """One request, with the decision that the policy must make."""

    name: Text = Field(examples=["hard questions"])
    """The name that a fault shows."""
    request: RequestRule = Field(examples=['{question: "What is a scope?"}'])
    """The request to test."""
    expect: ExpectRule = Field(examples=["{route: default}"])
    """The decision that the policy must make, with at least one key."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation, ready to run."""

    name: str
    path: str
    body: Mapping[str, Any]
    tenant: str | None  # None if the client sends no credentials
    headers: Mapping[str, str]
    complexity: float | None  # None to estimate it from the text
    expect: Mapping[str, str]  # key of `ExpectRule` -> value
    file: str
    at: KeyPath
    lines: Mapping[str, int]  # line of each key of `expect`, and of the request under ""

    def fault(self, key: str, message: str) -> ConfigError:
        """Return a fault at a key of `expect`, or at the request if `key` is empty."""
        path = (*self.at, "expect", key) if key else (*self.at, "request")
        return ConfigError(self.file, self.lines[key], path, f"{self.name!r}: {message}")


def compiled_expectations(rules: tuple[ExpectationRule, ...], source: YamlSource) -> Iterator[Expectation]:
    """Yield the expectations of one file."""
    for index, rule in enumerate(rules):
        at: KeyPath = ("tests", index)
        expect = {key: str(value) for key, value in dict(rule.expect).items() if value is not None}
        lines = {key: source.locate((*at, "expect", key))[0] for key in expect}
        yield Expectation(
            name=rule.name,
            path=rule.request.path,
            body=_request_body(rule.request),
            tenant=rule.request.tenant,
            headers=rule.request.headers,
            complexity=rule.request.complexity,
            expect=expect,
            file=source.file,
            at=at,
            lines={"": source.locate((*at, "request"))[0], **lines},
        )


def _request_body(rule: RequestRule) -> Mapping[str, Any]:
    if rule.body is not None:
        return rule.body
    question = {"messages": [{"role": "user", "content": rule.question or "What is a scope?"}]}
    return {"model": rule.model or "unnamed", "max_tokens": 256, **question}
