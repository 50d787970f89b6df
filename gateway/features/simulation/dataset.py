"""Prepares recorded traffic for the replays: computes all parts that do not depend on the policy, once for both.

Pure, except for FAISS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import faiss
import numpy as np
from numpy.typing import NDArray

from gateway.outcomes import Refusal
from gateway.ports import Opinion
from gateway.steps.traffic_log.format import (
    RecordedCandidate,
    RecordedLabel,
    RecordedRequest,
    SegmentHeading,
    vector_of,
)
from gateway.steps.traffic_log.reader import TrafficLog

Floats = NDArray[np.float32]

Nearest = list[tuple[int, float]]  # (question, similarity), best first

MAX_NEIGHBOURS = 32  # per question; a lookup takes the best four of those that are stored

BLOCK = 1024  # questions per search

# With more questions in one context, FAISS searches an inverted file instead of all vectors, as the gateway does.
EXACT_UP_TO, PROBES = 6_000, 12


def nearest_neighbours(vectors: Floats, contexts: Sequence[int], floor: float) -> list[Nearest]:
    """Return the neighbours of each row in its context, without itself, with a similarity of at least `floor`.

    `vectors` have unit length.
    """
    neighbours: list[Nearest] = [[] for _ in contexts]
    by_context: dict[int, list[int]] = {}
    for row, context in enumerate(contexts):
        by_context.setdefault(context, []).append(row)
    for rows in by_context.values():
        if len(rows) > 1:
            _add_neighbours(vectors[rows], np.array(rows), floor, neighbours)
    return neighbours


def _add_neighbours(vectors: Floats, rows: NDArray[np.int_], floor: float, neighbours: list[Nearest]) -> None:
    index = _index(vectors)
    most = min(MAX_NEIGHBOURS + 1, len(rows))
    for start in range(0, len(rows), BLOCK):
        similarities, places = index.search(vectors[start : start + BLOCK], most)
        np.clip(similarities, 0.0, 1.0, out=similarities)
        near = (similarities >= floor) & (places >= 0) & (places != np.arange(start, start + len(places))[:, None])
        for at, place in zip(*np.nonzero(near), strict=True):
            neighbours[rows[start + at]].append((int(rows[places[at, place]]), float(similarities[at, place])))


def _index(vectors: Floats) -> faiss.Index:
    dimension = vectors.shape[1]
    flat = faiss.IndexFlatIP(dimension)
    if len(vectors) <= EXACT_UP_TO:
        flat.add(vectors)
        return flat
    lists = int(4 * len(vectors) ** 0.5)
    index = faiss.IndexIVFFlat(flat, dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid, index.cp.niter = 1, 32, 6
    index.train(vectors)
    index.add(vectors)
    index.nprobe = PROBES
    return index


Node = int
"""A question: 0 or more if it is in the traffic, negative for a stored answer whose question is not."""


@dataclass(slots=True)
class TrafficDay:
    """Recorded traffic with its questions. `candidates` maps a question to those that a lookup may find, best first.

    A question is its own first candidate.
    """

    requests: Sequence[RecordedRequest]
    labels: Sequence[RecordedLabel]
    heading: SegmentHeading
    questions: list[Node | None]  # one per request; None: no semantic lookup
    candidates: dict[Node, Nearest]
    opinions: dict[tuple[Node, Node], Opinion]
    texts: dict[Node, str]
    nodes: dict[bytes, Node]  # questions of stored answers, by the digest of their fingerprint
    complexities: dict[bytes, float]  # by the digest of the request
    answered: dict[bytes, RecordedRequest] = field(
        default_factory=dict
    )  # requests that a backend answered, by the same digest


def build_day(traffic: TrafficLog, floor: float) -> TrafficDay:
    """Return the prepared traffic. `floor` is the least similarity at which any policy reads a neighbour."""
    places: dict[bytes, Node] = {}
    contexts: list[int] = []
    vectors: list[np.ndarray] = []
    context_of: dict[bytes, int] = {}
    day = TrafficDay(traffic.requests, traffic.labels, traffic.heading, [], {}, {}, {}, {}, {})
    size = 2 * traffic.heading.dimension  # bytes; vectors of another size come from a previous model
    embedded = {
        r.request.question: r.vector for r in traffic.requests if r.readable and r.vector and len(r.vector) == size
    }
    for row in traffic.requests:
        given, node = row.request, None
        if given.question is not None and (vector := embedded.get(given.question)) is not None:
            key = given.context + given.question
            node = places.get(key)
            if node is None:
                node = places[key] = len(vectors)
                vectors.append(vector_of(vector))
                contexts.append(context_of.setdefault(given.context, len(context_of)))
            if row.prompt is not None:
                day.texts[node] = row.prompt
        day.questions.append(node)
        _learn(day, row, node)
    stacked = np.stack(vectors) if vectors else np.zeros((0, max(1, traffic.heading.dimension)), np.float32)
    stacked /= np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-6)
    for node, near in enumerate(nearest_neighbours(stacked, contexts, floor)):
        day.candidates[node] = [(node, 1.0), *near]
    _add_prior_questions(day)
    return day


def _learn(day: TrafficDay, row: RecordedRequest, node: Node | None) -> None:
    if row.complexity is not None:
        day.complexities[row.request.canonical] = row.complexity
    if row.answer is not None:
        day.answered[row.request.canonical] = row
    if row.entry and node is not None:
        day.nodes[row.entry] = node


def _add_prior_questions(day: TrafficDay) -> None:
    """Add the recorded opinions, and the candidates that were stored before the recording began."""
    extra: dict[Node, dict[Node, float]] = defaultdict(dict)
    for row, node in zip(day.requests, day.questions, strict=True):
        if node is None:
            continue
        for each in row.considered:
            other = day.nodes.setdefault(each.entry, -1 - len(day.nodes))
            if other < 0:
                extra[node][other] = each.similarity
            if each.score is not None and each.settled:
                day.opinions[node, other] = parse_opinion(each, each.score)
    for node, others in extra.items():
        day.candidates[node] = sorted([*day.candidates[node], *others.items()], key=lambda pair: -pair[1])


def parse_opinion(each: RecordedCandidate, score: float) -> Opinion:
    veto = None if each.veto is None else Refusal(each.veto)
    return Opinion(score, each.probability, veto, None if each.doubt is None else Refusal(each.doubt))
