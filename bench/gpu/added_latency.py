"""The latency that an embedder adds, measured at a gateway process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from bench.fixtures import CONFIG, POLICY, body
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.gpu.record import Record
from bench.load import Load, request_bytes, run

CONNECTIONS = (1, 64)


def measure_through_gateway(embedder: str, name: str, texts: Sequence[str], requests: int, record: Record) -> None:
    """Keep p50 and p99 in ms at each number of connections. `embedder`: the words of its section after `adapter:`.

    Each question is new, so that the gateway embeds it, finds no answer and asks the endpoint. The same questions on a
    route without a semantic cache give what is subtracted.
    """
    up = free_port()
    numbers = itertools.count()
    with (
        server(["bench.servers", "upstream", str(up)], up),
        gateway_of(CONFIG, POLICY, embedder=embedder, upstream=up, more="") as gateway,
    ):
        for connections in CONNECTIONS:
            found = {}
            for model in ("uncached", "bench"):
                _ask(gateway, model, texts, numbers, max(8, requests // 8), connections)
                found[model] = _ask(gateway, model, texts, numbers, requests, connections)
            without, with_it = found["uncached"], found["bench"]
            record.row(
                f"{name}, through the gateway",
                connections=connections,
                p50_ms=with_it.p50_ms,
                p99_ms=with_it.p99_ms,
                added_p50_ms=with_it.p50_ms - without.p50_ms,
                added_p99_ms=with_it.p99_ms - without.p99_ms,
                per_s=with_it.per_second,
            )


def _ask(
    gateway: GatewayProcess,
    model: str,
    texts: Sequence[str],
    numbers: itertools.count[int],
    requests: int,
    connections: int,
) -> Load:
    asked = [f"{texts[at % len(texts)]} {next(numbers)}" for at in range(requests)]
    made = [request_bytes(body(text, model)) for text in asked]
    return asyncio.run(run(gateway.port, gateway.process.pid, made, connections=connections))
