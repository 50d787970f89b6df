"""Keep one route's promise: decide which scores are served, which hits are audited, and learn from labels. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.answer_shares import label_weight
from gateway.cache.threshold.client_labels import TOGETHER, ClientLabels, bounded_weights
from gateway.cache.threshold.drift import DriftDetector
from gateway.cache.threshold.ledger import (
    BANDS,
    CENTRES,
    GROWTH,
    ThresholdLedger,
    ThresholdState,
    TrafficCounts,
    band_counts,
    band_of,
)
from gateway.cache.threshold.wrong_hits import Label, WrongHitEstimate, WrongHits
from gateway.cache.threshold.wrong_shares import FloatArray, WrongShares
from gateway.entries import Vector
from gateway.errors import SnapshotInvalid
from gateway.ports import Acceptance, PriorBands

# Labelled lookups near a question move its score up or down.
#
# One threshold for all questions cannot know its surroundings. Somewhere everything sounds alike and means something
# else (solar installers in ten towns), and elsewhere the wording hardly matters. Labels know, and most are free: a miss
# brings a fresh answer, which shows whether the nearest stored one would have been right.
#
# score' = score + REACH * sum(K_i r_i) / (PRIOR + sum(K_i))
# r_i = right_i - probability_i            the label minus the verifier's expectation
# K_i = w_i max(0, (cos(question, question_i) - FLOOR) / (1 - FLOOR)) ** 2
# w_i                                      how much the label says: 1, or less for an equal answer that is frequent
#
# Residuals of other clients that raise a score count within bounds (`gateway.cache.threshold.client_labels`).
#
# This is kernel regression of the residuals (Nadaraya 1964, Watson 1964) with a prior of no residual. On the
# development streams, the share served at an error of 1 % of all requests rose over plain similarity: 13.5 % -> 19 %,
# banking77 19 % -> 29 %, clinc150 37 % -> 43 %. REACH 0.3 to 0.5, PRIOR 0.5 to 1 and FLOOR 0.3 to 0.5 differ by a point
# at most.

REACH, PRIOR, FLOOR = 0.5, 0.5, 0.5

# Prompts of one template all have a cosine above .7, whatever their varying part says. So only the nearest tenth of the
# labels count as near. `FLOOR_LABELS` at `FLOOR` are added to the known ones, so that up to 22 labels count as before.
FAR, FLOOR_LABELS, MOST_FLOOR = 0.9, 200, 0.9

IDENTICAL = 0.9995  # cosine: the same question, after the rounding of a snapshot to float16

CAPACITY = 2000  # labelled lookups per route: 3 MB, and 0.1 ms to search


IntArray = NDArray[np.intp]
FloatArray32 = NDArray[np.float32]

EvidenceRows = tuple[bytes, bytes, bytes, int, bytes]
"""The labelled lookups of a snapshot: see `Evidence.rows`."""

NO_ROWS: EvidenceRows = (b"", b"", b"", 0, b"")


@dataclass(frozen=True, slots=True)
class LabelledLookup:
    """A lookup whose nearest stored answer proved right or wrong."""

    vector: Vector  # of the new question
    probability: float  # from the verifier, that the answer is right
    right: float  # 1 or 0
    weight: float = 1.0  # how much the label says, in (0, 1]
    client: str = TOGETHER  # the one that asked: 16 hex digits, or not known


class Evidence:
    """The last `capacity` labelled lookups of a route."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._vectors: Any = None  # (capacity, d) float32; allocated when the first label gives d
        self._residuals = np.zeros(capacity, np.float32)
        self._weights = np.zeros(capacity, np.float32)
        self._clients = np.zeros(capacity, np.uint64)
        self._groups: tuple[dict[int, int], IntArray] | None = None
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, label: LabelledLookup) -> None:
        if self._vectors is None:
            self._vectors = np.zeros((self._capacity, label.vector.shape[0]), np.float32)
        self._vectors[self._next] = label.vector
        self._residuals[self._next] = label.right - label.probability
        self._weights[self._next] = label.weight
        self._clients[self._next], self._groups = _number(label.client), None
        self._next = (self._next + 1) % self._capacity
        self._count = min(self._count + 1, self._capacity)

    def forget(self, vectors: Vector) -> int:
        """Drop the lookups whose question has one of these vectors, of shape (n, dimension). Return their number."""
        if self._vectors is None or vectors.shape[1] != self._vectors.shape[1]:
            return 0
        order = self._order()
        same = (self._vectors[order] @ vectors.T).max(axis=1) >= IDENTICAL
        dropped = int(same.sum())
        if dropped:
            rest = order[~same]
            for column in (self._vectors, self._residuals, self._weights, self._clients):
                column[: len(rest)] = column[rest]
            self._groups = None
            self._count = len(rest)
            self._next = self._count % self._capacity
        return dropped

    def _order(self) -> IntArray:
        """Return the places of the lookups, oldest first."""
        start = self._next if self._count == self._capacity else 0
        return np.asarray((np.arange(self._count) + start) % self._capacity)

    def shift(self, vector: Vector, client: str = TOGETHER) -> float:
        """Return how far labels near `vector` move a score of this client: in [-REACH, REACH], 0 without labels."""
        count = self._count
        if count == 0:
            return 0.0
        cosines = self._vectors[:count] @ vector
        floor = _floor_among(cosines)
        weights = np.square(np.maximum(cosines - floor, 0.0) / (1 - floor)) * self._weights[:count]
        residuals, number = self._residuals[:count], _number(client)
        if number:
            clients, groups = self._grouped()
            if clients.keys() != {number}:
                weights = np.where(residuals > 0, bounded_weights(weights, groups, clients.get(number)), weights)
        return float(REACH * (weights @ residuals) / (PRIOR + weights.sum()))

    def _grouped(self) -> tuple[dict[int, int], IntArray]:
        """Return the number of the group of each client, and the group of each lookup."""
        if self._groups is None:
            clients, groups = np.unique(self._clients[: self._count], return_inverse=True)
            self._groups = {int(client): group for group, client in enumerate(clients)}, groups
        return self._groups

    def rows(self) -> EvidenceRows:
        """Return vectors (float16), residuals (float32) and clients (uint64), oldest first, the dimension, and the
        weights (float32), for a snapshot."""
        if self._vectors is None:
            return NO_ROWS
        order = self._order()
        vectors, residuals = self._vectors[order].astype("<f2"), self._residuals[order].astype("<f4")
        clients, weights = self._clients[order].astype("<u8"), self._weights[order].astype("<f4")
        dimension = int(vectors.shape[1])
        return vectors.tobytes(), residuals.tobytes(), clients.tobytes(), dimension, weights.tobytes()

    def restore(
        self, vectors: bytes, residuals: bytes, clients: bytes, dimension: int, weights: bytes | None = None
    ) -> None:
        """Load the result of `rows`. Without `weights` every label has the full weight, as in earlier versions. Raise
        ValueError where its parts do not fit together."""
        if dimension == 0:
            return
        vector_rows = np.frombuffer(vectors, "<f2").reshape(-1, dimension).astype(np.float32)
        residual_rows, client_ids = np.frombuffer(residuals, "<f4"), np.frombuffer(clients, "<u8")
        worth = np.ones(len(residual_rows), np.float32) if weights is None else np.frombuffer(weights, "<f4")
        if not len(vector_rows) == len(residual_rows) == len(client_ids) == len(worth):
            raise ValueError(
                f"{len(vector_rows)} vectors with {len(residual_rows)} residuals of {len(client_ids)} clients"
            )
        if not (
            np.isfinite(vector_rows).all() and np.isfinite(residual_rows).all() and ((worth >= 0) & (worth <= 1)).all()
        ):
            raise ValueError("a labelled lookup is no finite number, or its weight is not between 0 and 1")
        count = min(len(residual_rows), self._capacity)
        self._vectors = np.zeros((self._capacity, dimension), np.float32)
        self._vectors[:count] = vector_rows[len(vector_rows) - count :]
        for column, values in ((self._residuals, residual_rows), (self._weights, worth), (self._clients, client_ids)):
            column[:count] = values[len(values) - count :]
        self._groups = None
        self._count = count
        self._next = self._count % self._capacity


