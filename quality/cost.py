"""Measures the cost of a judgement in one thread: the verifier's opinions, the evidence, and the second opinion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from gateway.cache.threshold.route_control import CAPACITY, Evidence, LabelledLookup
from gateway.ports import StoredCandidate, TextEncoder, Verifier

ROUNDS = 200
ASKED = "how do I change the delivery address of an order that has not been shipped yet"
STORED = (
    "how can I change the delivery address of an order that was already shipped last week",
    "where do I change the billing address of an order that has not been paid yet",
    "is it possible to change the address of a parcel that has not left the shop",
    "how do I cancel the delivery of an order that has not been shipped to me yet",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """p50 in microseconds; None: the verifier gives no second opinion."""

    opinions: float
    second_opinion: float | None
    shift: float


def cost(verifier: Verifier, encoder: TextEncoder) -> Cost:
    vectors = [each.vector for each in encoder.encode([ASKED, *STORED])]
    near = [
        StoredCandidate(text, min(1.0, float(vectors[0] @ vector)))
        for text, vector in zip(STORED, vectors[1:], strict=True)
    ]
    loop = asyncio.new_event_loop()
    first = verifier.opinions(ASKED, near)[0]
    closer = loop.run_until_complete(verifier.second_opinion(ASKED, near[0], first))
    opinions = p50(lambda: verifier.opinions(ASKED, near))
    second = p50(lambda: loop.run_until_complete(verifier.second_opinion(ASKED, near[0], first)))
    loop.close()
    evidence, draw = Evidence(), np.random.default_rng(1)
    for _ in range(CAPACITY):
        vector = draw.normal(size=len(vectors[0])).astype(np.float32)
        evidence.add(LabelledLookup(vector / np.linalg.norm(vector), 0.5, 1.0))
    return Cost(opinions, None if closer is None else second, p50(lambda: evidence.shift(vectors[0])))


def p50(call: Callable[[], object]) -> float:
    """Return microseconds, after a tenth as many calls to warm up."""
    times = []
    for _ in range(ROUNDS + ROUNDS // 10):
        started = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - started))
    return median(times[ROUNDS // 10 :])
