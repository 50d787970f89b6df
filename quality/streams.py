"""Loads streams of requests, each with its correct answer.

A stream comes from an evaluation folder, labelled pairs of the user, the intents of banking77 and clinc150, or the
wordings in the repository.
"""

# ruff: noqa: S311 (the draws are to be the same each time)
from __future__ import annotations

import csv
import importlib
import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORDINGS = Path(__file__).parents[1] / "training" / "wordings"
OTHERS = 8000  # questions that a growing cache is filled with
BANKING, CLINC = "banking77_test.csv", "clinc150_full.json"


@dataclass(frozen=True, slots=True)
class Stream:
    """Questions of which each is asked once; `answers` are equal where questions ask the same.

    The first `sum(parts)` are asked, part after part; the others are only ever found in the cache.
    """

    name: str
    questions: tuple[str, ...]
    answers: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def request_count(self) -> int:
        return sum(self.parts)

    @property
    def repeats(self) -> float:
        """The share of all requests that a perfect cache would serve."""
        return 1 - len(set(self.answers[: self.request_count])) / max(1, self.request_count)


def order(stream: Stream, seed: int) -> NDArray[np.int64]:
    """Return the requests. Seed 0 keeps the order of the stream; other seeds shuffle each part."""
    if seed == 0:
        return np.arange(stream.request_count)
    draw, starts = np.random.default_rng(seed), np.cumsum((0, *stream.parts))
    return np.concatenate([draw.permutation(np.arange(a, b)) for a, b in pairwise(starts)])


def stream_of(name: str, rows: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]] = ()) -> Stream:
    """Make a stream of (question, answer) rows. A question that comes again is left out."""
    asked = _first(rows)
    rest = {question: answer for question, answer in _first(others).items() if question not in asked}
    numbers: dict[str, int] = {}
    both = [*asked.items(), *rest.items()]
    answers = tuple(numbers.setdefault(answer, len(numbers)) for _, answer in both)
    return Stream(name, tuple(question for question, _ in both), answers, (len(asked),))


def _first(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for question, answer in rows:
        found.setdefault(question, answer)
    return found


def join(first: Stream, second: Stream) -> Stream:
    """Return all requests of the first stream, then all of the second: a change of domain."""
    rows = [(q, f"0 {a}") for q, a in zip(first.questions, first.answers, strict=True)][: first.request_count]
    known = {question for question, _ in rows}
    added = [
        (q, f"1 {a}")
        for q, a in list(zip(second.questions, second.answers, strict=True))[: second.request_count]
        if q not in known
    ]
    whole = stream_of(f"{first.name}, then {second.name}", [*rows, *added])
    return Stream(whole.name, whole.questions, whole.answers, (first.request_count, len(added)))


def without_others(stream: Stream) -> Stream:
    """Return the stream without the questions that are never asked."""
    return Stream(
        stream.name, stream.questions[: stream.request_count], stream.answers[: stream.request_count], stream.parts
    )


def from_evaluation(folder: Path, limit: int) -> Stream:
    """Return the stream of the folder's own tools, in its order. A growing cache is filled from other splits."""
    sys.path.insert(0, str(folder))
    try:
        tools: Any = importlib.import_module("evaldata")
    finally:
        sys.path.remove(str(folder))
    clusters: dict[str, str] = tools.clusters(tools.qqp())
    pool = sorted({row[side] for split in ("calib", "train") for row in tools.qqp(split) for side in ("a", "b")})
    chosen = random.Random(5).sample(pool, min(OTHERS, len(pool)))
    return stream_of("evaluation", tools.qqp_stream()[:limit], [(question, clusters[question]) for question in chosen])


def from_pairs(path: Path, limit: int) -> Stream:
    """Read pairs, one `{"a": ..., "b": ..., "y": 0 | 1}` a line. Questions that y = 1 links ask the same.

    Raise ValueError with file and line.
    """
    parents: dict[str, str] = {}

    def root(question: str) -> str:
        parents.setdefault(question, question)
        while parents[question] != question:
            parents[question] = parents[parents[question]]
            question = parents[question]
        return question

    for a, b, same in _pairs(path):
        first, second = root(a), root(b)
        if same:
            parents[first] = second
    rows = [(question, root(question)) for question in parents]
    random.Random(3).shuffle(rows)
    return stream_of("own pairs", rows[:limit], rows[limit : limit + OTHERS])


def _pairs(path: Path) -> Iterator[tuple[str, str, bool]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            yield str(said["a"]), str(said["b"]), bool(int(said["y"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'{path.name}:{number}: {error!r}, expected {{"a": text, "b": text, "y": 0 or 1}}'
            ) from None


def from_wordings(limit: int, folder: Path = WORDINGS) -> Stream:
    """Read hand-written wordings and their near-misses. They trained the verifier, so its figures here flatter."""
    groups = [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()
    ]
    random.Random(3).shuffle(groups)
    rows: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for number, group in enumerate(groups):
        into = rows if len(rows) + 8 <= limit * 0.6 else others
        into.extend((text, f"same {number}") for text in group["same"])
        into.extend((each["text"], f"other {number} {at}") for at, each in enumerate(group["other"]))
    random.Random(4).shuffle(rows)
    return stream_of("wordings", rows, others)


def intents(folder: Path) -> list[Stream]:
    """Return the test sets of banking77 and clinc150; all questions of an intent count as the same."""
    draw, found = random.Random(5), []
    if (folder / BANKING).exists():
        with (folder / BANKING).open(encoding="utf-8", newline="") as file:
            found.append(
                _shuffle("banking77", [(r["text"].strip(), r["category"]) for r in csv.DictReader(file)], draw)
            )
    if (folder / CLINC).exists():
        said = json.loads((folder / CLINC).read_text("utf-8"))
        found.append(_shuffle("clinc150", [(text, intent) for text, intent in said["test"]], draw))
    return found


def _shuffle(name: str, rows: Sequence[tuple[str, str]], draw: random.Random) -> Stream:
    mixed = list(rows)
    draw.shuffle(mixed)
    return stream_of(name, mixed)
