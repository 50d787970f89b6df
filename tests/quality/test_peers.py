"""The public sets of other caches, and one table for all figures of a promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quality import tables
from quality.labels import Labels, pair_key
from quality.peers import PUBLISHED, Comparison, compare, possible
from quality.streams import stream_of
from quality.world import World

TOOL = """
import os, sys
assert sys.argv[1] == "{ttl: 24h, max_wrong_hits: 1%}" and os.environ["NEARHIT"].endswith("nearhit")
print("GPTCache, imported:", {"right": 6, "wrong": 1, "miss": 3})
print("GPTCache, ordinary:", {"right": 5, "wrong": 0, "miss": 5})
print("MeanCache:", {"first turns": 3, "follow-ups": 2, "other entry": 1, "of each": 4})
"""


def test_a_request_is_possible_if_a_reader_finds_its_answer_before_it() -> None:
    stream = stream_of("own", [("a", "1"), ("b", "1"), ("c", "2"), ("d", "3")])
    world = World(stream, np.full((4, 2), np.sqrt(0.5), np.float32))
    assert possible(world, Labels(stream, {})) == 1, "b, as a has its answer"
    read_again = {pair_key("a", "b"): False, pair_key("b", "d"): True, pair_key("c", "d"): True}
    assert possible(world, Labels(stream, read_again)) == 1, "d, and no longer b"


def test_the_table_has_the_right_hits_of_those_that_are_possible() -> None:
    rows = [Comparison("own", "nearhit", 200, 30, 1, 60), Comparison("own", "other", 4, 1, None, 4, "published")]
    assert tables.comparison(rows).splitlines()[2:] == [
        "| own | nearhit | 200 | 15.0 % | 0.50 % | 30.0 % | 50.0 % | measured |",
        "| own | other | 4 | 25.0 % | - | 100.0 % | 25.0 % | published |",
    ]


def test_the_evaluations_own_tool_gives_the_figures_and_the_published_ones_stand_beside(tmp_path: Path) -> None:
    assert compare(tmp_path, 0.01) == [], "no such tool"
    (tmp_path / "peersets.py").write_text(TOOL)
    rows = compare(tmp_path, 0.01)
    counts = [(row.requests, row.right, row.wrong) for row in rows[:4]]
    assert counts == [(10, 6, 1), (10, 5, 0), (4, 3, None), (4, 2, 1)]
    assert rows[4:] == PUBLISHED


def test_a_tool_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "peersets.py").write_text("raise SystemExit('no gateway starts')")
    with pytest.raises(RuntimeError, match=r"peersets\.py failed: no gateway starts"):
        compare(tmp_path, 0.01)
