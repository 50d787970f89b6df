"""The figures of several processes as one, also of those that another version of the gateway has written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from gateway.observability.aggregation import VersionMismatch, merge, pack_metrics
from gateway.observability.telemetry import Telemetry

REQUEST = ("default", "openai", "exact", "200")


def figures(seconds: float = 0.2) -> Telemetry:
    telemetry = Telemetry()
    telemetry.requests.add(*REQUEST)
    telemetry.request_seconds.observe(seconds, "default", "exact")
    telemetry.overhead_seconds.observe(seconds)
    return telemetry


def told_otherwise(change: Callable[[dict[str, Any]], None]) -> bytes:
    said = msgpack.unpackb(pack_metrics(figures()))
    change(said)
    data: bytes = msgpack.packb(said)
    return data


def test_what_is_counted_adds_up() -> None:
    into = Telemetry()
    assert merge(into, figures(), [pack_metrics(figures())], [pack_metrics(figures(0.3))]) == set()
    assert into.requests.values[REQUEST] == 3
    assert into.request_seconds.counts["default", "exact"].total == pytest.approx(0.7)


def fewer_buckets(said: dict[str, Any]) -> None:
    for row in said["nearhit_request_seconds"]:
        row[1].pop()


def another_label(said: dict[str, Any]) -> None:
    for row in said["nearhit_request_seconds"]:
        row[0].append("more")


def no_total(said: dict[str, Any]) -> None:
    for row in said["nearhit_request_seconds"]:
        row.pop()


def a_counter(said: dict[str, Any]) -> None:
    said["nearhit_request_seconds"] = [[["default", "exact"], 5.0]]


def no_rows(said: dict[str, Any]) -> None:
    said["nearhit_request_seconds"] = 7


@pytest.mark.parametrize("change", [fewer_buckets, another_label, no_total, a_counter, no_rows])
def test_a_metric_that_another_version_tells_otherwise_is_left_out_and_no_other_one(
    change: Callable[[dict[str, Any]], None],
) -> None:
    into = Telemetry()
    strange = merge(into, figures(), [told_otherwise(change)], [pack_metrics(figures())])
    assert strange == {"nearhit_request_seconds"}
    assert sum(into.request_seconds.counts["default", "exact"]) == 2, "its own, and of one of this version"
    assert sum(into.overhead_seconds.counts[()]) == 3
    assert into.requests.values[REQUEST] == 3


def test_a_counter_or_gauge_in_another_form_is_left_out_too() -> None:
    def change(said: dict[str, Any]) -> None:
        said["nearhit_requests_total"] = [[["default"], 4.0]]
        said["nearhit_backend_inflight"] = [[["main"], "many"]]

    into = Telemetry()
    assert merge(into, figures(), [told_otherwise(change)], ()) == {
        "nearhit_requests_total",
        "nearhit_backend_inflight",
    }
    assert into.requests.values == {REQUEST: 1}
    assert into.backend_inflight.values == {}


def test_what_only_one_of_two_versions_has_does_not_matter_to_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    def change(said: dict[str, Any]) -> None:
        del said["nearhit_overhead_seconds"]
        said["nearhit_of_tomorrow_total"] = [[[], 1.0]]

    into, strange = Telemetry(), VersionMismatch()
    with caplog.at_level(logging.WARNING, "nearhit"):
        for _ in range(3):
            strange.report(merge(into, figures(), [told_otherwise(change)], ()))
    assert into.requests.values[REQUEST] == 2
    assert sum(into.overhead_seconds.counts[()]) == 1
    said = [record for record in caplog.records if record.name == "nearhit"]
    assert [record.fields for record in said] == [{"metrics": ["nearhit_of_tomorrow_total"]}]  # type: ignore[attr-defined]
