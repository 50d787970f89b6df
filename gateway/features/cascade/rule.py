"""The section `route.cascade` of a route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.fields import Text
from gateway.config.policy.targets import tier_backends
from gateway.config.units import SHARE, parse_share
from gateway.config.validation import Problem, Section, one_of

MAX_SAMPLES = 9
WITHOUT_LOGPROBS = frozenset(  # adapters
    {"anthropic", "gemini", "triton", "kserve", "tfserving", "torchserve", "mcp", "bedrock"}
)
Check = Literal["logprobs", "consistency", "verifier", "schema"]


class CascadeRule(Section):
    """The check of the lightest model's answer."""

    check: Annotated[Check, one_of("logprobs", "consistency", "verifier", "schema")] = Field(examples=["logprobs"])
    """The check of the lightest tier's answer: `logprobs`, `consistency`, `verifier`, or `schema` alone. A confident
    answer is served, any other is escalated. So is, with every check, an answer that does not fit the JSON Schema of
    its request."""
    accept_above: Annotated[float, BeforeValidator(parse_share), Field(ge=0, lt=1), WithJsonSchema(SHARE)] | None = None
    """The confidence in [0, 1) above which the answer is served. It depends on the check, so it has no default. `check:
    schema` needs none."""
    samples: Annotated[int, Field(ge=2, le=MAX_SAMPLES)] = 3
    """For `consistency`: answers to compare, 2 to 9. Each of them is billed."""
    judge: Text | None = None
    """For `verifier`: the backend that grades the answer. It gets the question and the answer."""
    otherwise: Annotated[
        Literal["escalate", "consistency", "verifier"], one_of("escalate", "consistency", "verifier")
    ] = "escalate"
    """For `logprobs`, if an answer has no log probabilities: `escalate`, or check by `consistency` or `verifier`."""

    @property
    def in_words(self) -> str:
        """The condition on which a light answer is served, as text."""
        if self.check == "schema":
            return "its answer is served if it fits the schema of the request"
        return f"its answer is served if {self.check} scores it above {self.accept_above:g}"

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if settings.get("accept_above") is None and settings.get("check") != "schema":
            yield Problem(None, "'accept_above' is required, e.g. accept_above: 0.7")
        if settings.get("accept_above") is not None and settings.get("check") == "schema":
            yield Problem("accept_above", "has no effect with check: schema, expected no such key")
        checks = {settings.get("check")} | (
            {settings.get("otherwise")} if settings.get("check") == "logprobs" else set()
        )
        if "otherwise" in settings and settings.get("check") != "logprobs":
            yield Problem("otherwise", "has no effect with this check, expected check: logprobs")
        if "samples" in settings and "consistency" not in checks:
            yield Problem("samples", "has no effect with this check, expected check: consistency")
        if settings.get("judge") is not None and "verifier" not in checks:
            yield Problem("judge", "has no effect with this check, expected check: verifier")


SUMMARY = (
    "`{check: logprobs, accept_above: 0.7}`: try the lightest tier first, check its answer, and escalate if the check "
    "is not confident."
)


def logprobs_warnings(route: Mapping[str, Any], adapters: Mapping[str, str]) -> Iterator[Problem]:
    """Warn of a check by log probabilities that no backend of the lightest tier gives. `route` is as written."""
    target = route["route"]
    cascade = target["cascade"]
    if cascade.get("check") != "logprobs" or cascade.get("otherwise", "escalate") != "escalate":
        return
    names = tier_backends(target.get("light") or (target.get("tiers") or [None])[0])
    if names and all(adapters.get(name) in WITHOUT_LOGPROBS for name in names):
        listed = ", ".join(f"{name!r} ({adapters[name]})" for name in names)
        yield Problem(
            ("route", "cascade", "check"),
            f"{listed} gives no log probabilities, so each of its answers is discarded, expected otherwise: verifier",
        )
