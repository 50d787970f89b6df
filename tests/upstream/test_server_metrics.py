"""The metrics of model servers: calls of other gateways count in predictions and in the choice of an upstream."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.upstream.latency import CallFeatures
from gateway.upstream.load_balancer import KV_BUSY, KV_FULL_FACTOR, kv_factor
from gateway.upstream.server_metrics import MetricsReader, ServerMetrics, metrics_of
from gateway.upstream.upstream import ServerLoad
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
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
# Lines in the form of vLLM 0.11 with two engines, of vLLM 0.6, SGLang 0.5 with two ranks, TGI 3 and TensorRT-LLM.
VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 5.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 2.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-8B"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-8B",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.93
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-8B"} 0.5
vllm:num_requests_waiting_created{engine="0"} 1.7e+09
"""
OLD_VLLM = """
vllm:num_requests_running{model_name="a} b"} 1.0
vllm:num_requests_waiting{model_name="a} b"} 4.0
vllm:gpu_cache_usage_perc{model_name="a} b"} 0.25
"""
SGLANG = """
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 7.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 7.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.4
"""
TGI = """
# TYPE tgi_queue_size gauge
tgi_queue_size 3
tgi_batch_current_size 8
"""
TENSORRT = """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 9000
"""
NONSENSE = "tgi_queue_size NaN\ntgi_queue_size -1\ntgi_queue_size +Inf\ntgi_queue_size 1e999\n tgi_queue_size 5\n"
ASKED = CallFeatures(route="default")


@pytest.mark.parametrize(
    ("page", "models", "found"),
    [
        (PAGE, ["light"], ServerMetrics(6, None, None, 0.75, 1.5e9)),
        (PAGE, ["light", "large"], ServerMetrics(13, None, None, 0.75, 1.5e9)),
        (PAGE, ["other"], ServerMetrics(None, None, None, 0.75, 1.5e9)),
        (VLLM, ["any"], ServerMetrics(2, 8, 0.93)),
        (OLD_VLLM, [], ServerMetrics(4, 1, 0.25)),
        (SGLANG, [], ServerMetrics(1, 7, 0.4)),
        (SGLANG.replace("sglang:", "sglang_"), [], ServerMetrics(1, 7, 0.4)),
        (TGI, [], ServerMetrics(3, 8)),
        (TENSORRT, ["ensemble"], ServerMetrics(1, 2, 0.1)),
        (NONSENSE, [], ServerMetrics()),
        (OLD_VLLM.replace("0.25", "45.5"), [], ServerMetrics(4, 1)),  # a percentage
        (OLD_VLLM.replace("0.25", "1.0001"), [], ServerMetrics(4, 1, 1.0)),
        (OLD_VLLM.replace("0.25", "-0.1"), [], ServerMetrics(4, 1)),
        (PAGE.replace("0.75", "75"), ["light"], ServerMetrics(6, None, None, 0.25, 1.5e9)),
        ("<html>not metrics</html>", ["light"], ServerMetrics()),
        ("", ["light"], ServerMetrics()),
    ],
)
def test_the_gauges_of_each_server_are_read(page: str, models: list[str], found: ServerMetrics) -> None:
    assert metrics_of(page, models) == found


