"""What `make bench` says of its figures."""

from __future__ import annotations

import pytest

from bench.__main__ import chosen
from bench.load import Load
from bench.report import Measured
from bench.rows import BURST, FIXED, PROXY, RELAYED, ROWS, Mark
from bench.servers import frames


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
    assert mark.met(figure) == says


def test_bare_servers_are_measured_beside_any_row() -> None:
    assert [row.name for row in chosen(["exact hit"])] == [FIXED, PROXY, "exact hit"]
    assert [row.name for row in chosen(["live stream relayed"])] == [
        FIXED,
        PROXY,
        BURST,
        RELAYED,
        "live stream relayed",
    ]


def test_a_row_shows_the_median_ratio_of_its_rounds_and_its_mark() -> None:
    measured = Measured(["this", "before"])
    for floor, ours, theirs in ((100, 60, 120), (50, 60, 60), (100, 70, 140)):
        measured.note(FIXED, "", 1, load(floor))
        measured.note("exact hit", "this", 1, load(ours))
        measured.note("exact hit", "before", 1, load(theirs))
    lines = measured.lines()
    (ours,) = (line for line in lines if line.startswith("exact hit @this"))
    assert ours.split()[6:8] == ["0.70", "0.60-1.20"]
    assert ours.endswith("x fixed 0.70: MISSED")
    assert "exact hit, 1: CPU 0.50 of before's (0.50 to 1.00)" in lines


def test_a_row_with_all_on_is_compared_with_the_row_with_less() -> None:
    measured = Measured(["this"])
    for less, more in ((100, 110), (50, 70), (100, 120)):
        measured.note("exact hit", "this", 1, load(less))
        measured.note("exact hit, all on", "this", 1, load(more))
    (ours,) = (line for line in measured.lines() if line.startswith("exact hit, all on"))
    assert ours.endswith("x the row with less on 1.20: held")
    assert "exact hit" in [row.name for row in chosen(["exact hit, all on"])]


def test_streams_have_as_many_events_as_their_rows_say() -> None:
    assert {row.events for row in ROWS} == {0, len(frames())}
