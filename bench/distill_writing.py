"""A small language model that learns written answers, and what it says to questions put otherwise: docs/distill.md.

`python -m bench.distill_writing --texts train.csv --rows test.csv`: texts with labels, of which each label becomes a
sentence, so that there is one answer to each of a closed set of questions, in many wordings. No model wrote them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.distill import drawn
from bench.distill_walk import command
from gateway.tools.distillation.data import Row

SMALL = ("--epochs", 12, "--layers", 2, "--width", 128, "--hidden", 256, "--vocabulary", 2048, "--context", 128)


def written(rows: Sequence[Row], file: Path) -> Path:
    lines = []
    for row in rows:
        about = row.label.replace("_", " ").rstrip("?").lower()
        answer = f"This looks like a question about {about}. Please open the app, choose Help, and then {about}."
        lines.append(json.dumps({"question": row.text, "answer": answer}) + "\n")
    file.write_text("".join(lines))
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=4000, help="of the texts")
    parser.add_argument("--build-env", type=Path, default=Path(".venv-build"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        learnt = written(drawn(given.texts, given.answers), home / "learnt.jsonl")
        held = written(drawn(given.rows, 600), home / "held.jsonl")
        where = ("--repository", home / "models", "--work", home / "work", "--build-env", given.build_env)
        command("distill", learnt, "--held-out", held, "--task", "generate", "--name", "desk", *SMALL, *where)


if __name__ == "__main__":
    main()
