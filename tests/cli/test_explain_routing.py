"""`nearhit explain` of what a `route:` says: nothing that an operator would read wrongly."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.admin.explanation import Explanation
from gateway.cli import explain as command
from gateway.cli.explain import explain
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.several import behind, policy_of
from tests.fixtures.upstream import Upstream
from tests.routing.test_dispatch import EASY, HARD, observe

NAMES = ("small", "mid", "big", "next", "eu", "judge")


def offline(tmp_path: Path, route: str, question: str = HARD, more: str = "") -> Explanation:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "policy.yaml").write_text(policy_of(route, more=more))
    backends = {name: {"adapter": "openai", "url": "http://127.0.0.1:9/v1"} for name in NAMES}
    document = {"version": 1, "embedder": {"adapter": "hash"}, "backends": backends}
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": question}]}))
    return asyncio.run(explain(request, tmp_path / "config.yaml", {}))


def told(explanation: Explanation) -> dict[str, str]:
    lines = (line.split("  ", 1) for line in explanation.as_text().splitlines())
    return {name: value.strip() for name, value in lines}


PAIR = "light: small, large: big"
LIMITS = (
    "    limits:\n"
    "      - {requests: [20/s, 600/min], tokens: 100k/min, large_share: 30%, cost: {per_day: 20 USD, then: light}}\n"
    "      - {per: route, concurrency: 3, cost: {per_month: 9.5 USD}}\n"
)


@pytest.mark.parametrize(
    ("route", "line", "says"),
    [
        (f"{PAIR}, escalate_above: 0.5", "backend", "big (above-threshold, escalates above 0.50)"),
        (f"{PAIR}, large_share: 30%", "backend", "escalates above 0.68 after a start, by large_share: 30%"),
        (f"{PAIR}, quality: 0.95", "backend", "after a start, by quality: 0.95)"),
        (f"{PAIR}, quality: 100%", "backend", "big (above-threshold, escalates all after a start, by quality: 1)"),
        ("tiers: [small, mid, big], escalate_above: [0.3, 0.999]", "backend", "mid (above-threshold, escalates above"),
        ("tiers: [small, mid, big], escalate_above: [0.3, 0.999]", "fallbacks", "big, small"),
        (
            f"{PAIR}, cascade: {{check: logprobs, accept_above: 0.7}}",
            "trial",
            "small (its answer is served if logprobs",
        ),
        (f"{PAIR}, fallback: [eu]", "fallbacks", "small, eu"),
        ("light: small, large: {big: 95%, next: 5%}", "tiers", "light: small; large: big 95%, next 5%"),
        (f"{PAIR}, shadow: {{backend: next, share: 1%}}", "shadow", "next, 1% of the misses"),
        (f"{PAIR}, latency_budget: 800ms", "budget left", "(only a running gateway predicts latencies: --admin)"),
        ("backend: big", "backend", "big (only-backend)"),
    ],
)
def test_each_key_is_told_as_the_policy_has_it(tmp_path: Path, route: str, line: str, says: str) -> None:
    assert says in told(offline(tmp_path, route))[line]


def test_limits_are_told_and_that_they_are_not_asked(tmp_path: Path) -> None:
    limits = told(offline(tmp_path, PAIR, more=LIMITS))["limits"]
    assert limits.startswith(
        "20/s requests, 600/min requests, 100000/min tokens, 30% of the requests to the large backend, then the "
        "lightest, 20 USD a day, then the lightest for each tenant; 3 at once, 9.5 USD a month for the route"
    )
    assert limits.endswith("(their current use is not looked up)")
    assert "limits" not in told(offline_again(tmp_path))


def offline_again(tmp_path: Path) -> Explanation:
    folder = tmp_path / "again"
    folder.mkdir()
    return offline(folder, PAIR)


def test_loading_the_model_spends_nothing_of_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, build = FakeClock(), command.build_embedder

    def slowly(*given: Any) -> Any:
        clock.advance(5.0)
        return build(*given)

    monkeypatch.setattr(command, "SystemClock", lambda: clock)
    monkeypatch.setattr(command, "build_embedder", slowly)
    found = offline(tmp_path, f"{PAIR}, latency_budget: 800ms, late: refuse")
    assert (found.backend, found.reason, found.late) == ("big", "above-threshold", False)
    assert told(found)["budget left"].startswith("total 0.8 s (")


@pytest.mark.parametrize(
    ("late", "says"),
    [
        ("soonest", "call the backend that is predicted to be the least late"),
        ("light", "call the lightest backend"),
        ("stale", "serve a stale exact answer if there is one"),
        ("refuse", "refuse with 504, call no backend"),
    ],
)
async def test_a_running_gateway_says_what_becomes_of_who_cannot_be_in_time(
    tmp_path: Path, late: str, says: str, light: Upstream, large: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = "cache: {exact: {ttl: 1h}, stale_if_error: 1d}"
    policy = policy_of(f"light: light, large: large, latency_budget: 900ms, late: {late}", cache)
    backends = {name: {"adapter": "openai", "url": up.url} for name, up in (("light", light), ("large", large))}
    path = tmp_path / "request.json"
    path.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": EASY}]}))
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        for name in ("light", "large"):
            observe(served, name, 4.0)
        assert await asyncio.to_thread(main, ["explain", str(path), "--admin", served.admin_url]) == 0
        assert f"no backend, by these predictions: {says}" in capsys.readouterr().out
        assert light.calls == large.calls == []


async def test_a_request_that_goes_the_other_way_for_the_share_says_so(tmp_path: Path) -> None:
    """Hard ones alone: the share holds none the less, and some are told to be below a threshold that they are above."""
    policy = policy_of("light: small, large: big, large_share: 10%")
    clock = FakeClock()  # that stands: shares fade by time
    async with behind(tmp_path, policy, "small", "big", clock=clock) as (served, _):
        body = {"model": "m", "messages": [{"role": "user", "content": HARD}]}
        held = 0
        for seed in range(40):
            async with served.session.post(served.admin_url + "/admin/explain", json={**body, "seed": seed}) as answer:
                found = Explanation(**await answer.json())
            complexity, (threshold,) = found.complexity, found.thresholds
            assert complexity is not None
            assert found.to_hold_share == ((found.tier == "large") != (complexity > threshold))
            assert ("goes the other way to keep the share" in found.as_text()) == found.to_hold_share
            held += found.to_hold_share
            assert (await served.chat(HARD, seed=seed)).headers["x-nearhit-backend"] == found.backend
        assert held > 0


async def test_a_cascade_without_the_time_for_it_says_so(tmp_path: Path) -> None:
    route = "light: small, large: big, latency_budget: 15m, cascade: {check: logprobs, accept_above: 0.7}"
    async with behind(tmp_path, policy_of(route), "small", "big") as (served, _):
        observe(served, "small", 600.0)
        observe(served, "big", 600.0)
        body = {"model": "m", "messages": [{"role": "user", "content": HARD}]}
        async with served.session.post(served.admin_url + "/admin/explain", json=body) as answer:
            found = Explanation(**await answer.json())
        assert told(found)["trial"] == "skipped, not enough time left"
        assert found.backend == "big"


async def test_the_explanation_names_the_model_that_scored(tmp_path: Path) -> None:
    async with behind(tmp_path, policy_of("light: small, large: big"), "small", "big") as (served, _):
        body = {"model": "m", "messages": [{"role": "user", "content": HARD}]}
        async with served.session.post(served.admin_url + "/admin/explain", json=body) as answer:
            found = Explanation(**await answer.json())
        assert found.scored_by == "the shipped score; the route has 0 of 200 labels for its own fit"
        assert found.scored_by in found.as_text()
