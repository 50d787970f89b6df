"""Draws the requests of a load test: short and long prompts, with repeats and paraphrases by a Zipf law.

The Locust file imports this module. For k6, guidellm and aiperf it writes the same requests into a file:

    python3 deploy/loadtest/mix.py --requests 2000 > requests.jsonl

Each line is a JSON object with the prompt. The questions are the project's own, 240 of them in several wordings each
(`training/wordings/everyday.jsonl`). `--questions` names another file of the same form, one `{"same": [TEXT, ...]}` a
line. The verifier was trained on these wordings, so measure hit rates with questions of your own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = Path(__file__).parents[2] / "training" / "wordings" / "everyday.jsonl"
LONG = 0.1  # share of the prompts with a document before the question
OTHER_WORDS = 0.5  # share of the requests that do not use the first wording of their question
ZIPF = 1.0  # exponent: the question of rank r comes with a weight of r ** -ZIPF
DOCUMENTS = 3
DOCUMENT_WORDS = 1_000


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text of one request."""

    text: str
    long: bool


class Mix:
    """Draws prompts. Mixes with equal seeds have the same popular questions."""

    def __init__(self, wordings: list[list[str]], seed: int = 0) -> None:
        draw = random.Random(seed)
        self._wordings = draw.sample(wordings, len(wordings))
        self._weights = list(itertools.accumulate((rank + 1) ** -ZIPF for rank in range(len(wordings))))
        self._documents = [_document(wordings, draw) for _ in range(DOCUMENTS)]

    def draw(self, draw: random.Random) -> Prompt:
        """Return the next prompt."""
        first, *others = draw.choices(self._wordings, cum_weights=self._weights)[0]
        question = draw.choice(others) if others and draw.random() < OTHER_WORDS else first
        if draw.random() >= LONG:
            return Prompt(question, long=False)
        return Prompt(f"{draw.choice(self._documents)}\n\nQuestion: {question}", long=True)


def _document(wordings: list[list[str]], draw: random.Random) -> str:
    """Return a text as long as the excerpts that an application puts before a question."""
    lines, words = ["Customers asked these questions last week:"], 0
    while words < DOCUMENT_WORDS:
        text = draw.choice(draw.choice(wordings))
        lines.append(f"- {text}")
        words += len(text.split())
    return "\n".join(lines)


def read_wordings(path: Path = QUESTIONS) -> list[list[str]]:
    """Return the wordings of each question of a file."""
    return [json.loads(line)["same"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> None:
    """Write the requests to standard output."""
    parser = argparse.ArgumentParser(description="Write the requests of a load test, one JSON object a line.")
    parser.add_argument("--requests", type=int, default=2000, help="default: %(default)s")
    parser.add_argument(
        "--key", default="prompt", help="the key of the text; aiperf reads `text`; default: %(default)s"
    )
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="default: the project's own")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    given = parser.parse_args()
    mix, draw = Mix(read_wordings(given.questions)), random.Random(given.seed)
    for _ in range(given.requests):
        sys.stdout.write(json.dumps({given.key: mix.draw(draw).text}) + "\n")


if __name__ == "__main__":
    main()
