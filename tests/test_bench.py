"""What `make bench` says of its figures."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from bench.__main__ import choose_rows
from bench.certificates import ServerCertificate
from bench.load import Load
from bench.report import Measurements
from bench.rows import BURST, FIXED, PROXY, RELAYED, ROWS, Mark
from bench.servers import frames
from bench.settings import (
    BASE,
    EXACT,
    MISS,
    SEMANTIC,
    TWIN,
    Bench,
    CpuTime,
    Setting,
    Surroundings,
    documents,
    settings,
    write_page,
)
from gateway.config.load import load_config
from gateway.config.policy.load import policy_from_text


def load(cpu_us: float) -> Load:
    return Load(requests=8, cpu_us=cpu_us, store_cpu_us=0, p50_ms=1, p99_ms=2, per_second=500)


@pytest.mark.parametrize(
    ("mark", "figure", "says"),
    [
        (Mark("x_fixed", 0.75, 0.5), 0.5, "reached"),
        (Mark("x_fixed", 0.75, 0.5), 0.75, "held"),
        (Mark("x_fixed", 0.75, 0.5), 0.76, "MISSED"),
        (Mark("p50_ms", 3.0), 2.0, "held"),
        (Mark("per_second", 600), 700, "held"),
        (Mark("per_second", 600), 500, "MISSED"),
    ],
)
def test_a_mark_is_reached_held_or_missed(mark: Mark, figure: float, says: str) -> None:
    assert mark.verdict(figure) == says


def test_bare_servers_are_measured_beside_any_row() -> None:
    assert [row.name for row in choose_rows(["exact hit"])] == [FIXED, PROXY, "exact hit"]
    assert [row.name for row in choose_rows(["live stream relayed"])] == [
        FIXED,
        PROXY,
        BURST,
        RELAYED,
        "live stream relayed",
    ]


def test_a_row_shows_the_median_ratio_of_its_rounds_and_its_mark() -> None:
    measured = Measurements(["this", "before"])
    for floor, ours, theirs in ((100, 60, 120), (50, 60, 60), (100, 70, 140)):
        measured.add(FIXED, "", 1, load(floor))
        measured.add("exact hit", "this", 1, load(ours))
        measured.add("exact hit", "before", 1, load(theirs))
    lines = measured.lines()
    (ours,) = (line for line in lines if line.startswith("exact hit @this"))
    assert ours.split()[6:8] == ["0.70", "0.60-1.20"]
    assert ours.endswith("x fixed 0.70: MISSED")
    assert "exact hit, 1: CPU 0.50 of before's (0.50 to 1.00)" in lines


def test_a_row_with_all_on_is_compared_with_the_row_with_less() -> None:
    measured = Measurements(["this"])
    for less, more in ((100, 110), (50, 70), (100, 120)):
        measured.add("exact hit", "this", 1, load(less))
        measured.add("exact hit, all on", "this", 1, load(more))
    (ours,) = (line for line in measured.lines() if line.startswith("exact hit, all on"))
    assert ours.endswith("x the row with less on 1.20: held")
    assert "exact hit" in [row.name for row in choose_rows(["exact hit, all on"])]


def test_streams_have_as_many_events_as_their_rows_say() -> None:
    assert {row.events for row in ROWS} == {0, len(frames())}


STUB = "http://127.0.0.1:7000"
CERTIFICATE = ServerCertificate({"certificate": "tls.crt", "key": "tls.key"}, ssl.create_default_context())
AROUND = Surroundings(STUB, "http://127.0.0.1:7001", "redis://127.0.0.1:7002/0", CERTIFICATE)
ALL = settings(AROUND)


@pytest.mark.parametrize("setting", [Setting(BASE), *ALL], ids=lambda setting: setting.name)
def test_each_measured_setting_is_a_valid_configuration(setting: Setting, tmp_path: Path) -> None:
    text, policy = documents(setting, STUB)
    (tmp_path / "config.yaml").write_text(text.format(port=7003, admin=7004))
    config = load_config(tmp_path / "config.yaml", {})
    policy_from_text(policy.encode(), "default.yaml", config)


def test_only_the_base_lines_are_alike() -> None:
    changes = [(documents(each, STUB), tuple(each.options), each.headers, str(each.fields)) for each in ALL]
    assert len({str(each) for each in [*changes, (documents(Setting(BASE), STUB), (), "", "{}")]}) == len(ALL) + 1


def test_a_setting_is_compared_with_the_mean_of_both_base_lines(tmp_path: Path) -> None:
    bench = Bench({}, rounds=1)
    bench._record(EXACT, {BASE: CpuTime(90, 90), "x": CpuTime(150, 150), TWIN: CpuTime(110, 110)})
    bench._record(MISS, {BASE: CpuTime(4000, 400), TWIN: CpuTime(4000, 400), "x": CpuTime(5000, 800)})
    bench.skipped["x", SEMANTIC] = "no answer"
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- settings table -->\nold\n<!-- end -->\nafter\n")
    write_page(page, bench.lines(["x"]))
    lines = page.read_text().splitlines()
    assert "| shipped policy | 90 |  |  | 4000 | 400 |" in lines
    assert "| the same again (noise) | 110 (1.22) |  |  | 4000 (1.00) | 400 (1.00) |" in lines
    assert "| x | 150 (1.50) |  |  | 5000 (1.25) | 800 (2.00) |" in lines
    assert "old" not in lines and lines[-1] == "after"
    assert next(iter(bench.noise())) == "noise of the groups: exact hit, process: 1.22 to 1.22"
