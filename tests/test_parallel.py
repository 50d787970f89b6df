"""The order of the files in a run of several processes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest

from tests.fixtures.parallel import LONG, ONE_PROCESS, TRITON, LongestFirst

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", [*LONG, *ONE_PROCESS])
def test_every_named_file_exists(name: str) -> None:
    assert name == TRITON or (ROOT / name).is_file()


def test_long_files_come_before_those_with_more_tests() -> None:
    class Node:
        def send_runtest_some(self, indexes: list[int]) -> None:
            ran.extend(names[at] for at in indexes)

    short, shared, tour = "tests/a.py::test_a", f"{ONE_PROCESS[0]}::test_b", "tests/docs/test_tour.py::test_c"
    names, ran, node = [short, tour, shared], list[str](), Node()
    scheduler = object.__new__(LongestFirst)
    scheduler.workqueue = OrderedDict((scheduler._split_scope(name), {name: False}) for name in names)
    scheduler.assigned_work, scheduler.registered_collections = {}, {node: names}
    for _ in names:
        scheduler._assign_work_unit(node)
    assert ran == [shared, tour, short]
