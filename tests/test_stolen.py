"""Which failed tests are run again: those alone whose processors the host took away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.stolen import Ticks, held_back

BEFORE = Ticks(100.0, 5_000, 700)
Again = Callable[..., dict[str, int]]


@pytest.fixture
def again(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Again:
    """Runs a test that passes the `passes_at`-th time, where each reading finds so many more ticks stolen."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take a second each time

    def ran(stolen: int, passes_at: int = 3) -> dict[str, int]:
        pytester.makeconftest(
            f"""
            import time
            from tests.fixtures import stolen
            from tests.fixtures.stolen import Ticks, pytest_configure

            readings = iter(range(10**6))
            stolen.ticks = lambda: Ticks(time.monotonic(), 100, next(readings) * {stolen})
            """
        )
        pytester.makepyfile(f"seen = []\ndef test_it():\n    seen.append(1)\n    assert len(seen) == {passes_at}\n")
        return pytester.runpytest_subprocess("-p", "pytest_rerunfailures").parseoutcomes()

    return ran


@pytest.mark.parametrize(
    ("asked", "stolen", "back"),
    [
        (400, 0, False),  # two seconds on both processors, which were there
        (400, 40, False),
        (400, 41, True),
        (12, 9, False),  # the machine was idle: what little was taken is less than a tenth of a second
        (12, 10, True),
        (0, 0, False),
    ],
)
def test_a_tenth_of_what_was_asked_for_and_a_tenth_of_a_second(asked: int, stolen: int, back: bool) -> None:
    now = Ticks(102.0, BEFORE.asked + asked, BEFORE.stolen + stolen)
    assert held_back(BEFORE, now) is back


def test_a_test_that_fails_on_processors_of_its_own_fails_at_once(again: Again) -> None:
    assert again(stolen=0) == {"failed": 1}


def test_a_test_that_failed_without_them_is_run_again(again: Again) -> None:
    assert again(stolen=60) == {"passed": 1, "rerun": 2}


def test_and_fails_if_it_does_so_each_time(again: Again) -> None:
    assert again(stolen=60, passes_at=99) == {"failed": 1, "rerun": 2}
