"""The traps are a yardstick: they stay apart from what the verifier is trained on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from quality.traps import EVERYDAY, FILES, FOLDER, Trap, load

WORDINGS = Path(__file__).parents[2] / "training" / "wordings"
KINDS = {"number", "date", "unit", "entity", "negation", "direction", "scope", "swap", "de", "es", "zh"}


def test_every_kind_has_pairs_that_ask_the_same_and_pairs_that_do_not() -> None:
    counts = Counter((trap.kind, trap.same) for trap in load())
    assert {kind for kind, _ in counts} == KINDS
    assert all(counts[kind, same] >= 25 for kind in KINDS for same in (True, False))


def test_every_line_is_a_pair_of_two_texts() -> None:
    for name in FILES:
        for line in (FOLDER / name).read_text("utf-8").splitlines():
            row = json.loads(line)
            assert set(row) == {"kind", "stored", "asked", "same"}
            assert isinstance(row["same"], bool)
            assert row["stored"].strip() and row["asked"].strip() and row["stored"] != row["asked"]


def test_no_pair_comes_twice() -> None:
    pairs = Counter(frozenset((trap.stored.casefold(), trap.asked.casefold())) for trap in load())
    assert not [sorted(pair) for pair, times in pairs.items() if times > 1]


def test_no_text_is_among_the_wordings_that_train_the_verifier() -> None:
    trained = set()
    for path in WORDINGS.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            group = json.loads(line)
            trained.update(text.casefold().strip(" ?.") for text in group["same"])
            trained.update(each["text"].casefold().strip(" ?.") for each in group["other"])
    texts = {text.casefold().strip(" ?.") for trap in load() for text in (trap.stored, trap.asked)}
    assert not texts & trained


def test_the_everyday_pairs_of_an_evaluation_join_them(tmp_path: Path) -> None:
    assert load(tmp_path) == load(), "a folder without them"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / EVERYDAY).write_text(
        '{"a": "what now", "b": "and now", "y": 1}\n{"a": "x", "b": "z", "y": 0}\n'
    )
    assert load(tmp_path)[-2:] == [Trap("everyday", "what now", "and now", True), Trap("everyday", "x", "z", False)]
