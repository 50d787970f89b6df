"""Measures the cost of a latency prediction and of learning from an answer: `python -m bench.prediction`."""

from __future__ import annotations

import random
import time

from gateway.upstream.latency import CallFeatures, LatencyBook

ROUNDS, CALLS = 7, 2000


def main() -> None:
    draw = random.Random(1)
    for stream in (False, True):
        book, now = LatencyBook(), 0.0
        best = {"predict": float("inf"), "both": float("inf")}
        for _ in range(ROUNDS):
            calls = []
            for _ in range(CALLS):
                total, load = draw.lognormvariate(0.0, 0.4), draw.randrange(40)
                asked = CallFeatures(stream, draw.uniform(0, 4000), draw.choice((None, 50, 500, 4000)), f"r{load % 4}")
                calls.append((asked, load, total))
            started = time.perf_counter()
            for asked, load, total in calls:  # as in a gateway: each answer changes what the next one is predicted by
                now += 0.01
                book.predict(asked, load=load, now=now, confidence=0.8)
                book.observe(
                    asked, load=load, ttft_s=total / 5, total_s=total, output_tokens=100 if stream else 0, now=now
                )
            best["both"] = min(best["both"], (time.perf_counter() - started) / CALLS)
            started = time.perf_counter()
            for asked, load, _ in calls:
                book.predict(asked, load=load, now=now, confidence=0.8)
            best["predict"] = min(best["predict"], (time.perf_counter() - started) / CALLS)
        print(
            f"{'a stream' if stream else 'an answer in one piece'}: {1e6 * best['predict']:.0f} us to predict, "
            f"{1e6 * best['both']:.0f} us to predict it and to learn from it"
        )


if __name__ == "__main__":
    main()
