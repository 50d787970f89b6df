"""Measures scorers on the development data: `python -m training.measure --eval DIR --model DIR [--write]`.

The pairs are a measuring stick only. `--write` puts the operating points of the stream into verifier.json.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.cache import lexical
from gateway.cache.features import Text
from gateway.cache.learned import WEIGHTS, LearnedVerifier, weights_from
from training.encoder import Encoded, Encoder

Scorer = Callable[[Encoded, Sequence[Encoded]], list[float]]
BUDGETS = (0.001, 0.005, 0.01, 0.02, 0.05)
NEIGHBOURS = 4
GRID = tuple(round(0.40 + 0.005 * step, 3) for step in range(119))


def similarities(asked: Encoded, stored: Sequence[Encoded]) -> list[float]:
    return [float(asked.vector @ other.vector) for other in stored]


def checked(asked: Encoded, stored: Sequence[Encoded]) -> list[float]:
    """Today's verifier as a score: the similarity, and nothing where a check names a difference."""
    mine = lexical.read(asked.text.text)
    differ = [lexical.difference(mine, lexical.read(other.text.text)) for other in stored]
    return [s - (d is not None) for s, d in zip(similarities(asked, stored), differ, strict=True)]


def scorers(verifier: LearnedVerifier) -> dict[str, Scorer]:
    def words(asked: Encoded, stored: Sequence[Encoded]) -> list[float]:
        bare = [Text(other.text.text) for other in stored]
        return verifier.scores(Text(asked.text.text), bare, similarities(asked, stored))[0]

    def tokens(asked: Encoded, stored: Sequence[Encoded]) -> list[float]:
        return verifier.scores(asked.text, [other.text for other in stored], similarities(asked, stored))[0]

    return {"cosine": similarities, "checked": checked, "words": words, "tokens": tokens}


def pairs(tools: Any, metrics: Any, encoder: Encoder, name: str, scorer: Scorer) -> None:
    def scored(rows: list[dict[str, Any]]) -> np.ndarray:
        return np.array([scorer(encoder(r["b"]), [encoder(r["a"])])[0] for r in rows])

    calibration, test = tools.qqp_sample("calib", 2500), tools.qqp_sample("test", 5000)
    labels = [np.array([r["y"] for r in rows]) for rows in (calibration, test)]
    metrics.show(metrics.report(scored(calibration), labels[0], scored(test), labels[1], name))


class Stream:
    """Cache on miss; of the nearest four in order of similarity the first that scores enough is served."""

    def __init__(self, requests: list[tuple[str, str]], encoder: Encoder) -> None:
        self._encoded = [encoder(question) for question, _ in requests]
        self._cluster = [cluster for _, cluster in requests]
        self._near = np.stack([e.vector for e in self._encoded])
        self._near = self._near @ self._near.T

    def run(self, scorer: Scorer, least: float, known: dict[tuple[int, int], float]) -> tuple[float, float]:
        """(served, wrong), both over all requests."""
        cached: list[int] = []
        held = np.zeros(len(self._encoded), bool)
        served = wrong = 0
        for i in range(len(self._encoded)):
            row = np.where(held[:i], self._near[i, :i], -1.0)
            best = np.argpartition(-row, NEIGHBOURS)[:NEIGHBOURS] if i > NEIGHBOURS else np.arange(i)
            top = [int(j) for j in best[np.argsort(-row[best])] if row[j] >= least]
            if new := [j for j in top if (i, j) not in known]:
                found = scorer(self._encoded[i], [self._encoded[j] for j in new])
                known.update({(i, j): score for j, score in zip(new, found, strict=True)})
            hit = next((j for j in top if known[i, j] >= least), None)
            if hit is None:
                cached.append(i)
                held[i] = True
            else:
                served += 1
                wrong += self._cluster[i] != self._cluster[hit]
        return served / len(self._encoded), wrong / len(self._encoded)

    def curve(self, scorer: Scorer) -> list[tuple[float, float, float]]:
        """(minimum score, served, wrong), strictest first, until the loosest budget is clearly spent."""
        known: dict[tuple[int, int], float] = {}
        out: list[tuple[float, float, float]] = []
        for least in reversed(GRID):
            served, wrong = self.run(scorer, least, known)
            out.append((least, served, wrong))
            if wrong > BUDGETS[-1] * 1.1:
                break
        return out


def operating(curve: list[tuple[float, float, float]]) -> list[tuple[float, float, float, float]]:
    """(budget, minimum score, served, wrong): the loosest score of which no stricter one breaks the budget."""
    points = []
    for budget in BUDGETS:
        within = next((at for at, (_, _, wrong) in enumerate(curve) if wrong > budget), len(curve))
        least, served, wrong = curve[max(0, within - 1)]
        points.append((budget, least, served, wrong))
    return points


def traps(path: Path, encoder: Encoder, scorer: Scorer, least: float) -> dict[str, tuple[str, str]]:
    """By kind: right pairs served, wrong pairs served."""
    counts: dict[str, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        served = scorer(encoder(pair["asked"]), [encoder(pair["stored"])])[0] >= least
        for kind in (pair["kind"], "all" if pair["kind"] != "word-swap" else "swaps"):
            count = counts.setdefault(kind, [0, 0, 0, 0])
            count[0 if pair["same"] else 2] += served
            count[1 if pair["same"] else 3] += 1
    return {kind: (f"{a}/{b}", f"{c}/{d}") for kind, (a, b, c, d) in sorted(counts.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--traps", type=Path, nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=["cosine", "checked", "words", "tokens"])
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    sys.path.insert(0, str(given.eval))
    tools, metrics = importlib.import_module("evaldata"), importlib.import_module("cache_metrics")
    encoder = Encoder(given.model)
    about = json.loads((WEIGHTS / "verifier.json").read_bytes())
    about.setdefault("operating_points", {"words": [[1, 1]], "tokens": [[1, 1]]})
    arrays = (WEIGHTS / "verifier.npz").read_bytes()
    verifier = LearnedVerifier(weights_from(json.dumps(about).encode(), arrays))
    stream = Stream(tools.qqp_stream(), encoder)
    for name, scorer in scorers(verifier).items():
        if name not in given.only:
            continue
        pairs(tools, metrics, encoder, name, scorer)
        points = operating(stream.curve(scorer))
        print(name, [(b, least, f"{s:.2%} served, {w:.2%} wrong") for b, least, s, w in points], flush=True)
        if name in about["operating_points"]:
            about["operating_points"][name] = [[b, least] for b, least, _, _ in points]
            about.setdefault("stream", {})[name] = [
                dict(zip(("budget", "score", "served", "wrong"), p, strict=True)) for p in points
            ]
        for path in given.traps:
            print(path.name, name, traps(path, encoder, scorer, points[2][1]), flush=True)
    if given.write:
        assert hashlib.sha256(arrays).hexdigest() == about["sha256"]
        (WEIGHTS / "verifier.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
