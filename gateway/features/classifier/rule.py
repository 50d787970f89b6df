"""The section `route.complexity`: a classifier of the operator's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.errors import format_value
from gateway.config.fields import Text, grpc_url, http_url
from gateway.config.schema_types import ScalarForm
from gateway.config.units import PositiveDuration
from gateway.config.validation import Problem, Section, one_of

HTTP_EXAMPLE = "http://127.0.0.1:7000/classify"
GRPC_EXAMPLE = "grpc://127.0.0.1:8001"
SCHEMES = {"http": ("http", "https"), "triton": ("grpc", "grpcs")}
MAX_TIMEOUT_S = 5.0  # each request that asks waits for it


def classifier_url(value: object) -> str:
    """Return the address of a classifier, without a slash at its end. Raise `ValueError`."""
    if isinstance(value, str) and urlsplit(value[:8]).scheme.lower() in SCHEMES["triton"]:
        return grpc_url(value)
    if isinstance(value, str) and "@" in value.partition("://")[2].partition("/")[0]:
        raise ValueError(f"the URL contains credentials, which would reach logs, expected a URL such as {HTTP_EXAMPLE}")
    return http_url(value, HTTP_EXAMPLE)


_URL = WithJsonSchema(
    ScalarForm(
        r"([Hh][Tt][Tt][Pp][Ss]?|[Gg][Rr][Pp][Cc][Ss]?)://[^@/]+(/.*)?",
        f"a URL such as {HTTP_EXAMPLE} or {GRPC_EXAMPLE}",
    ).schema
)


class ComplexityRule(Section):
    """A classifier of one's own that scores the complexity of the route's requests."""

    adapter: Annotated[Literal["http", "triton"], one_of("http", "triton")] = Field(examples=["http"])
    """`http`: a POST with a JSON body. `triton`: a model with one text input, called over gRPC."""
    url: Annotated[str, BeforeValidator(classifier_url), _URL] = Field(examples=[HTTP_EXAMPLE])
    """The whole URL of the endpoint, or `grpc://HOST:PORT` of the Triton server. It gets the text of each question, and
    no credentials."""
    model: Text | None = None
    """For `adapter: triton`: the name of the model."""
    timeout: Annotated[PositiveDuration, Field(le=MAX_TIMEOUT_S)] = 0.02
    """How long a request waits for the classifier, 5 s at most. Afterwards the gateway's own score counts."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        adapter, url = settings.get("adapter"), settings.get("url")
        if not isinstance(adapter, str) or adapter not in SCHEMES:
            return  # the field itself reports it
        scheme = url.partition("://")[0].lower() if isinstance(url, str) else ""
        if scheme in (*SCHEMES["http"], *SCHEMES["triton"]) and scheme not in SCHEMES[adapter]:
            example = GRPC_EXAMPLE if adapter == "triton" else HTTP_EXAMPLE
            yield Problem("url", f"does not fit adapter: {adapter}, expected {example}, got {format_value(url)}")
        if adapter == "triton" and settings.get("model") is None:
            yield Problem(None, "'model' is required with adapter: triton, e.g. model: difficulty")
        if adapter == "http" and settings.get("model") is not None:
            yield Problem("model", "works with adapter: triton only, expected that adapter or no model")


SUMMARY = (
    "`{adapter: http, url: http://127.0.0.1:7000/classify}`: a classifier of one's own scores the requests. If it is "
    "late or fails, the gateway's own score counts."
)
