"""What `nearhit top` makes of two reports, and how it fits on a terminal."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen

from gateway.features.top.command import Fitted, duration, page
from gateway.features.top.figures import TopFigures, figures
from gateway.outcomes import Verdict

BOUNDS = [0.001, 0.01, 0.1]
VERDICTS = [str(verdict) for verdict in Verdict]


def report(now: float, counts: dict[str, int] | None = None, *, started: float = 0.0, **more: Any) -> dict[str, Any]:
    """All answers of a verdict take between 1 and 10 ms."""
    counts = dict.fromkeys(VERDICTS, 0) | (counts or {})
    return {
        "now": now,
        "started": started,
        "listen": "http://127.0.0.1:8080",
        "policy": {"hash": "0a1b2c3d4e5f", "routes": ["default"], "faults": []},
        "verdicts": {name: float(count) for name, count in counts.items()},
        "unrouted": 0.0,
        "latency_counts": {"bounds_s": BOUNDS, "verdicts": {n: [0, c, 0, 0] for n, c in counts.items()}},
        "shed": 0.0,
        "loop_stalls": {"busy": 0.0, "starved": 0.0, "waiting": 0.0},
        "tokens_saved": 0.0,
        "dollars_saved": 0.0,
        "store_breaker": "closed",
        "index_ready": True,
        "migration": {},
        "backends": {},
        "routing": [],
        "quality": [],
        **more,
    }


counts = st.fixed_dictionaries({name: st.integers(0, 10**6) for name in VERDICTS})


@given(counts, counts, st.floats(0.1, 1e4))
def test_rates_are_of_what_came_between_two_reports(first: Any, more: Any, seconds: float) -> None:
    both = {name: first[name] + more[name] for name in VERDICTS}
    found = figures(report(100 + seconds, both), report(100, first))
    assert abs(found.requests_per_s * found.seconds - sum(more.values())) <= 1e-6 * (1 + sum(more.values()))
    assert not found.since_start
    for name, of in found.verdicts.items():
        assert (of.p50_ms is not None) == (more[name] > 0)
        assert of.p50_ms is None or 1.0 <= of.p50_ms <= 10.0


def test_what_was_never_looked_up_says_nothing_of_the_cache() -> None:
    assert figures(report(10, {"exact": 1, "miss": 1, "bypass": 8}), None).hit_rate == 0.5
    assert figures(report(10, {"bypass": 8}), None).hit_rate is None
    refused = report(10, {"exact": 1, "miss": 9}, unrouted=8.0)
    assert figures(refused, None).hit_rate == 0.5
    assert figures(report(20, {"exact": 2, "miss": 19}, unrouted=18.0), refused).hit_rate == 1.0


def test_a_gateway_that_was_started_anew_is_counted_from_its_start() -> None:
    found = figures(report(20, {"miss": 4}, started=10), report(15, {"miss": 400}))
    assert (found.since_start, found.requests_per_s) == (True, 0.4)


def shown(found: TopFigures, rows: int | None = None, *, colour: bool = False, **more: Any) -> list[str]:
    """What a terminal of 80 columns has of a page; `rows` None: all of it."""
    stream = StringIO()
    colours = "standard" if colour else None
    console = Console(file=stream, width=80, height=rows, force_terminal=colour, color_system=colours, **more)
    console.print(page(found) if rows is None else Screen(Fitted(page(found))))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_wrong_hits_are_shown_with_their_interval_and_what_is_unknown_as_such() -> None:
    wrong = {"route": "default", "wrong_hits": {"of_served": {"share": 0.004, "low": 0.001, "high": 0.012}}}
    shares = [{"route": "default", "large_share": 0.25}]
    lines = shown(figures(report(1, quality=[wrong], routing=shares), None))
    assert lines[-1].split() == ["default", "25.0", "%", "0.4", "%", "(0.1", "%", "to", "1.2", "%)"]
    assert shown(figures(report(1), None))[-1].split() == ["default", "-", "-"]


def test_stalls_of_the_stretch_are_shown_with_their_causes() -> None:
    before = report(1, loop_stalls={"busy": 2.0, "starved": 1.0, "waiting": 0.0})
    now = report(2, loop_stalls={"busy": 5.0, "starved": 2.0, "waiting": 0.0})
    (said,) = [line for line in shown(figures(now, before)) if "loop" in line]
    assert said == "the event loop stalled 4 times, for 20 ms or more (busy 3, starved 1)"


@pytest.mark.parametrize("no_color", [False, True])
def test_trouble_stands_out(no_color: bool) -> None:
    backend = {"inflight": 1, "limit": 8, "queued": 3, "breaker": "open", "upstreams": [{"state": "open"}]}
    found = figures(report(1, store_breaker="open", backends={"main": backend}), None)
    lines = shown(found, colour=True, no_color=no_color)
    bad = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines if "\x1b[31m" in line]
    assert no_color == (bad == [])
    if not no_color:
        assert bad[0].startswith("the store fails")
        assert bad[1].split() == ["main", "1", "8", "3", "0/1", "open"]


@given(st.text(min_size=1), st.text())
def test_nothing_that_a_terminal_would_obey_gets_through(name: str, listen: str) -> None:
    backend = {"inflight": 1, "limit": 8, "queued": 3, "breaker": "closed", "upstreams": []}
    found = figures(report(1, backends={name: backend}, listen=listen), None)
    lines = shown(found)
    assert all(cell_len(line) <= 80 and line.isprintable() for line in lines)
    assert len(lines) == len(shown(figures(report(1), None))) + 1


@given(st.integers(0, 50), st.integers(2, 70))
def test_no_more_lines_than_the_terminal_has(count: int, rows: int) -> None:
    policy = {"hash": "0a1b2c3d4e5f", "routes": [f"route-{i}" for i in range(count)], "faults": []}
    found = figures(report(1, policy=policy), None)
    lines, all_lines = shown(found, rows), shown(found)
    assert len(lines) == rows
    assert ("more lines" in lines[-1]) == (len(all_lines) > rows)
    if len(all_lines) > rows:
        assert lines[-1].startswith(f"({len(all_lines) - rows + 1} more")


def test_durations() -> None:
    assert [duration(s) for s in (5, 65, 3900, 90000)] == ["5 s", "1 min 05 s", "1 h 05 min", "1 d 01 h"]
