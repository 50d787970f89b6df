"""Every policy that came into force is kept, bounded, and survives what happens to disks."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.policy import history as module
from gateway.config.policy.history import (
    BY_FILE,
    MAX_CHARACTERS,
    Author,
    History,
    PolicyChange,
    count_changes,
    unified_diff,
)
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Policy
from tests.config.documents import config, rule, text

ALICE = Author("alice", "api", "why")


def history(folder: Path) -> History:
    ticks = count(1000)
    made = History(folder, lambda: float(next(ticks)))
    made.open()
    return made


def policy(number: int) -> Policy:
    return policy_from_text(text(rule(f"r{number}", "{model: x}"), rule("default")), "default.yaml", config())


def test_a_version_has_time_author_hash_files_and_diff(tmp_path: Path) -> None:
    kept = history(tmp_path)
    kept.record(policy(1), BY_FILE)
    kept.record(policy(2), ALICE)
    assert [(o["version"], o["author"], o["via"]) for o in kept.list_versions(9)] == [
        (2, "alice", "api"),
        (1, "file", "file"),
    ]
    version = kept.find("2")
    assert version is not None
    assert (version.at, version.hash, version.author) == (1001.0, policy(2).hash, ALICE)
    assert "-  - name: r1\n+  - name: r2\n" in version.diff
    assert version.files == {"default.yaml": policy(2).texts[0].content.decode()}
    assert kept.find(policy(1).hash[:6]) == kept.find("1") == kept.previous()
    assert kept.find("3") is kept.find("zzzz") is None


def test_the_history_outlives_a_restart_and_the_same_policy_is_no_new_version(tmp_path: Path) -> None:
    history(tmp_path).record(policy(1), ALICE)
    again = history(tmp_path)
    again.record(policy(1), BY_FILE)
    again.record(policy(2), BY_FILE)
    again.record(policy(1), BY_FILE)
    assert [o["version"] for o in history(tmp_path).list_versions(9)] == [3, 2, 1]


def test_the_oldest_versions_make_room_by_number_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 3)
    kept = history(tmp_path)
    for number in range(5):
        kept.record(policy(number), BY_FILE)
    assert [o["version"] for o in kept.list_versions(9)] == [5, 4, 3]
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    kept.record(policy(9), BY_FILE)
    assert [o["version"] for o in kept.list_versions(9)] == [6]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_version_is_left_out_and_never_written_over(tmp_path: Path) -> None:
    kept = history(tmp_path)
    kept.record(policy(1), BY_FILE)
    kept.record(policy(2), BY_FILE)
    next(tmp_path.glob("000002-*")).write_bytes(b"{")
    again = history(tmp_path)
    assert [o["version"] for o in again.list_versions(9)] == [1]
    again.record(policy(3), BY_FILE)
    assert [o["version"] for o in again.list_versions(9)] == [3, 1]


def test_what_cannot_be_written_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = history(tmp_path / "file" / "history")
    kept.record(policy(1), BY_FILE)
    assert kept.list_versions(9) == []


def test_what_was_announced_before_the_end_keeps_its_author(tmp_path: Path) -> None:
    kept = history(tmp_path)
    kept.record(policy(1), BY_FILE)
    kept.record_pending(PolicyChange(policy(2).hash, ALICE, {}, {}))
    again = history(tmp_path)
    again.record(policy(2), BY_FILE)
    assert again.list_versions(1)[0]["author"] == "alice"
    assert again.pending() is None


FILES = st.dictionaries(st.sampled_from(["a.yaml", "b.yaml", "c.yaml"]), st.sampled_from(["1", "2", "3"]))


@given(FILES, FILES, FILES)
def test_files_are_half_done_only_where_each_is_of_before_or_after(
    before: dict[str, str], after: dict[str, str], found: dict[str, str]
) -> None:
    half = PolicyChange("", BY_FILE, before, after).is_partially_applied(found)
    names = {*before, *after, *found}
    explained = all(found.get(n) in (before.get(n), after.get(n)) for n in names)
    assert half == (explained and found not in (before, after))


def test_a_diff_says_what_came_and_went() -> None:
    found = unified_diff({"a.yaml": "1\n2\n", "gone.yaml": "x\n"}, {"a.yaml": "1\n3", "new.yaml": "y\n"})
    assert found == (
        "--- a/a.yaml\n+++ b/a.yaml\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n\\ No newline at end of file\n"
        "--- a/gone.yaml\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- /dev/null\n+++ b/new.yaml\n@@ -0,0 +1 @@\n+y\n"
    )
    assert count_changes(found) == (2, 2)
    assert unified_diff({"a.yaml": "1"}, {"a.yaml": "1"}) == ""


def test_a_diff_is_bounded() -> None:
    assert "too long to compare" in unified_diff({}, {"a.yaml": "\n" * 6_000})
    assert len(unified_diff({}, {"a.yaml": ("x" * 1_000 + "\n") * 900})) < MAX_CHARACTERS + 200
