"""What a real receiver gets of a real gateway's requests."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import trustme
from aiohttp import web
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from gateway.adapters.system import otlp_exporter
from gateway.adapters.system.otlp_exporter import CLOSE_TIMEOUT_S
from gateway.observability.access_log import AccessLog
from tests.features.jobs.asking import over, submit
from tests.fixtures.collector import Collector, collecting
from tests.fixtures.gateways import BOTH_CACHES, Served, aboard, config_of, gateway_of
from tests.fixtures.several import counted
from tests.fixtures.upstream import Upstream, serving, stream
from tests.fixtures.waiting import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=opaque, other=1"}
PATIENT_S = 60.0
SECRET = "How do I reset the zyxwvut password"


@pytest.fixture(autouse=True)
def _a_receiver_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the gateway's end as long as it may take to answer: it is in this process, as busy as the gateway."""
    monkeypatch.setattr(otlp_exporter, "CLOSE_TIMEOUT_S", PATIENT_S)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as found:
        yield found


def traces(collector: Collector, **more: Any) -> dict[str, Any]:
    return {"traces": {"endpoint": collector.url, "timeout": f"{PATIENT_S:g}s", **more}}


@asynccontextmanager
async def traced(
    tmp_path: Path, collector: Collector, backends: dict[str, Any], policy: str = BOTH_CACHES, **more: Any
) -> AsyncIterator[Served]:
    """What is held is sent when it ends."""
    telemetry, sections = traces(collector, **more.pop("rules", {})), more.pop("sections", {})
    async with gateway_of(config_of(tmp_path, backends, telemetry=telemetry, **sections), policy, **more) as served:
        yield served


def main(upstream: Upstream) -> dict[str, Any]:
    return {"main": {"adapter": "openai", "url": upstream.url, "model": "served-model"}}


async def test_a_miss_has_a_span_for_each_stage_and_one_for_the_call(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async with traced(tmp_path, collector, main(upstream)) as served:
        answer = await served.chat(SECRET, max_tokens=50)
        assert answer.status == 200
    root = collector.root(nearhit__verdict="miss")
    assert (root.name, root.kind, root.parent_id) == ("POST /v1/chat/completions", "server", "")
    assert root.attributes["nearhit.request_id"] == answer.headers["x-request-id"]
    assert root.attributes["gen_ai.request.model"] == "m"
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["nearhit.route"] == "default"
    stages = [span.name for span in collector.children(root, "internal")]
    assert {"exact", "embed", "search", "store"} <= set(stages) and "upstream" not in stages
    (call,) = collector.children(root, "client")
    assert call.name == "chat served-model"
    host, port = upstream.url.removeprefix("http://").removesuffix("/v1").split(":")
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "served-model",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "server.address": host,
        "server.port": int(port),
        "http.response.status_code": 200,
        "nearhit.backend": "main",
    } == call.attributes
    assert upstream.chats[0].headers["traceparent"] == f"00-{root.trace_id}-{call.span_id}-01"
    assert not any(b"zyxwvut" in body for body in collector.bodies)
    assert collector.resource["service.name"] == "nearhit"


