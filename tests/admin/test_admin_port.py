"""The admin port: who may use it, and what it measures."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.middleware import is_page
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import connected

TOKEN = "t0ken-für-admins"
PATHS = ["/", "/metrics", "/dashboard", "/admin/stats", "/admin/backends", "/admin/policy", "/none-such"]
# The public contract: metric and labels.
CONTRACT = {
    "nearhit_requests_total": {"route", "dialect", "verdict", "status"},
    "nearhit_request_seconds": {"route", "verdict"},
    "nearhit_stage_seconds": {"stage"},
    "nearhit_overhead_seconds": set(),
    "nearhit_tokens_saved_total": {"route"},
    "nearhit_cost_saved_dollars_total": {"route"},
    "nearhit_wrong_hit_ratio": {"route"},
    "nearhit_wrong_hit_ratio_low": {"route"},
    "nearhit_wrong_hit_ratio_high": {"route"},
    "nearhit_cache_entries": {"kind"},
    "nearhit_cache_bytes": {"kind"},
    "nearhit_backend_requests_total": {"backend", "outcome"},
    "nearhit_backend_seconds": {"backend"},
    "nearhit_backend_ttft_seconds": {"backend"},
    "nearhit_backend_inflight": {"backend"},
    "nearhit_breaker_state": {"backend"},
    "nearhit_shed_total": {"reason"},
    "nearhit_hedges_total": {"outcome"},
    "nearhit_model_reloads_total": {"backend", "outcome"},
    "nearhit_policy_last_reload_successful": set(),
    "nearhit_policy_info": {"hash"},
}


@pytest.fixture
async def guarded(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway whose admin port wants a token."""
    config = config_of(
        tmp_path,
        {"main": {"adapter": "openai", "url": upstream.url}},
        auth={"mode": "passthrough", "admin_token_env": "ADMIN_TOKEN"},
    )
    async with gateway_of(config, environ={"ADMIN_TOKEN": TOKEN}) as served:
        yield served


async def test_every_answer_forbids_to_guess_its_type(guarded: Served) -> None:
    right = "Basic " + base64.b64encode(f"x:{TOKEN}".encode()).decode()
    for credentials in ({}, {"Authorization": right}):
        for path in [*PATHS, "/admin/dashboard.js", "/admin/events", "/admin/keys", "/admin/stats?x"]:
            url = guarded.admin_url + path
            async with guarded.session.get(url, headers=credentials, allow_redirects=False) as response:
                assert response.headers.getall("X-Content-Type-Options") == ["nosniff"], (path, response.status)


async def get(served: Served, path: str, **headers: str) -> Answer:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.session.get(served.admin_url + path, headers=given, allow_redirects=False) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def metrics(served: Served) -> dict[str, Metric]:
    text = (await get(served, "/metrics")).body.decode()
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


@pytest.mark.parametrize("path", PATHS)
async def test_a_foreign_host_is_refused(served: Served, path: str) -> None:
    """A page of another site that has its name resolved to this machine (DNS rebinding) sends that name."""
    port = served.gateway.admin_address[1]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.example:{port}",
        "",
    ):
        answer = await get(served, path, Host=host)
        assert answer.status == 403, host
        assert b"nearhit_" not in answer.body


async def test_its_own_names_are_accepted(served: Served) -> None:
    port = served.gateway.admin_address[1]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert (await get(served, "/metrics", Host=host)).status == 200


def basic(user_and_password: str) -> str:
    return "Basic " + base64.b64encode(user_and_password.encode()).decode()


REFUSED = ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer x{TOKEN}", TOKEN, f"Token {TOKEN}", "Basic", "Basic !"]
REFUSED += [basic("u:wrong"), basic(TOKEN), basic(f"{TOKEN}:"), "Basic " + base64.b64encode(b"\xff\xfe:x").decode()]


@pytest.mark.parametrize("path", [path for path in PATHS if not is_page(path)])
async def test_without_the_token_nothing_is_shown(guarded: Served, path: str) -> None:
    assert (await get(guarded, path)).status == 401
    for authorization in REFUSED:
        answer = await get(guarded, path, Authorization=authorization)
        assert answer.status == 401, authorization
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
        assert b"nearhit_" not in answer.body


