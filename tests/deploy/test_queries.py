"""Every query of `deploy/` is put to a real Prometheus that has scraped real gateways: all that it names is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.deploy.test_deploy import NAME, panels, rules
from tests.deploy.traffic import scene
from tests.fixtures.debian import program
from tests.fixtures.prometheus import Prometheus, prometheus

pytestmark = pytest.mark.asyncio(loop_scope="module")
KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
SELECTOR = re.compile(rf"(?:{NAME}|\bup\b)(?:\{{[^}}]*\}})?")
WAIT_S = 60.0
# Series that this traffic does not make, and why.
ABSENT = {
    "nearhit_input_tokens_total": "a backend with `sticky: prefix` or a cached price: tests/upstream has it",
    "nearhit_prefix_picks_total": "a backend with `sticky: prefix`: tests/upstream has it",
    "nearhit_auth_failures_total": "wrong credentials, on a port that wants any: tests/admin/test_roles.py has them",
    "nearhit_audit_errors_total": "a disk or a store that fails under an operator: tests/admin/test_roles.py has it",
    "nearhit_key_lookups_total": "API keys of the store, which tests/admin has",
    "nearhit_model_reloads_total": "a model on Triton whose process dies: tests/features/triton has it",
    "nearhit_second_opinions_total": "a cross-encoder, which the hash embedder lacks: tests/steps has it",
    "nearhit_confirmations_total": "a route with `confirm`, and two API keys: tests/features/trust has them",
    "nearhit_schema_checks_total": "requests with a JSON Schema: tests/routing/test_answers_that_fit.py has them",
    "nearhit_classifier_requests_total": "a route with a classifier: tests/features/classifier has one",
    "nearhit_guard_verdicts_total": "a route with `guard`: tests/features/guard has one",
    "nearhit_tenant_cost_dollars_total": "a route with `spend: {metrics: on}`: tests/features/spend has one",
    "nearhit_tenant_saved_dollars_total": "a route with `spend: {metrics: on}`: tests/features/spend has one",
    "nearhit_tenant_requests_total": "a route with `spend: {metrics: on}`: tests/features/spend has one",
    "nearhit_spend_alerts_total": "a budget that is used up: tests/features/spend has one",
    "nearhit_rollout_changes_total": "a Triton server with versions of a model: tests/features/light has one",
    "nearhit_rollout_audits_total": "a Triton server with versions of a model: tests/features/light has one",
    "nearhit_rollout_cost_dollars_total": "a Triton server with versions of a model: tests/features/light has one",
    "nearhit_rollout_webhooks_total": "a Triton server with versions of a model: tests/features/light has one",
    "nearhit_rollout_share": "a Triton server with versions of a model: tests/features/light has one",
    "nearhit_personal_data_total": "a route with `privacy`: tests/features/privacy/test_privacy.py has one",
    "nearhit_link_hits_total": "a link, which a plain threshold does not follow: tests/cache has it",
    "nearhit_screen_lost_hits_total": "static vectors, which the hash embedder lacks: tests/features/screen has them",
    "nearhit_late_vectors_total": "questions embedded late, which the hash embedder never is: tests/steps has them",
    "nearhit_replication_rebuilds_total": "a log of changes that is cut off, which tests/cache has",
    "nearhit_comparisons_dropped_total": "more misses waiting to be compared than any traffic of a test makes",
    "nearhit_learning_waits_total": "more comparisons than the first second of CPU pays for: tests/cache has them",
    "nearhit_unreadable_records_total": "a record that is damaged in the store: tests/cache has them",
    "nearhit_store_restarts_total": "an embedded store that is killed, which tests/faults/test_store_killed.py has",
}
ABSENT_LABELS = {'reason="screen"': "static vectors, which the hash embedder lacks: tests/features/screen has them"}
FIRED = ("NearhitStoreDown", "NearhitBreakerOpen")


def absent(expression: str) -> bool:
    return any(name in expression for name in (*ABSENT, *ABSENT_LABELS))


def concrete(expression: str) -> str:
    """As Grafana would send it, for all routes; over so long that the traffic is in it however long it took."""
    return expression.replace("$__rate_interval", "10m").replace("$__range", "1h").replace("$route", ".*")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scraped(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """Two rounds of traffic and two of an outage, each scraped by itself, so that what is counted has grown."""
    program("prometheus", "prometheus")  # skips before anything is started
    directory = tmp_path_factory.mktemp("scraped")
    async with scene(directory) as played:
        targets = [served.admin_url.removeprefix("http://") for served in (played.busy, played.small)]
        async with prometheus(directory / "prometheus", targets) as server:
            for number in range(2):
                await played.round(number)
                await server.scraped()
            for step in range(2):
                await (played.still_out(step) if step else played.outage(step))
                await server.scraped()
            yield server


async def empty(server: Prometheus, expressions: Iterable[str]) -> list[str]:
    """Those that have no value, once what is recorded has had the time to come."""
    left = list(dict.fromkeys(expressions))
    async with asyncio.timeout(WAIT_S * 2):
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while left and asyncio.get_running_loop().time() < deadline:
            found = await asyncio.gather(*(server.values(expression) for expression in left))
            left = [expression for expression, values in zip(left, found, strict=True) if not values]
            await asyncio.sleep(0.2 if left else 0)
    return left


async def test_no_panel_is_empty(scraped: Prometheus) -> None:
    shown = {target["expr"]: panel["title"] for panel in panels() for target in panel["targets"]}
    wanted = [concrete(expression) for expression in shown if not absent(expression)]
    assert len(wanted) > 80
    assert await empty(scraped, wanted) == []


async def test_no_recording_rule_is_empty(scraped: Prometheus) -> None:
    recorded = [rule["record"] for rule in rules("recording")]
    assert await empty(scraped, recorded) == []
    assert await empty(scraped, [rule["expr"] for rule in rules("recording")]) == []


async def test_every_series_with_its_labels_that_an_expression_names_is_there(scraped: Prometheus) -> None:
    """An alert that does not fire has no value: that it would have one is seen by what it is made of."""
    named = [rule["expr"] for kind in ("alerts", "recording") for rule in rules(kind)]
    named += [target["expr"] for panel in panels() for target in panel["targets"]]
    selectors = {concrete(found[0]) for text in named for found in SELECTOR.finditer(text) if not absent(found[0])}
    assert await empty(scraped, [f"count({selector})" for selector in selectors]) == []


async def test_what_is_said_to_be_absent_is_known_to_the_gateway(scraped: Prometheus) -> None:
    known = await scraped.get("metadata")
    assert [name for name in ABSENT if name not in known and name.removesuffix("_total") not in known] == []
    assert await empty(scraped, [f"absent({name})" for name in ABSENT]) == [], "then it need not be listed"


async def test_alerts_fire_for_what_has_happened_and_for_nothing_else(scraped: Prometheus) -> None:
    """Here they do not wait: `for` is left out. What has fired may be over."""
    fired = [f'max_over_time(ALERTS{{alertname="{name}",alertstate="firing"}}[10m])' for name in FIRED]
    assert await empty(scraped, fired) == []
    down = 'max_over_time(ALERTS{alertname="NearhitDown"}[10m])'
    missed = 'min_over_time(up{job="nearhit"}[10m]) == 0'  # a machine that stood still for the second a scrape may take
    assert await scraped.values(f"{down} unless on (instance) ({missed})") == []
    for name in ("NearhitPolicyRejected", "NearhitHitRateFell", "NearhitJobsDead", "NearhitShedding"):
        assert await scraped.values(f'max_over_time(ALERTS{{alertname="{name}"}}[10m])') == []
    told = await scraped.get("rules", type="alert")
    assert {rule["health"] for group in told["groups"] for rule in group["rules"]} == {"ok"}


async def test_an_unknown_metric_is_found_out(scraped: Prometheus) -> None:
    assert await scraped.values("sum(rate(nearhit_none_such_total[1m]))") == []
    with pytest.raises(AssertionError, match="parse error"):
        await scraped.values("sum(rate(nearhit_requests_total[1m])")


def scaling() -> list[str]:
    """What prometheus-adapter and KEDA would ask, less the labels that only pods have."""
    adapter = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())["rules"]
    found = [rule[key] for rule in adapter["external"] for key in ("seriesQuery", "metricsQuery")]
    found += [rule["metricsQuery"].replace("<<.GroupBy>>", "instance") for rule in adapter["custom"]]
    for file in (KUBERNETES / "model-servers.yaml", KUBERNETES / "keda" / "keda.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] == "ScaledObject":
                queries = [trigger["metadata"].get("query") for trigger in document["spec"]["triggers"]]
                found += [query for query in queries if query is not None]
    labels = {"external": 'backend="large"', "custom": 'job="nearhit"'}
    return [
        query.replace("<<.LabelMatchers>>", labels["custom" if "__name__" in query else "external"]) for query in found
    ]


async def test_what_is_scaled_by_has_a_value(scraped: Prometheus) -> None:
    assert len(scaling()) == 8
    assert await empty(scraped, scaling()) == []