async def test_hits_are_traced_on_either_path_and_go_on_with_the_clients_trace(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async with traced(tmp_path, collector, main(upstream)) as served:
        await served.chat(SECRET)
        for _ in range(2):  # by all steps, then by the fast path
            assert "detail=exact" in (await served.chat(SECRET, headers=PARENT)).cache_status
        assert "detail=semantic" in (await served.chat(SECRET + "?", headers=PARENT)).cache_status
        counted = served.gateway.parts.telemetry.spans.values
    ours = [span for span in collector.spans if span.trace_id == TRACE]
    roots = [span for span in ours if span.kind == "server"]
    assert [span.attributes["nearhit.verdict"] for span in roots] == ["exact", "exact", "semantic"]
    assert {(span.parent_id, span.state) for span in roots} == {(SPAN, "vendor=opaque,other=1")}
    assert all(span.attributes["gen_ai.operation.name"] == "chat" for span in roots)
    assert roots[2].attributes["nearhit.similarity"] > 0.9
    assert all([span.name for span in collector.children(root, "internal")] for root in roots)
    assert not any(collector.children(root, "client") for root in roots)
    assert counted[("exported",)] == len(collector.spans)
    assert not any(b"zyxwvut" in body for body in collector.bodies)


async def test_a_call_that_is_sent_again_has_a_span_for_each_attempt(collector: Collector, tmp_path: Path) -> None:
    async def failing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"no: {SECRET}"}}, status=503)

    async with serving(Upstream("a", answer=failing)) as first, serving(Upstream("b")) as second:
        backends = {"main": {"adapter": "openai", "upstreams": [{"url": first.url, "weight": 1000}, second.url]}}
        async with traced(tmp_path, collector, backends) as served:
            assert (await served.chat(SECRET, headers=PARENT)).status == 200
        root = collector.root(nearhit__verdict="miss")
        failed, answered = collector.children(root, "client")
        assert (failed.failed, failed.attributes["error.type"]) == (True, "503")
        assert (answered.failed, answered.attributes["http.request.resend_count"]) == (False, 1)
        seen = [each.chats[0].headers for each in (first, second)]
        assert [h["traceparent"] for h in seen] == [f"00-{TRACE}-{s.span_id}-01" for s in (failed, answered)]
        assert seen[0]["tracestate"] == "vendor=opaque, other=1"
    assert not any(b"zyxwvut" in body for body in collector.bodies)


