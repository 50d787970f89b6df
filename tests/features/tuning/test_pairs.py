"""Labelled pairs: their faults, and parts that share no question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.features.tuning.pairs import LabelledPair, PairsInvalid, components, cut, read_pairs


def test_every_fault_is_listed_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        '{"a": "one", "b": "two", "y": 1}\n\n{\n["x"]\n{"a": "one", "y": 1}\n{"a": "one", "b": " ", "y": 1}\n'
        '{"a": "one", "b": "two", "y": 2}\n{"a": "one", "b": "two"}\n'
    )
    with pytest.raises(PairsInvalid) as fault:
        read_pairs(path)
    lines = str(fault.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5", "6", "7", "8"]
    assert lines[0].startswith(f"{path}:3: not JSON (")
    assert lines[2] == f"{path}:5: b: expected the text of a question, got nothing"
    assert lines[4] == f"{path}:7: y: expected 1 (the same question) or 0, got 2"


def test_many_faults_are_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("{}\n" * 50)
    with pytest.raises(PairsInvalid, match=r"\.\.\. and 30 more$"):
        read_pairs(path)


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(PairsInvalid, match="cannot be read"):
        read_pairs(tmp_path / "none.jsonl")


def test_pairs_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"a": f"a{n}", "b": f"b{n}", "y": n % 2}) + "\n" for n in range(4)))
    assert read_pairs(path) == [LabelledPair(f"a{n}", f"b{n}", n % 2 == 1) for n in range(4)]


def test_a_large_file_goes_to_the_training() -> None:
    """Some ten numbers need no more than 3,000 labels."""
    pairs = [LabelledPair(f"a{n}", f"b{n}", n % 2 == 0) for n in range(20_000)]
    parts = cut(pairs)
    assert (len(parts.training), len(parts.fitting), len(parts.held_out)) == (13_000, 3_000, 4_000)


def texts(pairs: object) -> set[str]:
    return {text.casefold() for pair in pairs for text in (pair.stored, pair.asked)}  # type: ignore[attr-defined]


def test_no_question_is_in_two_parts() -> None:
    """Every seventh question comes again later, in other capitals."""
    pairs = [LabelledPair(f"Old {n % 700 if n % 7 == 0 else n}", f"new {n}", n % 2 == 0) for n in range(1000)]
    parts = cut(pairs)
    assert len(parts.training) + len(parts.fitting) + len(parts.held_out) == len(pairs)
    assert not texts(parts.training) & texts(parts.held_out)
    assert not texts(parts.training) & texts(parts.fitting)
    assert not texts(parts.fitting) & texts(parts.held_out)
    assert len(parts.groups) == len(parts.held_out)


def test_the_newest_fifth_is_held_out() -> None:
    pairs = [LabelledPair(f"a {n}", f"b {n}", True) for n in range(100)]
    parts = cut(pairs)
    assert (len(parts.training), len(parts.fitting), len(parts.held_out)) == (60, 20, 20)
    assert list(parts.held_out) == pairs[80:]
    assert list(parts.fitting) == pairs[60:80]


def test_questions_connect_across_pairs() -> None:
    pairs = [("a", "b"), ("c", "d"), ("B ", "e"), ("d", "f")]
    assert components([LabelledPair(one, two, True) for one, two in pairs]) == [0, 1, 0, 1]
