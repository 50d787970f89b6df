"""The section `guard` of a route."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.fields import EnvironmentName, Text, http_url
from gateway.config.policy.model import Generational
from gateway.config.policy.schema import section_or_off
from gateway.config.schema_types import OFF, ON_OR_OFF, ScalarForm, or_schemas
from gateway.config.units import PositiveDuration
from gateway.config.validation import Problem, Section, one_of

EXAMPLE = "http://127.0.0.1:7100/beta/litellm_basic_guardrail_api"
MAX_TIMEOUT_S = 30.0  # each request that is judged waits for it
MAX_REMEMBERED_S = 3600.0
_HEADER, _VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}"), re.compile(r"[ -~]{1,4096}")


def guard_url(value: object) -> str:
    """Return the whole URL of a guard. Raise `ValueError`."""
    return http_url(value, EXAMPLE, "headers_env")


GuardUrl = Annotated[
    str,
    BeforeValidator(guard_url),
    WithJsonSchema(ScalarForm(r"[Hh][Tt][Tt][Pp][Ss]?://[^@/]+(/.*)?", f"a URL such as {EXAMPLE}").schema),
]
OnError = Annotated[Literal["closed", "open"], one_of("closed", "open")]


class GuardRule(Section, Generational):
    """The server that judges the requests and the answers of a route."""

    request: GuardUrl | None = Field(default=None, examples=[EXAMPLE])
    """The whole URL that judges each request before any lookup, hits included."""
    response: GuardUrl | None = Field(default=None, examples=[EXAMPLE])
    """The whole URL that judges each answer of a backend before it is stored and sent."""
    on_error: OnError = "closed"
    """`closed`: a request or an answer without a verdict fails. `open`: it passes, and such an answer is not stored."""
    timeout: Annotated[PositiveDuration, Field(le=MAX_TIMEOUT_S)] = 1.0
    """How long one verdict may take, 30 s at most."""
    remember: Annotated[PositiveDuration, Field(le=MAX_REMEMBERED_S)] | None = None
    """How long a verdict also counts for equal requests of the same client, 1 h at most. Without it each request is
    judged."""
    version: Text | None = None
    """The version of the guard's rules. Answers that another version has judged are not served from the caches. Without
    it, that holds for another `response` or `params`."""
    params: Mapping[Text, str | int | float | bool] = Field(default={})
    """Sent with each question as `additional_provider_specific_params`."""
    headers_env: EnvironmentName | None = None
    """The name of an environment variable with headers for the guard, such as `x-api-key=SECRET`, separated by
    commas."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if settings.get("request") is None and settings.get("response") is None:
            yield Problem(None, "has nothing to judge, expected request, response or both")
        name = settings.get("headers_env")
        if isinstance(name, str) and name.isidentifier() and not headers_of(name):
            yield Problem(
                "headers_env",
                f"the environment variable {name} has no headers, expected NAME=VALUE, separated by commas",
            )

    @property
    def generation(self) -> str:
        return "" if self.response is None else f"guard:{self.digest}"

    @property
    def digest(self) -> str:
        """The version that answers are judged by, 16 hex digits."""
        facts = self.version or orjson.dumps([self.response, dict(self.params)], option=orjson.OPT_SORT_KEYS).decode()
        return sha256(facts.encode()).hexdigest()[:16]


def headers_of(name: str | None) -> dict[str, str]:
    """Return the headers in an environment variable; empty if it is not set, or malformed."""
    headers = {}
    for pair in os.environ.get(name or "", "").split(","):
        header, _, value = (part.strip() for part in pair.partition("="))
        if not (_HEADER.fullmatch(header) and _VALUE.fullmatch(value)):
            return {}
        headers[header] = value
    return headers


GuardForm = Annotated[GuardRule | None, section_or_off("request: URL, response: URL"), or_schemas(OFF), ON_OR_OFF]
SUMMARY = (
    "`{request: URL, response: URL}`: a server judges requests and answers, and may block or change them (LiteLLM's "
    "Generic Guardrail API)."
)


def guard_problems(route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the faults of `guard` next to the other keys of a route, which is as written."""
    cache = route.get("cache")
    if isinstance(cache, dict) and cache.get("mcp") not in (None, False, "off"):
        yield Problem("guard", "reads no MCP messages, expected only one of guard and cache.mcp")