async def test_a_streams_span_lasts_to_its_end_with_its_usage(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async with traced(tmp_path, collector, main(upstream)) as served:
        assert (await served.chat(SECRET, stream=True)).status == 200
    (call,) = collector.children(collector.root(nearhit__verdict="miss"), "client")
    assert (call.attributes["gen_ai.usage.input_tokens"], call.attributes["gen_ai.usage.output_tokens"]) == (7, 5)
    assert call.attributes["gen_ai.request.stream"] is True
    assert 0 < call.attributes["gen_ai.response.time_to_first_chunk"] <= call.seconds


async def test_followers_are_linked_to_the_request_whose_call_they_share(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    upstream.gate.clear()
    async with traced(tmp_path, collector, main(upstream)) as served:
        asked = [asyncio.create_task(served.chat(SECRET)) for _ in range(2)]
        await until(lambda: aboard(served) == 2)
        upstream.gate.set()
        await asyncio.gather(*asked)
    leader, follower = collector.root(nearhit__verdict="miss"), collector.root(nearhit__verdict="coalesced")
    assert follower.links == ((leader.trace_id, leader.span_id),)
    assert len(collector.children(leader, "client")) == 1 and not collector.children(follower, "client")


async def test_what_goes_on_behind_a_request_is_part_of_its_trace(
    light: Upstream, large: Upstream, collector: Collector, tmp_path: Path
) -> None:
    backends = {name: {"adapter": "openai", "url": each.url} for name, each in (("main", light), ("other", large))}
    policy = BOTH_CACHES.replace("{backend: main}", "{backend: main, shadow: {backend: other, share: 100%}}")
    async with traced(tmp_path, collector, backends, policy) as served:
        assert (await served.chat(SECRET)).status == 200
        await until(lambda: counted(served, "shadow"))
    root = collector.root(nearhit__verdict="miss")
    calls = {span.attributes.get("nearhit.purpose"): span for span in collector.children(root, "client")}
    assert set(calls) == {None, "shadow"}
    assert calls["shadow"].attributes["gen_ai.usage.output_tokens"] == 5
    assert large.chats[0].headers["traceparent"] == f"00-{root.trace_id}-{calls['shadow'].span_id}-01"


async def test_a_job_is_part_of_the_trace_in_which_it_was_asked_for(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async with traced(tmp_path, collector, main(upstream)) as served:
        job = await submit(served, SECRET, headers=PARENT)
        assert (await over(served, job))["status"] == "completed"
    submitted = next(span for span in collector.spans if span.parent_id == SPAN)
    assert submitted.attributes["nearhit.reason"] == "job"
    (run,) = (span for span in collector.spans if span.kind == "consumer")
    assert (run.trace_id, run.parent_id) == (TRACE, submitted.span_id)
    (call,) = collector.children(run, "client")
    assert upstream.chats[0].headers["traceparent"] == f"00-{TRACE}-{call.span_id}-01"
    assert not any(b"zyxwvut" in body for body in collector.bodies)


class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A Triton that keeps what calls carry."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, str]] = []

    async def ModelInfer(self, message: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.metadata.append(dict(context.invocation_metadata()))
        output = pb.ModelInferResponse.InferOutputTensor(name="OUT", datatype="INT32", shape=[1])
        return pb.ModelInferResponse(model_name="m", outputs=[output], raw_output_contents=[b"\x01\0\0\0"])


async def test_a_trace_goes_through_grpc_on_both_sides(collector: Collector, tmp_path: Path) -> None:
    echo, server = Echo(), grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(echo, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tensor = pb.ModelInferRequest.InferInputTensor(name="IN", datatype="INT32", shape=[1])
    asked = pb.ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[b"\x02\0\0\0"])
    backends = {"main": {"adapter": "triton", "url": f"grpc://127.0.0.1:{port}", "model": "m"}}
    sections = {"server": {"grpc": "127.0.0.1:0"}}
    try:
        async with traced(tmp_path, collector, backends, sections=sections) as served:
            address = "{}:{}".format(*served.gateway.grpc_address)
            async with grpc.aio.insecure_channel(address) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                await stub.ModelInfer(asked, metadata=tuple(PARENT.items()))
    finally:
        await server.stop(None)
    root = collector.root(nearhit__dialect="kserve")
    assert (root.trace_id, root.parent_id) == (TRACE, SPAN)
    (call,) = collector.children(root, "client")
    assert call.attributes["gen_ai.provider.name"] == "triton"
    assert echo.metadata[0]["traceparent"] == f"00-{TRACE}-{call.span_id}-01"
    assert echo.metadata[0]["tracestate"] == PARENT["tracestate"]


async def test_what_is_not_drawn_is_kept_only_where_it_fails_or_is_slow(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async def failing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({}, status=500)

    async with traced(tmp_path, collector, main(upstream), rules={"sample": 0.0, "slow": "off"}) as served:
        assert (await served.chat("one", headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})).status == 200
        assert upstream.chats[0].headers["traceparent"].endswith("-00")
        assert (await served.chat("two", headers=PARENT)).status == 200  # its client has drawn it
        upstream.answer = failing
        assert (await served.chat("three")).status == 500
    assert collector.root(http__response__status_code=200).trace_id == TRACE
    assert collector.root(http__response__status_code=500).failed
    assert len([span for span in collector.spans if span.kind == "server"]) == 2


async def test_a_stream_that_breaks_off_is_an_error_and_kept(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async def breaking(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, SECRET, cut=True)

    upstream.answer = breaking
    async with traced(tmp_path, collector, main(upstream), rules={"sample": 0.0}) as served:
        await served.chat(SECRET, stream=True)
    root = collector.root(http__response__status_code=200)
    assert (root.failed, root.attributes["error.type"]) == (True, "stream_broken")
    (call,) = collector.children(root, "client")
    assert (call.failed, call.attributes["error.type"]) == (True, "stream_broken")
    assert not any(b"zyxwvut" in body for body in collector.bodies)


async def test_a_receiver_that_does_not_answer_holds_nobody_up(
    upstream: Upstream, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the gateway's end: what is held is given up."""
    monkeypatch.setattr(otlp_exporter, "CLOSE_TIMEOUT_S", CLOSE_TIMEOUT_S)
    collector.gate.clear()
    async with traced(tmp_path, collector, main(upstream), rules={"max_queued": 256, "timeout": "1h"}) as served:
        spans = served.gateway.parts.telemetry.spans.values
        async with asyncio.timeout(120):
            while not spans[("queue-full",)]:
                assert (await served.chat(SECRET)).status == 200
    # It has ended, and not after the hour that the receiver may take.
    assert spans[("exported",)] == 0


async def test_spans_that_no_receiver_takes_are_counted(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    collector.statuses = [400] * 100
    async with traced(tmp_path, collector, main(upstream)) as served:
        await served.chat(SECRET)
        spans = served.gateway.parts.telemetry.spans.values
    assert spans[("refused",)] == len(received_in(collector)) > 0
    config = config_of(tmp_path, main(upstream), telemetry={"traces": {"endpoint": "http://127.0.0.1:9"}})
    async with gateway_of(config) as served:
        await served.chat(SECRET)
        spans = served.gateway.parts.telemetry.spans.values
    assert spans[("failed",)] > 0


def received_in(collector: Collector) -> list[Any]:
    collector.taken = collector.bodies
    return collector.spans


async def test_a_receiver_is_shown_the_headers_of_the_environment(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    environ = {"OTLP_HEADERS": "x-tenant=ours,authorization=Bearer%20hidden"}
    rules = {"headers_env": "OTLP_HEADERS", "service_name": "edge"}
    async with traced(tmp_path, collector, main(upstream), rules=rules, environ=environ) as served:
        await served.chat(SECRET)
    assert (collector.headers[0]["x-tenant"], collector.headers[0]["authorization"]) == ("ours", "Bearer hidden")
    assert collector.resource["service.name"] == "edge"


async def test_a_receiver_is_trusted_by_the_authorities_of_the_system(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authorities = tmp_path / "authorities.pem"
    async with collecting(context) as collector:
        async with traced(tmp_path, collector, main(upstream), rules={"timeout": "1s"}) as served:
            await served.chat(SECRET)
        assert not collector.spans
        authority.cert_pem.write_to_path(str(authorities))
        monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
        async with traced(tmp_path, collector, main(upstream)) as served:
            await served.chat(SECRET)
        assert collector.spans


async def test_no_proxy_of_the_environment_is_asked(
    upstream: Upstream, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with traced(tmp_path, collector, main(upstream)) as served:
        await served.chat(SECRET)
    assert collector.spans


async def test_histograms_name_traces_where_prometheus_asks_for_it(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    async with traced(tmp_path, collector, main(upstream)) as served:
        await served.chat(SECRET, headers=PARENT)
        async with aiohttp.ClientSession() as session:
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            async with session.get(served.admin_url + "/metrics", headers=accept) as answer:
                lines = (await answer.text()).splitlines()
            async with session.get(served.admin_url + "/metrics") as answer:
                assert TRACE not in await answer.text()
    named = {line.partition("{")[0] for line in lines if f'# {{trace_id="{TRACE}"}}' in line}
    assert named == {
        "nearhit_request_seconds_bucket", "nearhit_stage_seconds_bucket", "nearhit_backend_ttft_seconds_bucket",
    }  # fmt: skip


async def test_lines_of_the_log_name_the_trace_and_are_sampled_by_verdict(upstream: Upstream, tmp_path: Path) -> None:
    written = io.StringIO()
    async with collecting() as collector:
        telemetry = {**traces(collector), "access_log": {"sample": {"exact": 0.0, "4xx": 0.0}}}
        config = config_of(tmp_path, main(upstream), telemetry=telemetry)
        async with gateway_of(config, access_log=AccessLog(written)) as served:
            for _ in range(3):
                await served.chat(SECRET, headers=PARENT)
            assert (await served.post("/v1/chat/completions", b"{")).status == 400
    (line,) = [json.loads(line) for line in written.getvalue().splitlines()]
    assert {"verdict": "miss", "route": "default", "trace_id": TRACE, "status": 200}.items() <= line.items()
    assert {"reason", "tenant", "timing_ms", "ms", "backend"} <= line.keys()
