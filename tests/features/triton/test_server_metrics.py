"""The queue of a Triton server, which other gateways fill too, counts in predictions."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.own_triton import own_triton
from tests.fixtures.waiting import until


async def test_what_other_clients_queue_at_a_real_server_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with own_triton(tmp_path / "triton") as triton:
        url = f"http://127.0.0.1:{triton.server.ports.metrics}/metrics"
        backends: dict[str, Any] = {
            "main": {"adapter": "triton", "url": triton.url, "model": "unary", "metrics_url": url}
        }
        async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
            async with InferenceServerClient(triton.url.partition("://")[2]) as other:
                calls = [asyncio.create_task(ask(other, "wait"))]
                await until(triton.cancelled_file.with_name("cancelled.unary").exists)  # the model runs it
                calls += [asyncio.create_task(ask(other, text)) for text in "abc"]
                await until(lambda: shown(served)["queued_elsewhere"] == 3)
                assert served.gateway.parts.pools["main"].endpoints[0].calls_ahead == 3
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                await until(lambda: shown(served)["queued_elsewhere"] == 0)
            assert (await served.chat("hi")).text == "unary: hi"
            await triton.server.stop()
            with caplog.at_level(logging.WARNING, "nearhit.models"):
                await until(lambda: "the server's metrics are away" in caplog.text)
            assert shown(served)["queued_elsewhere"] == 0


async def ask(client: InferenceServerClient, text: str) -> None:
    given = InferInput("text_input", [1], "BYTES")
    given.set_data_from_numpy(np.array([text.encode()], np.object_))
    await client.infer("unary", [given])


def shown(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.gateway.describe()["backends"]["main"]["upstreams"][0]
    return found