@pytest.mark.parametrize("labels", ["{", '{a="', '{a="\\'])
def test_a_page_of_open_label_sets_is_read_in_linear_time(labels: str) -> None:
    """In quadratic time this page takes hours."""
    line = f"vllm:num_requests_waiting{labels}\n"
    assert metrics_of(line * (2**22 // len(line)) + "vllm:num_requests_waiting 3\n", ()) == ServerMetrics(queued=3)


def test_a_gauge_beyond_all_counts_is_left_out() -> None:
    page = "".join(
        f'vllm:num_requests_waiting{{engine="{n}"}} {value}\n' for n, value in enumerate(("1e308", 1e308, 3))
    )
    assert metrics_of(page, ()) == ServerMetrics(queued=3)


def test_a_full_kv_cache_makes_an_upstream_dearer() -> None:
    assert [kv_factor(usage) for usage in (None, 0.0, KV_BUSY)] == [1.0, 1.0, 1.0]
    assert 1.0 < kv_factor(0.9) < KV_FULL_FACTOR
    assert kv_factor(1.0) == kv_factor(7.0) == KV_FULL_FACTOR


async def test_calls_of_others_at_the_server_make_a_prediction_longer(tmp_path: Path) -> None:
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


@asynccontextmanager
async def two_servers(tmp_path: Path) -> AsyncIterator[tuple[Served, dict[str, str], list[Upstream]]]:
    """Yield a gateway before two servers, their pages of metrics by name, and the servers."""
    pages = {"a": TGI, "b": TGI}

    def page_of(name: str) -> Any:
        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            if request.path == "/metrics":
                return web.Response(text=pages[name], status=200 if pages[name] else 503)
            return await servers[name]._default(request, await request.read())

        return answer

    servers = {name: Upstream(name) for name in pages}
    async with AsyncExitStack() as stack:
        for name, server in servers.items():
            await stack.enter_async_context(serving(server))
            server.answer = page_of(name)
        upstreams = [
            {"url": server.url, "metrics_url": server.url.replace("/v1", "/metrics")} for server in servers.values()
        ]
        config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": upstreams}})
        served = await stack.enter_async_context(gateway_of(config, NO_CACHE))
        yield served, pages, [*servers.values()]


def shown(served: Served, place: int) -> dict[str, Any]:
    found: dict[str, Any] = served.gateway.describe()["backends"]["main"]["upstreams"][place]
    return found


async def test_the_upstream_with_fewer_calls_of_others_is_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_servers(tmp_path) as (served, pages, (a, b)):
        await until(lambda: [shown(served, i)["queued_elsewhere"] for i in (0, 1)] == [11, 11])
        assert shown(served, 0)["kv_cache_usage"] is None
        for _ in range(2):  # so that both paces are known
            await asyncio.gather(*(served.chat(f"q{i}") for i in range(8)))
        pages["a"], pages["b"] = VLLM.replace("0.93", "0.1"), ""
        await until(lambda: (shown(served, 0)["queued_elsewhere"], shown(served, 1)["queued_elsewhere"]) == (10, 0))
        assert shown(served, 0)["kv_cache_usage"] == 0.5
        assert "the server's metrics are away" in caplog.text, "b shows none, and counts as without"
        a.calls.clear()
        b.calls.clear()
        for i in range(10):
            await served.chat(f"again {i}")
        assert (len(a.chats), len(b.chats)) == (0, 10)
        with caplog.at_level(logging.INFO, "nearhit.models"):
            pages["b"] = TGI
            await until(lambda: "the server's metrics are read" in caplog.text)


async def test_a_reader_of_metrics_that_fails_is_started_again_and_leaves_no_figure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.tasks.FIRST_PAUSE_S", 0.01)
    read = MetricsReader.read
    async with two_servers(tmp_path) as (served, _, _):
        await until(lambda: shown(served, 0)["queued_elsewhere"] == 11)
        failed = asyncio.Event()

        async def fails_once(reader: MetricsReader, session: aiohttp.ClientSession) -> None:
            if failed.is_set():
                return await read(reader, session)
            failed.set()
            raise LookupError("as of a library")

        monkeypatch.setattr(MetricsReader, "read", fails_once)
        await until(lambda: failed.is_set() and 0 in [shown(served, i)["queued_elsewhere"] for i in (0, 1)])
        await until(lambda: [shown(served, i)["queued_elsewhere"] for i in (0, 1)] == [11, 11])
    assert "a part of the gateway has failed and is restarted" in caplog.text


def test_a_gateway_without_metrics_urls_does_not_import_their_reader() -> None:
    code = "import sys, gateway.app, gateway.upstream.http_upstreams; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "gateway.upstream.server_metrics" not in run.stdout.split()
