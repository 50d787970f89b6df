"""Measures verifiers on the development data: `python -m training.measure --eval DIR --model DIR [--traps FILE ...]`.

The pairs only measure: nothing is fitted to them, and no threshold is chosen on them.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gateway.cache.threshold.ledger import WINDOW
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.cache.threshold_verifier import ThresholdVerifier
from gateway.cache.verifiers import LearnedVerifier, load_weights
from gateway.ports import Acceptance, Opinion, PriorBands, StoredCandidate
from training.encoder import Encoder
from training.verifier import SEED

Judge = Callable[[str, Sequence[StoredCandidate]], list[Opinion]]
PROMISES = (0.01, 0.02, 0.05)
NEIGHBOURS, FLOOR, AUDITED = 4, 0.6, 0.05


def judges() -> dict[str, tuple[Judge, PriorBands]]:
    checks, learned = ThresholdVerifier(), LearnedVerifier(load_weights())

    def cosine(_: str, stored: Sequence[StoredCandidate]) -> list[Opinion]:
        return [Opinion(other.similarity, checks.probability(other.similarity)) for other in stored]

    return {
        "cosine": (cosine, checks.prior),
        "checks": (checks.opinions, checks.prior),
        "learned": (learned.opinions, learned.prior),
    }


class Rates(NamedTuple):
    """Over all requests, but for `threshold`."""

    served: float
    wrong: float
    kept: float  # share of all windows of `WINDOW` requests within the promise
    first: float  # served of the first `WINDOW`
    first_wrong: float
    threshold: float  # the median of the second half

    def __str__(self) -> str:
        return (
            f"served {self.served:.1%} wrong {self.wrong:.2%} windows kept {self.kept:.1%}, of the first {WINDOW} "
            f"served {self.first:.1%} wrong {self.first_wrong:.2%}, threshold {self.threshold:.2f}"
        )


class Stream:
    """Cache on miss, behind the control of a route: every miss tells for free, and a share of the hits is audited."""

    def __init__(self, requests: Sequence[tuple[str, str]], encoder: Encoder) -> None:
        order = np.random.default_rng(SEED).permutation(len(requests))
        self._questions = [requests[i][0] for i in order]
        self._asks = [requests[i][1] for i in order]
        self._vectors = np.stack([encoder(question) for question in self._questions])

    def run(self, judge: Judge, prior: PriorBands, promise: float) -> Rates:
        control, acceptance = RouteControl(prior, "measured"), Acceptance(max_wrong_hits=promise)
        random = np.random.default_rng(SEED)
        count = len(self._questions)
        held, served, wrong = (np.zeros(count, bool) for _ in range(3))
        thresholds = []
        for at in range(count):
            control.advance(at + 1)
            best = self._best(at, held, judge)
            if best is None:
                held[at] = True
                continue
            opinion, stored = best
            score, threshold = control.score(self._vectors[at], opinion.score), control.threshold(acceptance)
            thresholds.append(threshold)
            control.met(score)
            label = Label.RIGHT if self._asks[at] == self._asks[stored] else Label.WRONG
            hit = score >= threshold
            chance = control.audit_chance(score, AUDITED) if hit else 1.0
            served[at], held[at], wrong[at] = hit, not hit, hit and label is Label.WRONG
            if random.random() < chance:
                control.learn(Observation(self._vectors[at], score, opinion.probability, label))
        return _rates(served, wrong, promise, thresholds)

    def _best(self, at: int, held: np.ndarray, judge: Judge) -> tuple[Opinion, int] | None:
        near = np.where(held[:at], self._vectors[:at] @ self._vectors[at], -1.0)
        top = [int(i) for i in np.argsort(-near)[:NEIGHBOURS] if near[i] >= FLOOR]
        found = judge(self._questions[at], [StoredCandidate(self._questions[i], min(1.0, float(near[i]))) for i in top])
        free = [(opinion, i) for opinion, i in zip(found, top, strict=True) if opinion.veto is None]
        return max(free, key=lambda each: each[0].score, default=None)


def _rates(served: np.ndarray, wrong: np.ndarray, promise: float, thresholds: list[float]) -> Rates:
    sums = np.concatenate(([0], np.cumsum(wrong)))
    windows = sums[WINDOW:] - sums[:-WINDOW]
    kept = float((windows <= promise * WINDOW + 1e-9).mean())
    late = float(np.median(thresholds[len(thresholds) // 2 :]))
    return Rates(
        float(served.mean()), float(wrong.mean()), kept, float(served[:WINDOW].mean()),
        float(wrong[:WINDOW].mean()), late,
    )  # fmt: skip


def pairs(tools: Any, metrics: Any, encoder: Encoder, name: str, judge: Judge) -> None:
    def scored(rows: list[dict[str, Any]]) -> np.ndarray:
        return np.array([_score(judge, encoder, r["b"], r["a"]) for r in rows])

    calibration, test = tools.qqp_sample("calib", 2500), tools.qqp_sample("test", 5000)
    labels = [np.array([r["y"] for r in rows]) for rows in (calibration, test)]
    metrics.show(metrics.report(scored(calibration), labels[0], scored(test), labels[1], name))


def _score(judge: Judge, encoder: Encoder, asked: str, stored: str) -> float:
    similarity = min(1.0, float(encoder(asked) @ encoder(stored)))
    (opinion,) = judge(asked, [StoredCandidate(stored, similarity)])
    return opinion.score - (opinion.veto is not None)


def traps(path: Path, encoder: Encoder, judge: Judge, least: float) -> dict[str, str]:
    """By kind: right pairs served, wrong pairs served."""
    counts: dict[str, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        served = _score(judge, encoder, pair["asked"], pair["stored"]) >= least
        swap = pair["kind"] in ("word-swap", "swap")
        for kind in (pair["kind"], "all swaps" if swap else "all others"):
            count = counts.setdefault(kind, [0, 0, 0, 0])
            count[0 if pair["same"] else 2] += served
            count[1 if pair["same"] else 3] += 1
    return {kind: f"{a}/{b} right, {c}/{d} wrong" for kind, (a, b, c, d) in sorted(counts.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--traps", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    sys.path.insert(0, str(given.eval))
    tools, metrics = importlib.import_module("evaldata"), importlib.import_module("cache_metrics")
    encoder = Encoder(given.model)
    stream = Stream(tools.qqp_stream(), encoder)
    for name, (judge, prior) in judges().items():
        pairs(tools, metrics, encoder, name, judge)
        found = [stream.run(judge, prior, promise) for promise in PROMISES]
        for promise, rates in zip(PROMISES, found, strict=True):
            print(f"{name}, promise {promise:.0%}: {rates}", flush=True)
        for path in given.traps:
            print(name, path.name, json.dumps(traps(path, encoder, judge, found[0].threshold)), flush=True)


if __name__ == "__main__":
    main()
