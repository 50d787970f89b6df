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

from gateway.features.triton.server_metrics import ServerMetrics, metrics_of
from gateway.upstream.latency import CallFeatures
from gateway.upstream.upstream import ServerLoad
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.own_triton import own_triton
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until

# Lines of a Triton 2.51 without a GPU, and, in their documented form, those of one with two.
PAGE = """
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="light",version="1"} 5
nv_inference_pending_request_count{model="light",version="2"} 1
nv_inference_pending_request_count{model="large",version="1"} 7
nv_inference_pending_request_count{model="lighter",version="1"} 9
nv_cpu_utilization 0.5
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.250000
nv_gpu_utilization{gpu_uuid="GPU-2"} 0.75
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1.5e9
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} nonsense
"""
ASKED = CallFeatures(route="default")


@pytest.mark.parametrize(
    ("page", "models", "found"),
    [
        (PAGE, ["light"], ServerMetrics(6, 0.75, 1.5e9)),
        (PAGE, ["light", "large"], ServerMetrics(13, 0.75, 1.5e9)),
        (PAGE, ["other"], ServerMetrics(None, 0.75, 1.5e9)),
        ("<html>not metrics</html>", ["light"], ServerMetrics()),
        ("", ["light"], ServerMetrics()),
    ],
)
def test_metrics_of_the_models_and_of_all_gpus_are_read(page: str, models: list[str], found: ServerMetrics) -> None:
    assert metrics_of(page, models) == found


async def test_calls_of_others_that_wait_at_the_server_make_a_prediction_longer(tmp_path: Path) -> None:
    """Learnt from calls that found others ahead of them, whoever they came from."""
    async with (
        serving(Upstream("main")) as main,
        gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": main.url}}), NO_CACHE) as served,
    ):
        endpoint, now = served.gateway.parts.pools["main"].endpoints[0], served.gateway.parts.clock.monotonic()
        for ahead, seconds in [(0, 0.1), (8, 0.9)] * 20:
            endpoint.latency.observe(ASKED, load=ahead, ttft_s=seconds, total_s=seconds, output_tokens=0, now=now)
        alone = endpoint.predict(ASKED, now, 0.95)
        endpoint.server_load = ServerLoad(queued_elsewhere=8)
        crowded = endpoint.predict(ASKED, now, 0.95)
        assert alone is not None and crowded is not None
        assert crowded.total_s > 3 * alone.total_s


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
