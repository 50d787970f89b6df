"""Builds what is told of requests: the observer, and the exporter of traces where one is configured."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import math
import re
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from urllib.parse import unquote

from gateway.config import Config
from gateway.config.environment import read_secret
from gateway.errors import StartupError
from gateway.observability.access_log import AccessLog, LogShares
from gateway.observability.live_events import LiveEvents
from gateway.observability.observer import Observer
from gateway.observability.sampler import Tracing
from gateway.observability.telemetry import Telemetry
from gateway.parts import Parts
from gateway.ports import Clock

HEADERS = "telemetry.traces.headers_env"
_NAME, _VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[ -~]*")


def observer_of(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    access_log: AccessLog | None,
    parts: Parts,
    decisions: LiveEvents,
) -> Observer:
    """`stack` ends what it starts. Raises `StartupError`."""
    tracing = _tracing(stack, config, environ, parts.clock, parts.telemetry)
    shares = LogShares(config.telemetry.access_log.sample)
    used, recorder = parts.evictions.used, parts.recorder
    return Observer(parts.telemetry, parts.clock, access_log, used, recorder, decisions, shares, tracing)


def _tracing(
    stack: AsyncExitStack, config: Config, environ: Mapping[str, str], clock: Clock, telemetry: Telemetry
) -> Tracing | None:
    """None where no receiver is configured."""
    traces = config.telemetry.traces
    if traces.endpoint is None:
        return None
    exporting = importlib.import_module("gateway.adapters.system.otlp_exporter")  # 0.2 s that nobody else needs
    receiver = exporting.Receiver(traces.endpoint, _headers(environ, traces.headers_env), traces.timeout)
    resource = {
        "service.name": traces.service_name,
        "service.version": importlib.metadata.version("nearhit"),
        "service.instance.id": str(uuid.uuid4()),
    }
    exporter = exporting.OtlpExporter(receiver, resource, traces.max_queued, telemetry)
    tracing = Tracing(traces.sample, math.inf if traces.slow is None else traces.slow, exporter, clock, telemetry)

    async def close() -> None:
        tracing.close()
        await asyncio.to_thread(exporter.close)

    stack.push_async_callback(close)
    return tracing


def _headers(environ: Mapping[str, str], variable: str | None) -> dict[str, str]:
    """`name=value,name=value`, values percent-encoded, as OTEL_EXPORTER_OTLP_HEADERS has them. No sentence repeats
    them."""
    text = read_secret(environ, variable, HEADERS) or ""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not equals or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise StartupError(f"{HEADERS}: the variable {variable} is to hold name=value,name=value")
        headers[name] = value
    return headers
