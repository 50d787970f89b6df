"""A failed test is reported, whatever is freed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

# Each that is freed has a tree made, and leaves another one to be freed. The list makes a tree that takes a while.
FAILS = f"""
import ast
import gc

left = list(range(2_000))
many = {list(range(300))}


class Freed:
    def __init__(self):
        self.itself = self

    def __del__(self):
        ast.parse("f(x) + 1")
        if left:
            left.pop()
            Freed()


def test_it():
    gc.set_threshold(20, 1, 1)
    Freed()
    assert False
"""


def test_a_failure_is_reported_though_what_is_freed_meanwhile_has_trees_made(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second each time
    pytester.makepyfile(FAILS)
    ran = pytester.runpytest_subprocess("-p", "tests.fixtures.reports")
    assert ran.parseoutcomes() == {"failed": 1}
