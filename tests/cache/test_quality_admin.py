"""GET /admin/quality says what is known of wrong hits; POST /admin/quality/reset makes a route forget."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.cache.threshold.route_control import Observation
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.load import policy_from_text
from tests.fixtures.entries import judged_of, vector_of
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: plain
    match: {model: plain}
    cache: {semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
  - name: exact
    match: {model: exact}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {semantic: {ttl: 1h, max_wrong_hits: 1%, audit: 2%}}
    route: {backend: main}
"""
JSON = {"Content-Type": "application/json"}


def config(folder: Path, upstream: Upstream) -> Any:
    return config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}})


async def quality(served: Served) -> dict[str, Any]:
    async with served.session.get(served.admin_url + "/admin/quality") as response:
        assert response.status == 200
        return {route["route"]: route for route in (await response.json())["routes"]}


async def reset(served: Served, body: bytes, headers: dict[str, str] | None = None) -> Answer:
    url = served.admin_url + "/admin/quality/reset"
    async with served.session.post(url, data=body, headers=headers or JSON) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


def teach(served: Served, labels: int = 50) -> None:
    control = served.gateway.parts.space.controls.of("default")
    for seed in range(labels):
        control.record_neighbour(0.9)
        control.learn(Observation(vector_of(seed, 384), 0.9, 0.5, Label.RIGHT))


async def test_every_route_with_a_semantic_cache_is_shown(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), POLICY) as served:
        shown = await quality(served)
        assert list(shown) == ["plain", "default"]
        assert (shown["plain"]["threshold"], shown["plain"]["learning"]) == (0.9, False)
        given = shown["default"]
        assert (given["max_wrong_hits"], given["min_similarity"], given["audit"]) == (0.01, None, 0.02)
        assert (given["learning"], given["labels"], given["version"]) == (True, 0, 0)
        assert 0.4 <= given["threshold"] <= 1.4
        assert given["wrong_hits"]["of_all"]["share"] is None, "nothing is known yet"
        assert given["wrong_hits"]["of_served"] == {"share": None, "low": 0.0, "high": 1.0}


async def test_what_audits_tell_is_shown_with_its_interval(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), POLICY.replace(", audit: 2%", "")) as served:
        for _ in range(10):
            await served.chat("What is this?")
        control = served.gateway.parts.space.controls.of("default")
        for label in [Label.RIGHT] * 9 + [Label.WRONG]:
            control.audited(label, 0.5)
        shown = (await quality(served))["default"]
        assert shown["requests"] == pytest.approx(10, abs=0.1)
        assert shown["served"] >= 9
        served_wrong = shown["wrong_hits"]["of_served"]
        assert served_wrong["share"] == pytest.approx(0.1)
        assert served_wrong["low"] < 0.1 < served_wrong["high"]


def report(served: Served, label: Label, count: int) -> None:
    for _ in range(count):
        judged = judged_of(score=0.75, vector=vector_of(1, 384))
        served.gateway.parts.space.labels.report("default", judged, label, "miss")


async def test_a_drift_alarm_is_counted_logged_and_shown(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_of(config(tmp_path, upstream), POLICY) as served:
        alarms = served.gateway.parts.telemetry.drift_alarms.values
        assert alarms == {("default",): 0.0}, "an alert needs the zero, only where labels are learned"
        at_first = (await quality(served))["default"]["threshold"]
        report(served, Label.RIGHT, 300)
        learnt = (await quality(served))["default"]
        assert (learnt["labels"], learnt["labels_since_drift"], learnt["answer_share"]) == (300, None, 0.0)
        assert learnt["threshold"] < at_first
        with caplog.at_level(logging.WARNING, logger="nearhit.quality"):
            for _ in range(60):
                report(served, Label.WRONG, 1)
                if alarms["default",]:
                    break
        assert alarms == {("default",): 1.0}
        (said,) = [record for record in caplog.records if record.name == "nearhit.quality"]
        assert said.getMessage().startswith("drift: ")
        assert said.fields == {"route": "default"}  # type: ignore[attr-defined]
        after = (await quality(served))["default"]
        assert (after["labels"], after["labels_since_drift"]) == (0, 0)
        assert after["threshold"] >= at_first


async def test_a_route_can_be_made_to_forget_for_good(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), POLICY) as served:
        await recovered(served)
        at_first = (await quality(served))["default"]["threshold"]
        teach(served)
        assert (await quality(served))["default"]["labels"] == 50
        answer = await reset(served, b'{"route": "default"}')
        assert (answer.status, answer.json["labels"], answer.json["version"]) == (200, 0, 0)
        assert answer.json["stored"] is True
        assert answer.json["threshold"] == pytest.approx(at_first)
    async with gateway_of(config(tmp_path, upstream), POLICY) as served:
        await recovered(served)
        assert (await quality(served))["default"]["labels"] == 0


async def test_a_reload_turns_learning_off_and_on_and_forgets_nothing(upstream: Upstream, tmp_path: Path) -> None:
    given = config(tmp_path, upstream)
    async with gateway_of(given, POLICY) as served:
        teach(served)
        off = POLICY.replace("audit: 2%", "audit: 2%, learn: off")
        served.gateway.apply(policy_from_text(off, "policy.yaml", given))
        teach(served)
        shown = (await quality(served))["default"]
        assert (shown["learning"], shown["labels"]) == (False, 50)
        served.gateway.apply(policy_from_text(POLICY, "policy.yaml", given))
        teach(served)
        assert (await quality(served))["default"]["labels"] == 100


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"route": "exact"}', 404),
        (b'{"route": "none-such"}', 404),
        (b'{"route": 7}', 400),
        (b'["default"]', 400),
        (b"{", 400),
        (b"", 400),
    ],
)
async def test_a_reset_of_what_is_not_there_is_refused(
    upstream: Upstream, tmp_path: Path, body: bytes, status: int
) -> None:
    async with gateway_of(config(tmp_path, upstream), POLICY) as served:
        teach(served)
        answer = await reset(served, body)
        assert answer.status == status
        assert "error" in answer.json
        assert (await quality(served))["default"]["labels"] == 50


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_page_of_another_site_cannot_reset(upstream: Upstream, tmp_path: Path, content_type: str) -> None:
    """A browser sends these without asking the gateway first; JSON it would have to ask for."""
    async with gateway_of(config(tmp_path, upstream), POLICY) as served:
        teach(served)
        answer = await reset(served, json.dumps({"route": "default"}).encode(), {"Content-Type": content_type})
        assert answer.status == 415
        assert (await quality(served))["default"]["labels"] == 50


async def test_without_the_token_nothing_is_shown_and_nothing_reset(upstream: Upstream, tmp_path: Path) -> None:
    given = config_of(
        tmp_path,
        {"main": {"adapter": "openai", "url": upstream.url}},
        auth={"mode": "passthrough", "admin_token_env": "ADMIN_TOKEN"},
    )
    async with gateway_of(given, POLICY, environ={"ADMIN_TOKEN": "t0ken"}) as served:
        teach(served)
        assert (await reset(served, b'{"route": "default"}')).status == 401
        async with served.session.get(served.admin_url + "/admin/quality") as response:
            assert response.status == 401
        allowed = {**JSON, "Authorization": "Bearer t0ken"}
        assert (await reset(served, b'{"route": "default"}', allowed)).status == 200
