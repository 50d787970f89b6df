"""The grammar of training pairs: markers of symmetric slots, directional slots, and the shipped frames."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from training import grammar
from training.pair import Pair

TRAINING = Path(grammar.__file__).parent
FRAMES = sorted((TRAINING / "frames").glob("*.txt"))
DIRECTIONAL = "How do I get from {a:city} to {b:city}? | To {b} from {a}, which way? | route {a} to {b}"
SYMMETRIC = "[a=b] How far apart are {a:city} and {b:city}? | distance {a} {b} | How far is {b} from {a}?"


def _pairs(tmp_path: Path, frames: str, kind: str) -> list[Pair]:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "some.txt").write_text(frames + "\n")
    (tmp_path / "slots.txt").write_text("city: Oslo, Rome, Lima\n")
    return [pair for pair in grammar.pairs(tmp_path, 20, random.Random(1)) if pair.kind == kind]


def _cities(text: str) -> list[str]:
    return [word for word in text.rstrip("?").replace(",", " ").split() if word in ("Oslo", "Rome", "Lima")]


def test_exchange_in_a_symmetric_frame_asks_the_same(tmp_path: Path) -> None:
    found = _pairs(tmp_path, SYMMETRIC, "symmetric")
    assert len(found) == 40
    assert all(pair.same for pair in found)
    assert all(sorted(_cities(pair.asked)) == sorted(_cities(pair.stored)) for pair in found)


def test_exchange_in_an_unmarked_frame_asks_another_question(tmp_path: Path) -> None:
    found = _pairs(tmp_path, DIRECTIONAL, "direction")
    assert len(found) == 40
    assert not any(pair.same for pair in found)


def test_exchange_comes_in_the_same_wording_and_in_another(tmp_path: Path) -> None:
    found = _pairs(tmp_path, DIRECTIONAL, "direction")
    starts = [(pair.asked.split()[0], pair.stored.split()[0]) for pair in found]
    assert sum(asked == stored for asked, stored in starts) == 20
    assert {("How", "To"), ("To", "route"), ("route", "How")} <= set(starts)


def test_marker_leaves_a_third_slot_directional() -> None:
    frame = grammar.frame("[a=b] Via {c:city} between {a:city} and {b:city}?")
    assert set(frame.exchanges()) == {("c", "a", False), ("c", "b", False), ("a", "b", True)}


def test_sibling_with_the_most_like_wording_is_a_negative(tmp_path: Path) -> None:
    siblings = "Is {a:city} open? | {a} open\nIs {a:city} closed? | {a} closed\nWho rules {a:city}? | {a} ruler"
    found = _pairs(tmp_path, siblings, "aspect")
    assert not any(pair.same for pair in found)
    assert any(pair.asked == "Is Oslo open?" and pair.stored == "Is Oslo closed?" for pair in found)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("From {a:city} to {b:city}? | To {b}?", "expected the slots"),
        ("[a=b] Is {a:city} in {b:country}?", "slots of one type"),
        ("[a=c] From {a:city} to {b:city}?", "slots of one type"),
    ],
)
def test_frame_with_slots_that_disagree_is_refused(line: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        grammar.frame(line)


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_shipped_frames_have_two_wordings_and_known_types(path: Path) -> None:
    known = grammar.slots(TRAINING / "slots.txt")
    for frame in (frame for family in grammar.families(path) for frame in family):
        assert len(set(frame.wordings)) == len(frame.wordings) >= 2
        assert set(frame.slots.values()) <= set(known)


def test_shipped_frames_are_told_once() -> None:
    wordings = [frame.wordings[0] for path in FRAMES for family in grammar.families(path) for frame in family]
    typed = [
        (frame.wordings[0], *frame.slots.values())
        for path in FRAMES
        for family in grammar.families(path)
        for frame in family
    ]
    assert len(wordings) > 450
    assert len(set(typed)) == len(typed)


def test_no_pair_is_labelled_both_ways() -> None:
    labels: dict[tuple[str, str], bool] = {}
    for pair in grammar.pairs(TRAINING, 2, random.Random(20)):
        assert labels.setdefault((pair.asked, pair.stored), pair.same) == pair.same, pair
