"""Measures the starting point of a route: `python -m training.prior --banking CSV --clinc JSON --model DIR`.

Run it after `training.verifier`. It replays streams of data that may ship through each verifier. For each band of
scores, it writes to verifier.json the share of best neighbours that were wrong, and the number of scores per request.

The replay serves nothing, so every request brings its label, as a miss does. The labels so far shift the scores, as on
a route. Each request has the same weight, in any stream.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

from gateway.cache.features import FloatArray
from gateway.cache.threshold.ledger import BANDS, band_of
from gateway.cache.threshold.route_control import Evidence, LabelledLookup
from gateway.cache.threshold.wrong_hits import pool_adjacent_violators
from gateway.cache.threshold_verifier import ThresholdVerifier
from gateway.cache.verifiers import ABOUT_FILE, WEIGHTS, LearnedVerifier, weights_from
from gateway.ports import Opinion, PriorBands, StoredCandidate, Verifier
from training import wordings
from training.encoder import Encoder
from training.verifier import SEED, is_held_out

NEIGHBOURS = 4  # as gateway.cache.judgement.MAX_CANDIDATES
SAMPLE = 3000  # questions of banking77's training part
NAMES = ("learned", "checks")
FLAT: PriorBands = [(1.0, 0.0)] * BANDS  # until it is measured
# Where few or none were met: so many more, as wrong as this. The pools of `pool_adjacent_violators` carry the rest
# upwards.
SMOOTHING, DOUBT = 0.5, 0.6


@dataclass(frozen=True, slots=True)
class Met:
    """A request's nearest stored questions; `right`: whether they ask the same."""

    question: str
    vector: FloatArray
    candidates: list[StoredCandidate]
    right: list[bool]


def streams(banking: Path, clinc: Path) -> dict[str, list[tuple[str, str]]]:
    """(question, what it asks) in random order: intents, and of held-out wordings their group or themselves."""
    random_ = random.Random(SEED)  # noqa: S311 (a seed makes it reproducible)
    with banking.open(encoding="utf-8", newline="") as file:
        of_banking = [(row["text"].strip(), row["category"]) for row in csv.DictReader(file)]
    of_clinc = [(text, intent) for text, intent in json.loads(clinc.read_text(encoding="utf-8"))["val"]]
    held = [group for group in wordings.groups() if is_held_out(group.name)]
    natural = [(text, group.name) for group in held for text in group.same]
    natural += [(text, f"{group.name}-{at}") for group in held for at, text in enumerate(group.other)]
    found = {
        "banking77": random_.sample(of_banking, min(SAMPLE, len(of_banking))), "clinc150": of_clinc,
        "wordings": natural,
    }  # fmt: skip
    for requests in found.values():
        random_.shuffle(requests)
    return found


def met(requests: Sequence[tuple[str, str]], encoder: Encoder, floor: float) -> list[Met]:
    """Every request is stored once it was asked."""
    matrix = np.stack([encoder(question) for question, _ in requests])
    found = []
    for at, (question, asks) in enumerate(requests):
        near = matrix[:at] @ matrix[at]
        best = [int(i) for i in np.argsort(-near)[:NEIGHBOURS] if near[i] >= floor]
        candidates = [StoredCandidate(requests[i][0], min(1.0, float(near[i]))) for i in best]
        found.append(Met(question, matrix[at], candidates, [requests[i][1] == asks for i in best]))
    return found


async def judged(verifier: Verifier, requests: Sequence[Met]) -> list[tuple[Opinion, bool] | None]:
    """The best neighbour without a veto, as a route would choose it, and whether it was right."""
    found: list[tuple[Opinion, bool] | None] = []
    for each in requests:
        opinions = verifier.opinions(each.question, each.candidates)
        free = [pair for pair in zip(opinions, each.right, strict=True) if pair[0].veto is None]
        found.append(max(free, key=lambda pair: pair[0].score, default=None))
    return found


def bands(verifier: Verifier, requests: Sequence[Sequence[Met]]) -> PriorBands:
    wrong, labels = np.full(BANDS, SMOOTHING * DOUBT), np.full(BANDS, SMOOTHING)
    rates = np.zeros(BANDS)
    for stream in requests:
        evidence = Evidence()
        for each, best in zip(stream, asyncio.run(judged(verifier, stream)), strict=True):
            if best is None:
                continue
            opinion, right = best
            band = band_of(opinion.score + evidence.shift(each.vector))
            labels[band] += 1
            wrong[band] += not right
            rates[band] += 1
            evidence.add(LabelledLookup(each.vector, opinion.probability, float(right)))
    pools = pool_adjacent_violators(wrong.tolist(), labels.tolist())
    ends = [pool.first for pool in pools[1:]] + [BANDS]
    shares = [pool.rate for pool, end in zip(pools, ends, strict=True) for _ in range(pool.first, end)]
    rates /= sum(map(len, requests))
    return [(round(share, 5), round(float(rate), 6)) for share, rate in zip(shares, rates, strict=True)]


def curve(verifier: Verifier, requests: Sequence[Sequence[Met]]) -> list[float]:
    """How often the best neighbour is right, as a logistic curve over its score; all streams count the same."""
    scores: list[float] = []
    right: list[bool] = []
    weights: list[npt.NDArray[Any]] = []
    for stream in requests:
        found = [each for each in asyncio.run(judged(verifier, stream)) if each is not None]
        scores += [opinion.score for opinion, _ in found]
        right += [is_right for _, is_right in found]
        weights.append(np.full(len(found), 1000.0 / len(found)))
    fitted = LogisticRegression(C=1e6).fit(np.array(scores)[:, None], right, sample_weight=np.concatenate(weights))
    return [round(float(fitted.coef_[0, 0]), 4), round(float(fitted.intercept_[0]), 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("banking", "clinc", "model"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    about = json.loads((given.out / ABOUT_FILE).read_bytes())
    arrays = (given.out / "verifier.npz").read_bytes()
    about |= {"curves": {name: [1.0, 0.0] for name in NAMES}, "priors": dict.fromkeys(NAMES, FLAT)}

    def write() -> None:
        (given.out / ABOUT_FILE).write_text(_compact(json.dumps(about, indent=2)) + "\n")

    def verifiers() -> list[tuple[str, Verifier]]:
        """With what is known of them by now."""
        write()
        learned = LearnedVerifier(weights_from(json.dumps(about).encode(), arrays))
        return [("learned", learned), ("checks", ThresholdVerifier(given.out))]

    encoder = Encoder(given.model)
    requests = {
        name: met(stream, encoder, LearnedVerifier.floor)
        for name, stream in streams(given.banking, given.clinc).items()
    }
    about["prior_requests"] = {name: len(stream) for name, stream in requests.items()}
    about["curves"] = {name: curve(verifier, list(requests.values())) for name, verifier in verifiers()}
    about["priors"] = {name: bands(verifier, list(requests.values())) for name, verifier in verifiers()}
    write()
    print(about["curves"], about["prior_requests"])  # noqa: T201


def _compact(text: str) -> str:
    """A pair of numbers stands on one line."""
    return re.sub(r"\[\s+([-\d.e]+),\s+([-\d.e]+)\s+\]", r"[\1, \2]", text)


if __name__ == "__main__":
    main()
