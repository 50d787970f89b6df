"""Writes the reference pairs of `nearhit tune`: `python -m training.reference`.

They are hand-written wordings of the groups that no weights were fitted on (`training.wordings`). A tuned verifier that
orders them much worse has learned another meaning of "the same question".
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from gateway.features.tuning.reference import FILE
from training import wordings
from training.pair import Pair
from training.verifier import SEED, is_held_out

EACH = 1, 2  # pairs of a group that ask the same, and that do not


def reference() -> Iterator[Pair]:
    """Yield the pairs, some of each group in a fixed draw."""
    random_ = random.Random(SEED)  # noqa: S311 (a seed makes it reproducible)
    for group in wordings.groups():
        if is_held_out(group.name):
            pairs = list(wordings.pairs([group]))
            for same, count in zip((True, False), EACH, strict=True):
                kind = [pair for pair in pairs if pair.same == same]
                yield from random_.sample(kind, min(count, len(kind)))


def main() -> None:
    rows = ({"a": pair.stored, "b": pair.asked, "y": int(pair.same)} for pair in reference())
    FILE.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