async def test_the_dashboards_files_need_no_token_and_hold_no_figures(guarded: Served) -> None:
    """It asks for the token itself, so that the token is in no address and no dialog of the browser."""
    answer = await get(guarded, "/dashboard")
    assert answer.status == 200
    assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
    assert guarded.gateway.policy.hash.encode() not in answer.body
    assert (await get(guarded, "/")).status == 302
    again = await get(guarded, "/dashboard", If_None_Match=answer.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    for path in ("/dashboard/../stats.py", "/dashboard/%2e%2e/stats.py", "/dashboard/none.js"):
        assert (await get(guarded, path)).status in (401, 404)
    async with guarded.session.post(guarded.admin_url + "/dashboard") as response:
        assert response.status == 401


async def test_the_token_opens_as_a_bearer_and_as_a_password(guarded: Served) -> None:
    for authorization in (f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(f"anyone:{TOKEN}"), basic(f":{TOKEN}")):
        assert (await get(guarded, "/admin/stats", Authorization=authorization)).status == 200


async def test_a_token_that_is_no_text_is_wrong_and_no_internal_error(guarded: Served) -> None:
    port = guarded.gateway.admin_address[1]
    async with connected(guarded.admin_url) as wire:
        for value in (b"Bearer \xff\xfe", b"Basic \xff\xfe", b"\xff"):
            head = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: " % port
            await wire.send(head + value + b"\r\n\r\n")
            assert (await wire.message()).status == 401


async def test_the_token_is_in_no_answer_and_no_log(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        answers = [await get(guarded, path, Authorization=f"Bearer {TOKEN}") for path in PATHS]
    assert not [answer for answer in answers if TOKEN.encode() in answer.body]
    assert TOKEN not in caplog.text


async def test_what_the_admin_port_has_not_is_said_in_its_own_shape(served: Served) -> None:
    found = await get(served, "/v1/models")
    assert (found.status, found.headers["Content-Type"]) == (404, "application/json")
    assert found.json == {
        "error": "the admin port has no GET /v1/models: clients of models ask the data port (server.listen)"
    }
    async with served.session.delete(served.admin_url + "/admin/stats") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")
        assert (await response.json())["error"].startswith("the admin port has no DELETE /admin/stats: ")


async def test_what_there_is_is_not_told_to_those_without_the_token(guarded: Served) -> None:
    for path in ("/v1/models", "/admin/nothing", "/admin/stats"):
        assert (await get(guarded, path)).status == 401


async def test_every_metric_of_the_contract_is_there_with_its_labels(served: Served) -> None:
    await served.chat("hi")
    await served.chat("hi")
    given = await metrics(served)
    for name, labels in CONTRACT.items():
        metric = given[name.removesuffix("_total")]
        assert metric.documentation, name
        for sample in metric.samples:
            assert set(sample.labels) - {"le"} == labels, sample


async def test_the_figures_are_those_of_the_traffic(served: Served, upstream: Upstream) -> None:
    for question in ("one", "one", "one", "two"):
        await served.chat(question)
    await served.post("/v1/chat/completions", b"{")
    given = await metrics(served)

    def value(name: str, **labels: str) -> float | None:
        metric = given[name.removesuffix("_total").removesuffix("_count")]
        return next((s.value for s in metric.samples if s.name == name and labels.items() <= s.labels.items()), None)

    assert value("nearhit_requests_total", verdict="exact", status="200", dialect="openai", route="default") == 2
    assert value("nearhit_requests_total", verdict="miss", status="200") == 2
    assert value("nearhit_requests_total", status="400") == 1
    assert value("nearhit_request_seconds_count", verdict="exact") == 2
    assert value("nearhit_backend_requests_total", backend="main", outcome="200") == len(upstream.chats) == 2
    assert value("nearhit_tokens_saved_total", route="default") == 2 * 12
    assert value("nearhit_cache_entries", kind="store") == 2
    assert value("nearhit_backend_inflight", backend="main") == 0
    assert value("nearhit_breaker_state", backend="main") == 0
    assert value("nearhit_policy_last_reload_successful") == 1
    assert value("nearhit_policy_info", hash=served.gateway.policy.hash) == 1
    assert value("nearhit_overhead_seconds_count") == 5


async def test_histograms_count_up_to_infinity(served: Served) -> None:
    await served.chat("hi")
    for metric in (await metrics(served)).values():
        if metric.type == "histogram" and metric.samples:
            buckets = [s for s in metric.samples if s.name.endswith("_bucket")]
            assert buckets[-1].labels["le"] == "+Inf"
            counts = [s.value for s in metric.samples if s.name.endswith("_count")]
            assert counts
            assert max(counts) == max(s.value for s in buckets)
