"""The addresses of a backend, and how calls are shared among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from gateway.config.errors import show
from gateway.config.fields import EnvironmentName, Text, switched
from gateway.config.schema_types import Form
from gateway.config.units import POSITIVE_SHARE, PositiveDuration, Share, parse_positive_share
from gateway.config.urls import GrpcUrl, HttpUrl, grpc_url, http_url
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of

MAX_UPSTREAMS = 256
MOST_HEDGED = 0.2  # of the calls: beyond it the upstreams have no time left for the calls themselves
_PERCENTILE = Form(r"p([5-9]\d(?:\.\d)?)", "a percentile from p50 to p99.9 such as p95")
_Weight = Annotated[float, Field(gt=0, le=1000)]


class HttpUpstream(Section):
    """One address of an HTTP endpoint."""

    url: HttpUrl = Field(examples=["https://host/v1"])
    weight: _Weight = 1.0  # its part of the calls, against the others'
    api_key_env: EnvironmentName | None = None  # None: as the backend says


class GrpcUpstream(Section):
    """One Triton server."""

    url: GrpcUrl = Field(examples=["grpc://host:8001"])
    weight: _Weight = 1.0


class Retries(Section):
    """How often a call is sent again, before its first byte."""

    budget: Share = 0.2  # of the calls of the last ten seconds; 0: never
    attempts: Annotated[int, Field(ge=1, le=10)] = 2  # of one call, the first one included


def _quantile(value: object) -> float:
    """`p95` -> 0.95"""
    return float(_PERCENTILE.read(value)[1]) / 100


def _hedge_budget(value: object) -> float:
    share = parse_positive_share(value)
    if share > MOST_HEDGED:
        raise ValueError(f"expected a share of at most {MOST_HEDGED:.0%}, got {show(value)}")
    return share


class BatchRule(Section):
    """Calls of equal form are put together before they are sent, for models that do not batch by themselves."""

    max_size: Annotated[int, Field(ge=2, le=4096)] = 32  # rows along the first dimension
    max_wait: PositiveDuration = 0.002  # for others, in seconds


class Hedge(Section):
    """When a second upstream is asked while the first one has not answered."""

    after: Annotated[float, BeforeValidator(_quantile), WithJsonSchema(_PERCENTILE.schema)] = (
        0.95  # of its predicted latency
    )
    budget: Annotated[float, BeforeValidator(_hedge_budget), WithJsonSchema(POSITIVE_SHARE)] = 0.05  # of the calls


def _http_upstream(value: object) -> HttpUpstream:
    """A bare URL stands for a mapping of nothing else."""
    return HttpUpstream(url=http_url(value)) if isinstance(value, str) else HttpUpstream.model_validate(value)


def _grpc_upstream(value: object) -> GrpcUpstream:
    return GrpcUpstream(url=grpc_url(value)) if isinstance(value, str) else GrpcUpstream.model_validate(value)


def _models(value: object) -> object:
    """Checked here, so that the path of a fault is the mapping: a glob may have dots in it."""
    if isinstance(value, dict):
        for glob, name in value.items():
            if not isinstance(glob, str) or not isinstance(name, str) or not glob or not name:
                raise ValueError(f"expected globs with the name of a model each, got {show(glob)}: {show(name)}")
    return value


HttpUpstreams = Annotated[
    tuple[Annotated[HttpUpstream, PlainValidator(_http_upstream, json_schema_input_type=HttpUpstream | str)], ...],
    NOT_EMPTY,
    Field(strict=False, max_length=MAX_UPSTREAMS),
]
GrpcUpstreams = Annotated[
    tuple[Annotated[GrpcUpstream, PlainValidator(_grpc_upstream, json_schema_input_type=GrpcUpstream | str)], ...],
    NOT_EMPTY,
    Field(strict=False, max_length=MAX_UPSTREAMS),
]
ModelMap = Annotated[Mapping[Text, Text], BeforeValidator(_models)]
"""Globs of the names that clients say -> the name that is sent upstream; the first match decides."""

Sticky = Annotated[
    Literal["off", "conversation", "user"],
    one_of("off", "conversation", "user"),
    WithJsonSchema({"enum": ["off", "conversation", "user", False]}),
]
"""What is kept on one upstream, where its KV cache lies."""

_hedge = switched(Hedge, "{after: p95, budget: 5%}")
HedgeOrOff = Annotated[Hedge | None, BeforeValidator(_hedge, json_schema_input_type=Hedge | str | bool | None)]
"""None: a call goes to one upstream at a time."""


def address_problems(given: Mapping[str, Any], example: str) -> Iterator[Problem]:
    """`url` or `upstreams`, no address twice, and another one where calls are to be hedged."""
    upstreams = given.get("upstreams")
    alone = isinstance(upstreams, list | tuple) and len(upstreams) == 1
    if ("upstreams" not in given or alone) and given.get("hedge") not in (None, False, "off"):
        yield Problem("hedge", "asks a second upstream and there is one, expected two in 'upstreams', or off")
    if "url" in given and "upstreams" in given:
        yield Problem("upstreams", "stands instead of 'url', expected one of the two")
    elif "url" not in given and "upstreams" not in given:
        yield Problem(None, f"'url' is required, e.g. url: {example}, or 'upstreams' with several of them")
    if not isinstance(upstreams, list | tuple):
        return
    seen: set[str] = set()
    for upstream in upstreams:
        url = upstream.get("url") if isinstance(upstream, Mapping) else upstream
        if not isinstance(url, str) or "@" in url:  # credentials are a fault of their own, and not repeated
            continue
        if url.rstrip("/") in seen:
            yield Problem(
                "upstreams", f"{show(url)} is there twice, expected each address once; 'weight' gives it more"
            )
        seen.add(url.rstrip("/"))
