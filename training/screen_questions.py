"""Chooses the questions that fit a screen's map to an embedding model: `python -m training.screen_questions`.

`nearhit model fetch` reads them (gateway/model_build/static_vectors.py). They come from the wordings.
"""

from __future__ import annotations

import random
from pathlib import Path

from gateway.model_build.static_vectors import QUESTIONS
from training.wordings import groups

COUNT = 8_000  # measured: 53 % of the misses of a stream are let go, 50 % with 4,000, and 53 % with 16,000
MAX_CHARACTERS = 300  # of a question; nearly all are shorter


def choose() -> list[str]:
    """Return a sample of the wordings, one line each, without repeats."""
    texts = {" ".join(text.split()) for group in groups() for text in (*group.same, *group.other)}
    fitting = sorted(text for text in texts if len(text) <= MAX_CHARACTERS)
    return random.Random(1).sample(fitting, COUNT)  # noqa: S311 - a fixed sample, nothing secret


def main(target: Path = QUESTIONS) -> None:
    target.write_text("\n".join(choose()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
