"""Loads the correct labels: those of the stream, and those of people who read pairs again.

`audited.jsonl` names a pair by the hex SHA-256 of its two questions, sorted, with a line end between them. The licence
of the texts does not allow to ship them. `python -m quality.labels PAIRS.tsv LABELS.tsv ...` writes the file.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from quality.streams import Stream

AUDITED = Path(__file__).parent / "audited.jsonl"


def pair_key(a: str, b: str) -> str:
    return hashlib.sha256("\n".join(sorted((a, b))).encode("utf-8", "surrogatepass")).hexdigest()


def load_audited(path: Path = AUDITED) -> dict[str, bool]:
    """Return whether both questions ask the same, by pair; empty if there is no such file."""
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip())
    return {str(row["pair"]): bool(row["same"]) for row in rows}


class Labels:
    """Raw labels of a stream; an audited pair overrides."""

    def __init__(self, stream: Stream, audited: Mapping[str, bool]) -> None:
        self._stream = stream
        self._audited = audited
        self._known: dict[tuple[int, int], bool] = {}

    def same(self, asked: int, stored: int) -> bool:
        """Return whether the answer made for `stored` answers `asked`."""
        if not self._audited:
            return self._stream.answers[asked] == self._stream.answers[stored]
        known = self._known.get((asked, stored))
        if known is None:
            key = pair_key(self._stream.questions[asked], self._stream.questions[stored])
            raw = self._stream.answers[asked] == self._stream.answers[stored]
            known = self._known[asked, stored] = self._audited.get(key, raw)
        return known


def read_tables(pairs: Sequence[Path], labels: Sequence[Path]) -> dict[str, bool]:
    """Read lines of `ID a b` and `ID same|different|unclear`, separated by tabs. An unclear pair has no label."""
    texts: dict[str, str] = {}
    for path in pairs:
        for line in path.read_text("utf-8").splitlines():
            number, a, b = line.split("\t")
            texts[number] = pair_key(a, b)
    said: dict[str, bool] = {}
    for path in labels:
        for line in path.read_text("utf-8").splitlines():
            number, label = line.split("\t")[:2]
            if label in ("same", "different"):
                said[texts[number]] = label == "same"
    return said


def main(files: Sequence[str]) -> None:
    paths = [Path(name) for name in files]
    pairs = [path for path in paths if path.name.startswith("pairs")]
    said = read_tables(pairs, [path for path in paths if path not in pairs])
    AUDITED.write_text("".join(json.dumps({"pair": k, "same": v}) + "\n" for k, v in sorted(said.items())))
    print(f"{len(said)} pairs, {sum(said.values())} of them the same")


if __name__ == "__main__":
    main(sys.argv[1:])
