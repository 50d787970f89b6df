"""Reads the training data of a student: texts with the labels of a large model, from CSV, JSONL or a cache export."""

from __future__ import annotations

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

TEXT_KEYS = ("text", "question", "prompt")
LABEL_KEYS = ("label", "answer", "category", "intent")
MAX_FAULTS = 5  # reported at most; a file of the wrong kind has one fault per line
MAX_LABELS = 1000
MAX_LABEL = 200  # characters; a longer label is a written answer, not a class
GENERATIVE_SHARE = 0.5  # most labels per row that classes have, checked from `GENERATIVE_ROWS` rows on
GENERATIVE_ROWS = 20


class DataInvalid(Exception):
    """The data is invalid. The message has one line per fault: `FILE:LINE: fault, expected value`."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One text with its label. `odds` are the teacher's probabilities of labels, if known; their sum need not be 1."""

    text: str
    label: str
    odds: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Data:
    rows: tuple[TrainingRow, ...]
    skipped: int  # entries of an export without a text question and a text answer

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted({row.label for row in self.rows}))


def read_data(path: Path) -> Data:
    """Read a file by its suffix, `.csv` or `.jsonl`. Raises `DataInvalid`."""
    if path.suffix not in (".csv", ".jsonl"):
        raise DataInvalid(f"{path}: expected a file that ends with .csv or .jsonl")
    rows: list[TrainingRow] = []
    faults: list[str] = []
    skipped = 0
    try:
        for number, value in _csv(path) if path.suffix == ".csv" else _jsonl(path):
            row = value if isinstance(value, str) else parse_row(value)
            if row is None:
                skipped += 1
            elif isinstance(row, str):
                faults.append(f"{path}:{number}: {row}")
            else:
                rows.append(row)
            if len(faults) >= MAX_FAULTS:
                break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataInvalid(f"{path} cannot be read: {error}") from None
    if faults:
        raise DataInvalid("\n".join(faults))
    return Data(tuple(rows), skipped)


def check_classes(data: Data, path: Path) -> None:
    """Raise `DataInvalid` if the labels are not classes."""
    counts = Counter(row.label for row in data.rows)
    if len(counts) < 2:
        raise DataInvalid(f"{path}: {len(data.rows)} rows with {len(counts)} labels, expected two labels or more")
    many = len(data.rows) >= GENERATIVE_ROWS and len(counts) > GENERATIVE_SHARE * len(data.rows)
    if many or len(counts) > MAX_LABELS:
        raise DataInvalid(
            f"{path}: {len(counts)} different labels in {len(data.rows)} rows: these look like written answers, "
            f"expected labels that come again, {MAX_LABELS} at most"
        )


def parse_row(value: Mapping[str, Any]) -> TrainingRow | str | None:
    """Return the row, or its fault as text. None means an entry of an export without text to learn from."""
    if isinstance(turns := value.get("messages"), list):
        value = _from_turns(turns)
    exported = "fingerprint" in value
    text, label = (_first(value, keys) for keys in (TEXT_KEYS, LABEL_KEYS))
    if exported and (text is None or label is None):
        return None
    for what, content, keys in (("text", text, TEXT_KEYS), ("label", label, LABEL_KEYS)):
        if not isinstance(content, str) or not content.strip():
            return f"no {what}, expected a text under one of {', '.join(keys)}"
    assert isinstance(text, str)
    assert isinstance(label, str)
    if len(label.strip()) > MAX_LABEL:
        return f"a label of {len(label.strip())} characters, expected {MAX_LABEL} at most"
    odds = value.get("probabilities")
    if odds is not None and (fault := _odds_fault(odds, label.strip())) is not None:
        return fault
    return TrainingRow(text.strip(), label.strip(), odds)


def split_data(
    data: Data, path: Path, held_out: Path | None, hold_out: float, seed: int
) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Return the rows to train on and the rows held out. The latter come from `held_out`, or from the data itself.

    Raises `DataInvalid`.
    """
    if held_out is None:
        learnt, held_rows = split(data.rows, hold_out, seed)
    else:
        learnt, held_rows = list(data.rows), list(read_data(held_out).rows)
    of = held_out or path
    known = {row.label for row in learnt}
    if strange := sorted({row.label for row in held_rows} - known):
        if held_out is not None:
            raise DataInvalid(f"{of}: the label {strange[0]!r} is in no row of {path}")
        held_rows = [row for row in held_rows if row.label in known]  # labels whose rows are all held out by chance
    if len(held_rows) < 2 or len(known) < 2:
        raise DataInvalid(f"{of}: {len(held_rows)} rows are held out of {len(data.rows)}, expected more rows")
    return learnt, held_rows


def split(rows: Sequence[TrainingRow], share: float, seed: int) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Return the rows to train on and the rows held out. The digest of a text decides, so each run splits alike."""
    sides: tuple[list[TrainingRow], list[TrainingRow]] = ([], [])
    for row in rows:
        sides[hash_fraction(row.text, seed) < share].append(row)
    return sides


def hash_fraction(text: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on the text and the seed alone."""
    digest = hashlib.sha256(f"{seed} {' '.join(text.casefold().split())}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / (1 << 56)


def _csv(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or ()
        for what, keys in (("text", TEXT_KEYS), ("label", LABEL_KEYS)):
            if not set(keys) & set(names):
                yield 1, f"no column of the {what}, expected one of {', '.join(keys)}"
                return
        for record in reader:
            if None in record:
                yield reader.line_num, f"more cells than the {len(names)} columns of line 1"
            else:
                yield reader.line_num, record


def _jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                yield number, f"not JSON ({error.msg}), expected an object a line"
                continue
            yield number, value if isinstance(value, dict) else "expected a JSON object"


def _from_turns(turns: list[Any]) -> Mapping[str, Any]:
    """Return the last user turn and the last assistant turn, as `nearhit cache export --format chat` writes them."""
    contents = {turn.get("role"): turn.get("content") for turn in turns if isinstance(turn, dict)}
    return {"text": contents.get("user"), "label": contents.get("assistant")}


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _odds_fault(odds: Any, label: str) -> str | None:
    if not isinstance(odds, dict) or not odds:
        return "probabilities is no object, expected labels with numbers"
    for each in odds.values():
        if isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each) or each < 0:
            return "a probability is invalid, expected a number of 0 or more"
    return None if label in odds else f"probabilities lack the label {label[:50]!r}"