def _floor_among(cosines: FloatArray32) -> float:
    """Return the cosine from which a label counts as near: `FAR` of them are further, and it is at least `FLOOR`."""
    count = len(cosines)
    at = int(FAR * (count + FLOOR_LABELS)) - FLOOR_LABELS  # with so many more labels at `FLOOR`
    return FLOOR if at < 0 else max(FLOOR, min(MOST_FLOOR, float(np.partition(cosines, at)[at])))


def _step_of(entries: int) -> int:
    """Return the step of the cached thresholds for this number of entries. 0 entries: not known."""
    return NO_STEP if entries <= 0 else math.ceil(math.log(entries) / math.log(ENTRIES_STEP) - 1e-9)


def _number(client: str) -> int:
    """Return a client as a number; 0: all together. Raise `ValueError` unless it has hex digits."""
    return int(client[:16], 16) if client else 0


VERSION = 5

# Thresholds are cached per number of entries, in steps of this ratio. A step makes 1.1 times as many hits wrong.
ENTRIES_STEP: float = 1.1 ** (1 / GROWTH)
NO_STEP = -1  # the number of entries is not known

NEAR = 0.1  # distance from the threshold at which a label is worth 1/e of one at it

MOST_WRONG_OF_PARTS = 0.01  # share of wrong hits that a question which is part of a long prompt is judged by at most

