"""Traces and the access log: what `telemetry` of `config.yaml` may say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.config.fields import EnvironmentName, Text
from gateway.config.units import DurationOrOff, PositiveDuration, Share
from gateway.config.urls import ReceiverUrl
from gateway.config.validation import Problem, Section
from gateway.messages import Verdict

CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class Traces(Section):
    """Spans in OpenTelemetry's protocol (OTLP over HTTP, protobuf)."""

    endpoint: ReceiverUrl | None = None  # of the receiver; None: no traces
    headers_env: EnvironmentName | None = None  # the variable with what the receiver wants to be shown
    sample: Share = 1.0  # of the traces that begin here
    slow: DurationOrOff = 30.0  # from here on a request is exported whatever was drawn
    max_queued: Annotated[int, Field(ge=256, le=1_000_000)] = 8192  # spans that wait to be sent
    timeout: PositiveDuration = 5.0  # of sending a batch of them, with all attempts
    service_name: Text = "nearhit"


class AccessLog(Section):
    """A line for each request."""

    sample: Mapping[str, Share] = Field(default={})  # by verdict, or class of status such as 4xx; else all

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        sample = given.get("sample")
        known = (*(verdict.value for verdict in Verdict), *CLASSES)
        for word in sample if isinstance(sample, dict) else ():
            if word not in known:
                yield Problem("sample", f"{str(word)[:64]!r} is no verdict, expected one of {', '.join(known)}")


class Telemetry(Section):
    """What is told of requests beside the metrics."""

    traces: Traces = Field(default_factory=Traces)
    access_log: AccessLog = Field(default_factory=AccessLog)
