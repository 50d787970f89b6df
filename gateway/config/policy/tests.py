"""What a policy is to do with requests: `tests:` of a policy file, as written and as they are run.

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
from gateway.messages import Bypass

MAX_EXPECTATIONS = 200  # of a file
# What the other reasons come from is not known without a store, an embedder or a client that waits.
_REASONS = (
    Bypass.PASS_THROUGH,
    Bypass.NO_STORE,
    Bypass.NO_CACHE,
    Bypass.NO_TEXT,
    Bypass.SEQUENCE,
    Bypass.SHARED_MEMORY,
    Bypass.RAW,
    Bypass.BACKGROUND,
    Bypass.CONVERSATION,
)
CACHES = ("semantic", "exact", "off", *map(str, _REASONS))
_BODIES = ("/v1/chat/completions", "/v1/messages")  # that a question alone makes


class RequestRule(Section):
    """A request, as far as the policy looks at it."""

    path: Text = _BODIES[0]
    model: Text | None = None
    tenant: Text | None = None
    headers: Mapping[Text, Text] = Field(default={})
    question: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    body: Mapping[str, Any] | None = None
    complexity: Annotated[float, Field(ge=0, le=1)] | None = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if given.get("body") is not None:
            for key in ("question", "model"):
                if given.get(key) is not None:
                    yield Problem(key, "body says that already, expected one of the two")
        elif given.get("question") is not None and given.get("path", _BODIES[0]) not in _BODIES:
            yield Problem("question", f"makes a body for {' and '.join(_BODIES)} alone, expected body beside this path")


class ExpectRule(Section):
    """What is to become of it. All that is given must hold."""

    route: Text | None = None
    backend: Text | None = None
    tier: Text | None = None
    cache: Annotated[str | None, one_of(*CACHES), WithJsonSchema({"enum": [*CACHES, False, None]})] = None
    share: Annotated[Literal["user", "tenant", "global"], one_of("user", "tenant", "global")] | None = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if not any(value is not None for value in given.values()):
            yield Problem(None, "expects nothing, expected one of: route, backend, tier, cache, share")


class ExpectationRule(Section):
    """One request, and what is to become of it."""

    name: Text = Field(examples=["hard questions"])
    request: RequestRule = Field(examples=['{question: "What is a scope?"}'])
    expect: ExpectRule = Field(examples=["{route: default}"])


@dataclass(frozen=True, slots=True)
class Expectation:
    """One of them, ready to be run."""

    name: str
    path: str
    body: Mapping[str, Any]
    tenant: str | None  # None: one that shows no credentials
    headers: Mapping[str, str]
    complexity: float | None  # None: judged from the text
    expect: Mapping[str, str]  # key of `ExpectRule` -> value
    file: str
    at: KeyPath
    lines: Mapping[str, int]  # of the keys of `expect`, and of the whole under ""

    def fault(self, key: str, message: str) -> ConfigError:
        """`key`: of `expect`, or "" for the request."""
        path = (*self.at, "expect", key) if key else (*self.at, "request")
        return ConfigError(self.file, self.lines[key], path, f"{self.name!r}: {message}")


def compiled_expectations(rules: tuple[ExpectationRule, ...], source: YamlSource) -> Iterator[Expectation]:
    """Those of one file."""
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