# Audits that tell little more than that the promise is kept to twice its share: at 1 % and 30 % hits, 60 audits without
# a fault have an upper bound of 1.8 %. They are soon done, and their number does not depend on what they tell.
LEAST_AUDITS, YOUNG_AUDITS = 60, 5.0

REFRESH_EVERY = 10  # lookups and labels between two computations of the threshold, which takes 0.5 ms


@dataclass(frozen=True, slots=True)
class Observation:
    """The known facts about a lookup's best neighbour."""

    vector: Vector  # of the new question
    score: float  # that it was judged by, evidence included
    probability: float  # from the verifier, that the answer is right
    label: Label
    client: str = TOGETHER  # the one that asked: 16 hex digits, or not known
    chance: float = 0.0  # of an equal answer to another question, if answers were compared: `threshold.answer_shares`


# An event for other gateways: its kind, then the fields that `RouteControl.apply_event` reads. msgpack can carry it.
LearningEvent = tuple[Any, ...]


class RouteControl:
    """The learned state of one route.

    `basis` names embedder and verifier; a state learned with others is not used. `report` gets the events for other
    gateways.
    """

    def __init__(
        self,
        prior: PriorBands,
        basis: str,
        *,
        learn: bool = True,
        report: Callable[[LearningEvent], None] = lambda _: None,
    ) -> None:
        self.basis = basis
        self.refresh_every = REFRESH_EVERY
        self._prior = prior
        self._report = report
        self._unpublished = TrafficCounts()
        self.learning = learn
        self._forget()

    def _forget(self) -> None:
        self.version = 0  # counts changes of the learned state
        self._raw_ledger = ThresholdLedger(self._prior)
        self._pending_requests = 0  # requests not yet applied to `_raw_ledger`
        self._evidence = Evidence()
        self._drift = DriftDetector()
        self.labels_since_drift: int | None = None  # None before the first alarm
        self._wrong_hits = WrongHits()
        self._requests = 0
        self._changes_since_refresh = 0
        self._pending = 0  # requests not yet applied to `_wrong_hits`
        self._states: dict[tuple[float, int], ThresholdState] = {}
        self._thresholds: dict[tuple[float, int, str | None], float] = {}
        self._wrong_shares: WrongShares | None = None  # of all cached states
        self._shares = self._ledger.wrong_shares().mean
        self._labels_since_shares = 0
        self._budget: float | None = None  # the promise of the last lookup
        self._threshold_state: ThresholdState | None = None  # of the last computed threshold
        self._weights: list[float] | None = None  # audit weights of that state, computed on demand
        self.current_threshold: float | None = None  # the threshold of the last lookup
        self.entries = 0  # of the scope that was asked last; 0: not known

    def reset(self) -> None:
        """Forget all that was learned. Request counters go on."""
        self._reset()
        self._report(("reset",))

    def _reset(self) -> None:
        requests = self._requests
        self._forget()
        self._requests = requests

    def advance(self, requests: int) -> None:
        """Set the number of the route's requests since the gateway started. A smaller number than before is ignored."""
        new = requests - self._requests
        if new > 0:
            self._requests = requests
            self._pending_requests += new
            self._pending += new
            self._unpublished.requests += new

    @property
    def _ledger(self) -> ThresholdLedger:
        """The ledger, brought up to date on access. A route with a plain threshold never needs it."""
        if self._pending_requests:
            self._raw_ledger.advance(self._pending_requests)
            self._pending_requests = 0
        return self._raw_ledger

    # One lookup

    def shift(self, vector: Vector, client: str = TOGETHER) -> float:
        """Return how far the labels near this question move the verifier's scores for this client."""
        return self._evidence.shift(vector, client) if self.learning else 0.0

    def score(self, vector: Vector, score: float) -> float:
        """Return the verifier's score, moved by the labels near this question."""
        return score + self.shift(vector)

    def threshold(
        self, acceptance: Acceptance, entries: int = 0, client: str = TOGETHER, *, is_part: bool = False
    ) -> float:
        """Return the score that the best neighbour among `entries` must reach, to serve `client`. A `min_similarity` is
        returned as is.

        With `is_part`, the question is the part of a long prompt that asks. However loose the promise, it has to reach
        the threshold of `MOST_WRONG_OF_PARTS`. Such prompts are equal but for it, so its score says less than
        elsewhere.
        """
        if acceptance.min_similarity is not None:
            self.current_threshold = acceptance.min_similarity
            return acceptance.min_similarity
        budget, self.entries = acceptance.max_wrong_hits or 0.0, entries
        self._budget = budget
        if self._changes_since_refresh >= self.refresh_every:
            self._forget_thresholds()
            self._changes_since_refresh = 0
        step, group = _step_of(entries), self._ledger.clients.group(client)
        threshold = self._threshold_of(budget, step, group)
        if is_part and budget > MOST_WRONG_OF_PARTS:
            threshold = max(threshold, self._threshold_of(MOST_WRONG_OF_PARTS, step, group))
        self.current_threshold = threshold
        return threshold

    def _threshold_of(self, budget: float, step: int, group: str | None) -> float:
        """Return the threshold of a promise at a step of entries, for a group of clients."""
        threshold = self._thresholds.get((budget, step, group))
        if threshold is None:
            state = self._state(budget, step)
            threshold = self._ledger.threshold_for(group, state, budget)
            self._thresholds[budget, step, group] = threshold
        return threshold

    def _state(self, budget: float, step: int) -> ThresholdState:
        """Return the state of the ledger for all clients together."""
        state = self._states.get((budget, step))
        if state is None:
            if self._wrong_shares is None:  # 0.5 ms, and the same for all promises and entries
                self._wrong_shares = self._ledger.wrong_shares()
                self._shares, self._labels_since_shares = self._wrong_shares.mean, 0
            entries = 0.0 if step == NO_STEP else ENTRIES_STEP**step
            state = self._states[budget, step] = self._ledger.state_of(self._wrong_shares, budget, entries)
            self._threshold_state, self._weights = state, None
        return state

    def _forget_thresholds(self) -> None:
        self._states.clear()
        self._thresholds.clear()
        self._wrong_shares = None

    def probability(self, score: float) -> float:
        """Return the probability that an answer with this score is right on this route, in [0, 1]."""
        return 1.0 - float(self._shares[band_of(score)])

    def wrong_among(self, served: Sequence[float]) -> tuple[float, float]:
        """Return mean and variance of the wrong answers among `served`. See `ThresholdLedger.wrong_among`."""
        return self._ledger.wrong_among(served)

    def record_neighbour(self, score: float, entries: int = 0) -> None:
        """Record the score of a request's best neighbour among `entries`, served or not."""
        self._ledger.observe(score, entries)
        self._changes_since_refresh += 1
        band, unpublished = band_of(score), self._unpublished
        unpublished.neighbours[band] = unpublished.neighbours.get(band, 0) + 1
        if entries > 0:
            unpublished.sized_lookups += 1
            unpublished.log_size += math.log(entries)

    def hit(self) -> None:
        self._wrong_hits.hit(self._pending)
        self._pending = 0
        self._unpublished.hits += 1

    def audit_chance(self, score: float, share: float) -> float:
        """Return the probability of auditing a hit with this score, so that on average `share` of all hits are.

        A share of 1 audits every hit. A route that was audited less than `LEAST_AUDITS` times is audited
        `YOUNG_AUDITS` times as often, until it is known to keep twice its promise.
        """
        if share >= 1.0:
            return 1.0
        return min(1.0, share * self._band_weights()[band_of(score)] * (YOUNG_AUDITS if self._is_young else 1.0))

    @property
    def _is_young(self) -> bool:
        """Whether too few audits tell how often hits are wrong."""
        if self._budget is None:
            return False
        wrong_hits = self._advanced_wrong_hits()
        return wrong_hits.audits < LEAST_AUDITS and wrong_hits.estimate().of_all_high > 2 * self._budget

    def label_worth(self, score: float) -> float:
        """Return how much the label of a neighbour with this score would tell: 1 for a mean band at the threshold.

        Bands about which labels say least count most, and bands near the threshold, as they decide it. All neighbours
        of a band have the same worth, so choosing by worth biases no band's estimate.
        """
        if self._threshold_state is None:
            return 1.0
        away = abs(float(CENTRES[band_of(score)]) - self._threshold_state.threshold)
        return self._band_weights()[band_of(score)] * math.exp(-away / NEAR)

    def _band_weights(self) -> list[float]:
        if self._weights is None:
            self._weights = [1.0] * BANDS if self._threshold_state is None else self._threshold_state.audit_weights()
        return self._weights

    # Learning

    def learn(self, observation: Observation) -> bool:
        """Learn from a miss, an audit or feedback. Return whether the label raises the drift alarm."""
        if observation.label is Label.UNDECIDED or not self.learning:
            return False
        self._learn(observation)
        self.version += 1
        vector = observation.vector.astype("<f2").tobytes()
        facts = observation.score, observation.probability, observation.label.value, observation.client
        self._report(("label", vector, *facts, observation.chance))
        if not self._drift.is_raised:
            return False
        self._fall_back(*self._labels_to_keep())
        self.version += 1
        self._report(("drift", self._ledger.labels.tolist(), self._ledger.wrong.tolist()))
        return True

    def _learn(self, observation: Observation) -> None:
        score, right = observation.score, observation.label is Label.RIGHT
        predicted = self._predicted(score)
        weight = label_weight(1 - predicted, observation.chance, equal=right)
        if weight <= 0:
            return
        wrong = 0.0 if right else 1.0
        self._drift.add(band_of(score), predicted, wrong, weight)
        if self.labels_since_drift is not None:
            self.labels_since_drift += 1
        self._labels_since_shares += 1
        self._ledger.label(score, wrong, observation.client, weight)
        self._evidence.add(
            LabelledLookup(observation.vector, observation.probability, 1 - wrong, weight, observation.client)
        )
        self._changes_since_refresh += 1

    def _predicted(self, score: float) -> float:
        """Return the wrong share that the labels so far predict for a neighbour with this score.

        Lookups keep the shares up to date. A gateway that only hears of the labels of others does it here.
        """
        if self._labels_since_shares >= self.refresh_every:
            self._shares, self._labels_since_shares = self._ledger.wrong_shares().mean, 0
        return float(self._shares[band_of(score)])

    def _labels_to_keep(self) -> tuple[FloatArray, FloatArray]:
        """Return the labels, and the wrong ones among them, by band, that stay after a drift alarm.

        These are the labels since the change where they make the threshold higher than the calibration alone does.
        Otherwise it would fall on a route that is harder than the calibration.
        """
        none = np.zeros(BANDS), np.zeros(BANDS)
        since = self._drift.labels.copy(), self._drift.wrong.copy()
        if self._budget is None:
            return none
        cold, warm = (self._ledger_with(*labels).threshold(self._budget) for labels in (none, since))
        return since if warm > cold else none

    def _ledger_with(self, labels: FloatArray, wrong: FloatArray) -> ThresholdLedger:
        """Return a ledger with this traffic and other labels."""
        ledger, other = self._ledger, ThresholdLedger(self._prior)
        other.restore(labels, wrong, ledger.neighbours, ledger.requests, ledger.sized_lookups, ledger.log_size)
        return other

    def _fall_back(self, labels: FloatArray, wrong: FloatArray) -> None:
        """Forget all labels but these. The traffic and the measured wrong hits stay."""
        self._raw_ledger = self._ledger_with(labels, wrong)
        self._evidence, self._drift, self.labels_since_drift = Evidence(), DriftDetector(), 0
        self._forget_thresholds()
        self._shares, self._labels_since_shares = self._ledger.wrong_shares().mean, 0

    def forget(self, vectors: Vector) -> int:
        """Drop the labelled lookups of questions with these vectors, and return their number. Counts without a question
        stay."""
        dropped = self._evidence.forget(vectors)
        if dropped:
            self.version += 1
            self._forget_thresholds()
        return dropped

    def audited(self, label: Label, chance: float, equal_chance: float = 0.0) -> None:
        """Record an audit. `chance` is the probability of its choice. `equal_chance` is that of an equal answer to
        another question than the one of the stored answer."""
        self._advanced_wrong_hits().audited(label, chance, equal_chance)
        self.version += 1
        self._report(("audit", label.value, chance, equal_chance))

    def record_complaint(self) -> None:
        self._advanced_wrong_hits().record_complaint()
        self.version += 1
        self._report(("complaint",))

    # Sharing with other gateways. All that is learned is a sum of observations. So each gateway adds the observations
    # of the others and reaches the state that one process would have.

    def publish_traffic(self) -> None:
        """Report the traffic since the last call."""
        if self._unpublished:
            self._report(("traffic", *self._unpublished.as_row()))
            self._unpublished = TrafficCounts()

    def apply_event(self, event: LearningEvent) -> None:
        """Apply an event of another gateway. Raise `ValueError` or `TypeError` where it cannot be read.

        The other gateway saves it, so `version` does not change.
        """
        kind, *row = event
        if kind == "label":
            vector, score, probability, label, client, *more = row
            if self.learning:
                question = np.frombuffer(vector, "<f2").astype(np.float32)
                chance = float(more[0]) if more else 0.0  # earlier versions do not tell it
                self._learn(Observation(question, float(score), float(probability), Label(label), str(client), chance))
        elif kind == "traffic":
            traffic = TrafficCounts.of_row(tuple(row))
            self._ledger.add(traffic)
            self._pending += traffic.requests
            self._advanced_wrong_hits().served += traffic.hits
            self._changes_since_refresh += sum(traffic.neighbours.values())
        elif kind == "audit":
            outcome, chance, *more = row
            equal_chance = float(more[0]) if more else 0.0  # earlier versions do not tell it
            self._advanced_wrong_hits().audited(Label(outcome), float(chance), equal_chance)
        elif kind == "complaint":
            self._advanced_wrong_hits().record_complaint()
        elif kind == "drift":
            labels, wrong = row
            self._fall_back(band_counts(labels, BANDS), band_counts(wrong, BANDS))
        elif kind == "reset":
            self._reset()

    def estimate(self) -> WrongHitEstimate:
        return self._advanced_wrong_hits().estimate()

    def _advanced_wrong_hits(self) -> WrongHits:
        """Return the estimate's sums up to date. They are needed less often than requests come."""
        self._wrong_hits.advance(self._pending)
        self._pending = 0
        return self._wrong_hits

    @property
    def labels(self) -> int:
        """The number of labelled lookups that move scores near them."""
        return len(self._evidence)

    @property
    def state(self) -> tuple[int, int]:
        """A value that differs whenever there is something new to save."""
        return self.version, self._requests

    @property
    def requests(self) -> float:
        """The route's requests over the memory of the estimate (`wrong_hits.MEMORY`)."""
        return self._advanced_wrong_hits().requests

    @property
    def served(self) -> float:
        """The semantic hits among these requests."""
        return self._advanced_wrong_hits().served

    # Saving and loading

    def snapshot(self, *, evidence: bool = True) -> bytes:
        """Return the state as bytes. With `evidence`, include labelled lookups, the largest part (at most 3 MB)."""
        ledger = self._ledger
        arrays = [array.tolist() for array in (ledger.labels, ledger.wrong, ledger.neighbours)]
        packed: bytes = msgpack.packb(
            (
                VERSION,
                self.basis,
                arrays,
                (ledger.requests, ledger.sized_lookups, ledger.log_size),
                asdict(self._advanced_wrong_hits()),
                self._evidence.rows() if evidence else NO_ROWS,
                self._ledger.clients.rows(),
                self.version,
                (self.labels_since_drift, *self._drift.row()),
            )
        )
        return packed

    def restore(self, data: bytes) -> None:
        """Load a snapshot. Raise `SnapshotInvalid`."""
        try:
            fields = msgpack.unpackb(data, use_list=False)
            form, basis, arrays, sizes, wrong_hits, rows, clients, version, (since_drift, *drift_row) = fields
            if (form, basis) != (VERSION, self.basis):
                raise SnapshotInvalid(
                    f"learned by version {form!r} with {basis!r}, expected version {VERSION} with {self.basis!r}"
                )
            labels, wrong, neighbours = (band_counts(array, BANDS) for array in arrays)
            evidence = Evidence()
            evidence.restore(*rows)
            by_client = ClientLabels(BANDS)
            by_client.restore(clients)
            requests, sized_lookups, log_size = map(float, sizes)
            version = int(version)
            drift = DriftDetector.of_row(tuple(drift_row))
            since_drift = None if since_drift is None else int(since_drift)
            counts = WrongHits.of_row({str(name): float(value) for name, value in wrong_hits.items()})
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SnapshotInvalid(str(error) or type(error).__name__) from None
        self._ledger.restore(labels, wrong, neighbours, requests, sized_lookups, log_size)
        self._ledger.clients = by_client
        self._evidence, self._wrong_hits = evidence, counts
        self._drift, self.labels_since_drift = drift, since_drift
        self.version = version
        self._forget_thresholds()
        self._shares, self._labels_since_shares = self._ledger.wrong_shares().mean, 0


