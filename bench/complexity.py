"""Measures the cost of a complexity score: `python -m bench.complexity`."""

from __future__ import annotations

import time

import numpy as np

from gateway.routing.complexity import build_complexity

EXAM = (
    "What happens to investment spending and to aggregate demand if the central bank raises its rates?\n"
    "A. Both fall\nB. Both rise\nC. Spending falls and demand rises\nD. Spending rises and demand falls\nAnswer:"
)
CALLS = 1000


def varied_text(characters: int) -> str:
    """Return text of which nearly every word is another one: the most to look up."""
    random = np.random.default_rng(0)
    words = ["".join(map(chr, random.integers(97, 123, random.integers(2, 10)))) for _ in range(characters // 5)]
    return " ".join(words)[:characters]


def main() -> None:
    model = build_complexity("all-MiniLM-L6-v2/bench")
    vector = np.full(384, 384**-0.5, np.float32)
    for name, text in (("short", "Who wrote Anna Karenina?"), ("exam", EXAM), ("8 kB", varied_text(8192))):
        took = []
        for _ in range(CALLS):
            started = time.perf_counter()
            model.judge(text, 256, vector)
            took.append(time.perf_counter() - started)
        p50, p99 = np.quantile(took, [0.5, 0.99]) * 1e3
        print(f"{name:<6} {len(text):>5} characters  p50 {p50:.3f} ms  p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()
