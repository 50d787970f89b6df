"""What the doctor makes of facts that no test machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.doctor import Finding, Level, Report
from gateway.cli.doctor.machine import (
    GIB,
    FolderFacts,
    MachineFacts,
    ModelFacts,
    clock,
    data_dir,
    libraries,
    limits,
    model,
)
from gateway.cli.doctor.network import PortFacts, port, running
from gateway.cli.doctor.store import StoreFacts, store_findings
from gateway.config import Config
from gateway.config.units import Address

BACKENDS = {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}
CALM = {"valkey_version": "9.1.2", "role": "master", "aof_enabled": "1", "maxmemory_policy": "volatile-lru"}


def config(**sections: Any) -> Config:
    return Config.model_validate({"version": 1, "backends": BACKENDS, **sections})


OUTSIDE = {"url": "redis://127.0.0.1:1/0"}


def of_store(said: dict[str, str], latency_s: float = 0.001, skew_s: float = 0.0, **sections: Any) -> list[Finding]:
    facts = StoreFacts("redis://h:1", {**CALM, **said}, {"appendfsync": "everysec", "save": ""}, latency_s, skew_s)
    return list(store_findings(facts, config(**{"store": OUTSIDE, **sections})))


def test_a_calm_store_has_nothing_to_do() -> None:
    assert {finding.level for finding in of_store({})} == {Level.OK}


@pytest.mark.parametrize(
    ("said", "level", "words"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, Level.WARNING, "may drop jobs"),
        ({"maxmemory_policy": "noeviction", "maxmemory": "100", "used_memory": "50"}, Level.WARNING, "50% full"),
        ({"maxmemory_policy": "noeviction", "maxmemory": "100", "used_memory": "100"}, Level.FAULT, "is full"),
        ({"role": "slave"}, Level.FAULT, "accepts no writes"),
        ({"aof_last_write_status": "err"}, Level.FAULT, "could not be written"),
        ({"aof_enabled": "0"}, Level.WARNING, "it writes nothing to disk"),
    ],
)
def test_what_is_wrong_with_a_store_is_named(said: dict[str, str], level: Level, words: str) -> None:
    assert any(finding.level is level and words in finding.found for finding in of_store(said))


def test_an_old_redis_is_named() -> None:
    facts = StoreFacts("redis://h:1", {"redis_version": "6.2.1", "aof_enabled": "1"}, {}, 0.001, 0.0)
    assert any("Redis 6.2.1 cannot confirm" in one.found for one in store_findings(facts, config(store=OUTSIDE)))


def test_jobs_that_are_to_be_on_disk_need_a_store_that_writes_through() -> None:
    assert any("jobs.fsync" in one.found for one in of_store({}, jobs={"fsync": "on"}))


@given(st.floats(0.0, 10.0))
def test_a_store_is_too_slow_from_its_timeout_on(latency_s: float) -> None:
    level = of_store({}, latency_s)[0].level
    assert level is (Level.FAULT if latency_s >= 0.25 else Level.WARNING if latency_s >= 0.125 else Level.OK)


@given(st.floats(-1000.0, 1000.0))
def test_clocks_that_differ_are_told_whichever_goes_ahead(skew_s: float) -> None:
    (finding,) = (one for one in of_store({}, skew_s=skew_s) if one.check == "clock")
    assert (finding.level is Level.OK) == (abs(skew_s) < 1.0)


@pytest.mark.parametrize(("free", "level"), [(10 * GIB, Level.OK), (1 * GIB, Level.WARNING), (1000, Level.FAULT)])
def test_a_full_disk_is_told_before_it_is_full(free: int, level: Level) -> None:
    (finding,) = data_dir(FolderFacts(Path("var"), None, free, None), config())
    assert finding.level is level


def test_a_folder_that_cannot_be_written_is_a_fault() -> None:
    (finding,) = data_dir(FolderFacts(Path("var"), "Read-only file system", GIB, None), config())
    assert (finding.level, finding.found) == (Level.FAULT, "var is not writable: Read-only file system")


@pytest.mark.parametrize(("files", "level"), [(65536, Level.OK), (1100, Level.WARNING), (256, Level.FAULT)])
def test_too_few_open_files_for_the_requests_in_flight_are_told(files: int, level: Level) -> None:
    (finding,) = limits(MachineFacts(files, None), config())
    assert finding.level is level


def test_caches_that_memory_cannot_hold_are_told() -> None:
    assert [one.level for one in limits(MachineFacts(65536, GIB), config())] == [Level.OK, Level.WARNING]


def test_a_port_below_1024_without_the_right_to_it_is_a_fault() -> None:
    assert port(PortFacts("server.listen", Address("0.0.0.0", 80), "EACCES")).level is Level.FAULT


def test_a_gateway_that_tells_of_trouble_is_repeated() -> None:
    stats = {"store_breaker": "open", "index_ready": False, "backends": {"main": {"breaker": "open"}}}
    levels = [one.level for one in running({"ready": True}, stats, None)]
    assert levels == [Level.FAULT, Level.WARNING, Level.WARNING, Level.OK]


def test_a_route_whose_answers_are_alike_is_named() -> None:
    quality = [{"route": "fraud", "answer_share": 0.976}, {"route": "chat", "answer_share": 0.02}, {"route": "older"}]
    said, last = running({"ready": True}, {"quality": quality}, None)
    assert (said.level, last.level) == (Level.WARNING, Level.OK)
    assert said.found.startswith("one text is 98% of the answers of the route fraud")


def test_an_event_loop_that_often_stands_still_is_told_with_what_keeps_it() -> None:
    longest = {"ms": 61.5, "cause": "busy", "where": "gateway.cache.scope:of:12"}
    stats = {"started": 0.0, "now": 60.0, "loop_stalls": {"busy": 9, "starved": 2}, "loop": {"longest": longest}}
    said, _ = running({"ready": True}, stats, None)
    assert said.level is Level.WARNING
    assert said.found == (
        "its event loop stalled 11 times, mostly busy, the longest for 61.5 ms in gateway.cache.scope:of:12"
    )
    assert [one.level for one in running({"ready": True}, stats | {"now": 3600.0}, None)] == [Level.OK]


def test_a_key_that_is_many_tenants_is_told_with_the_headers_that_make_them() -> None:
    stats = {"tenants_of_a_key": {"tenants": 25, "headers": ["x-random-token", "openai-project"]}}
    said, _ = running({"ready": True}, stats, None)
    assert said.level is Level.WARNING
    assert said.found == (
        "one key counts as 25 tenants or more, which share no answers: its requests differ in x-random-token, "
        "openai-project"
    )
    assert "auth.credential_headers" in said.todo
    few = {"tenants_of_a_key": {"tenants": 19, "headers": ["x-a-key"]}}
    assert [one.level for one in running({"ready": True}, few, None)] == [Level.OK]


def test_a_model_without_static_vectors_is_told_with_what_makes_them() -> None:
    facts = ModelFacts("embedder", "onnx", "m", Path("/models/m"), "m", no_static="static.npz is missing")
    finding = model(facts)
    assert finding.level is Level.WARNING and "static.npz is missing" in finding.found
    assert finding.todo is not None and "nearhit model fetch" in finding.todo


def test_libraries_are_held_against_the_lock() -> None:
    found = {"aiohttp": "3.14.5", "redis": "8.0.0", "faiss-cpu": None}
    absent, others = libraries((3, 11), found, {"aiohttp": "3.14.5", "redis": "8.1.0"})
    assert (absent.level, others.level) == (Level.FAULT, Level.WARNING)
    assert "redis 8.0.0 (tested: 8.1.0)" in others.found


def test_no_clock_can_be_before_the_program() -> None:
    assert (clock(1.0, 2.0).level, clock(2.0, 1.0).level) == (Level.FAULT, Level.OK)


@given(st.lists(st.sampled_from(Level)))
def test_a_report_is_good_without_a_fault(levels: list[Level]) -> None:
    report = Report(tuple(Finding("check", level, "found", "todo") for level in levels))
    assert report.is_good == (Level.FAULT not in levels)
    count = levels.count(Level.FAULT)
    assert f"{count} {'fault' if count == 1 else 'faults'}" in report.as_text()