class Controls:
    """The learned states of all routes, by name. They survive a reload of the policy.

    `requests` returns the number of a route's requests since the start. `report` gets the events for other gateways:
    basis, route, event.
    """

    def __init__(
        self,
        prior: PriorBands,
        basis: str,
        requests: Callable[[str], int],
        report: Callable[[str, str, LearningEvent], None] = lambda *_: None,
    ) -> None:
        self._prior = prior
        self.basis = basis
        self._requests = requests
        self._report = report
        self._routes: dict[str, RouteControl] = {}

    def of(self, route: str) -> RouteControl:
        """Return the route's control with its count of requests up to date."""
        control = self._routes.get(route)
        if control is None:
            report = partial(self._report, self.basis, route)
            control = self._routes[route] = RouteControl(self._prior, self.basis, report=report)
        control.advance(self._requests(route))
        return control

    def all(self) -> Iterator[tuple[str, RouteControl]]:
        """Yield every route that was used so far, up to date."""
        return ((route, self.of(route)) for route in tuple(self._routes))

    def publish_traffic(self) -> None:
        """Report the traffic of every route."""
        for _, control in self.all():
            control.publish_traffic()

    def apply_event(self, basis: str, route: str, event: LearningEvent) -> None:
        """Apply an event of another gateway. Raise as `RouteControl.apply_event` does."""
        if basis == self.basis and route in self._routes:
            self._routes[route].apply_event(event)
