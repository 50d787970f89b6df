"""Values are made like dataclasses, and frozen where mypy looks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from mypy import api

from gateway.messages.values import value


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    size: int = 0


@value(frozen=True, slots=True)
class Quick:
    name: str
    size: int = 0


@value(frozen=True, slots=True, eq=False)
class Apart:
    name: str


def test_a_value_is_compared_hashed_copied_and_shown_as_a_frozen_dataclass_is() -> None:
    assert [field.name for field in fields(Quick)] == [field.name for field in fields(Frozen)]
    assert Quick("a") == Quick("a", 0) != Quick("a", 1)
    assert hash(Quick("a", 1)) == hash(Frozen("a", 1))
    assert replace(Quick("a"), size=2) == Quick("a", 2)
    assert repr(Quick("a")) == "Quick(name='a', size=0)"
    assert not hasattr(Quick("a"), "__dict__")


def test_what_is_not_to_be_compared_is_one_of_a_kind() -> None:
    one = Apart("a")
    assert one != Apart("a")
    assert len({one, one, Apart("a")}) == 2


def test_a_value_that_is_not_frozen_is_none() -> None:
    with pytest.raises(TypeError, match="frozen"):
        value(frozen=False)


def test_mypy_refuses_to_assign_to_a_field(tmp_path: Path) -> None:
    source = tmp_path / "assigns.py"
    lines = ["from gateway.messages import Entry, Whole", "", "def change(whole: Whole, entry: Entry) -> None:"]
    source.write_text("\n".join([*lines, "    whole.data = b''", "    entry.expires = 0.0", ""]))
    options = [
        "--no-error-summary",
        "--follow-imports=silent",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    said, trouble, code = api.run([*options, str(source)])
    assert code == 1, (said, trouble)
    assert said.count("read-only") == 2
