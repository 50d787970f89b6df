"""The learned verifier, its calibration, and a second stage with a cross-encoder for uncertain pairs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.adapters.system.thread_priority import MODEL_NICENESS, lower_priority
from gateway.adapters.system.weight_files import WeightFiles, WeightsCorrupt
from gateway.cache import lexical
from gateway.cache.features import LONGEST, NAMES, QuestionReading, features, read, read_stored, word_features
from gateway.cache.forest import Forest, from_arrays
from gateway.cache.languages import reads
from gateway.cache.pair_queue import PairQueue
from gateway.cache.spelling import SAME, compare_read
from gateway.cache.threshold.ledger import BANDS
from gateway.errors import ModelUnavailable
from gateway.outcomes import Refusal
from gateway.ports import Opinion, PriorBands, StoredCandidate

FLOOR = 0.6

WEIGHTS = Path(__file__).parent / "weights"

ABOUT_FILE = "verifier.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured value of a verifier's scores."""

    curve: tuple[float, float]
    prior: PriorBands

    def probability(self, score: float) -> float:
        """Return the probability that the stored answer is right, for a request's best neighbour with this score."""
        slope, offset = self.curve
        return 1.0 / (1.0 + math.exp(-(slope * score + offset)))


def load_calibration(verifier: str, directory: Path = WEIGHTS) -> Calibration:
    """Load the calibration of a verifier. Raise `WeightsCorrupt`."""
    try:
        return calibration_of(json.loads((directory / ABOUT_FILE).read_bytes()), verifier)
    except OSError as error:
        raise WeightsCorrupt(f"the verifier's calibration cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsCorrupt(f"{directory.name}/{ABOUT_FILE} has unexpected contents: {error!r}") from None


def calibration_of(about: Mapping[str, Any], verifier: str) -> Calibration:
    """Parse the calibration. Raise ValueError, KeyError or TypeError."""
    slope, offset = map(float, about["curves"][verifier])
    prior = [(float(wrong), float(rate)) for wrong, rate in about["priors"][verifier]]
    if len(prior) != BANDS or not all(0.0 <= number <= 1.0 for band in prior for number in band):
        raise ValueError(f"{len(prior)} bands of {verifier}, expected {BANDS} with shares between 0 and 1")
    if not (0.0 <= slope <= 100.0 and abs(offset) <= 100.0):
        raise ValueError(
            f"the curve of {verifier} has slope {slope} and offset {offset}, expected 0 to 100 and -100 to 100"
        )
    return Calibration((slope, offset), prior)


# A score is the log-odds that the stored answer is right, on a scale on which 1 is the most that is ever claimed:
#
#     score = 1 - (TOP - min(TOP, log-odds)) / SPREAD
#     first opinion:   log-odds = bias + similarity * c + doubt * d
#     second opinion:  log-odds = bias + similarity * c + doubt * d + refusal * min(l, 0) + approval * max(l, 0)
#                                 + n * (near_doubt * d + near_refusal * min(l - SURE_LOGIT, 0))
#                                 + w * (wording + wording_doubt * d + wording_approval * max(l, 0))
#
#     c: similarity    d: (1 - p) ** power, with the trees' probability p that both questions ask the same
#     l: the cross-encoder's logit    n: nearness, 0 up to a similarity of NEAR_FROM and 1 at a similarity of 1
#     w: common wording, 0 while the questions share at most WORDING_FROM of their words, and 1 if they share all
#
# Questions whose words are exchanged, or that differ by one decisive word, are nearly equal to the encoder. There the
# trees and the cross-encoder count for more. At a score that serves 20 % of real questions with 1 % wrong, 7 of 40
# exchanged pairs that ask something else are served, and 29 without these terms.
#
# Questions that share most words are similar whatever they ask. There the similarity counts for less, and a word that
# differs for more.
#
# In a scope of few entries the best neighbour competes with few others, and the cross-encoder tells most near misses
# apart, where the similarity tells none. There a second sum with other weights counts if it is higher:
#
#     second opinion:  max(log-odds as above, log-odds with the weights of few entries - crowding * ln(entries))
#
# It is for free wordings. Nearly equal questions are left out, as the cross-encoder takes some exchanged words for the
# same question. So are questions that share a third of their words: one decisive word often differs, such as the unit
# in "120 mg/dl" and "120 mmol/dl". The sum falls as entries are added, and with more than `FEW_ENTRIES` it is left out.
#
# The cross-encoder reads a pair only if its logit could change the decision. Its logits rise with the similarity, and
# few leave the range of `LogitRange`. A pair that the highest logit would not get served, or that the lowest one would,
# is decided unread, at the score of the typical logit. The route learns from that score, too. Otherwise fewer labels
# are left to learn from: at .5 %, 9.7 % of the development stream were served, and 11.9 with them.
#
# The similarity is not an input of the trees: fitted together on generated pairs, the result lost on real ones (AUC
# 0.826 against 0.867 for similarity alone). `training.combination` fits the ten others. Each route learns its own
# threshold.

TOP, SPREAD = 5.0, 12.0
NEAR_FROM = 0.92  # similarity
SURE_LOGIT = 2.0  # logit that nearly equal questions must have to lose nothing
WORDING_FROM = 0.4  # share of words; .4 to .6 differ little on the calibration split of the development pairs

# Log-odds that a pair loses whose language neither the trees nor the cross-encoder were trained on. In German and
# Spanish the wordings with one harmful change are closer than free wordings of the same question.
FOREIGN = 2.0
LANGUAGES_KEPT = 4096  # questions whose language is remembered

# Entries of a scope. With more, the usual weights decide alone: in scopes that fill up to 60 questions of banking77, a
# bound of 32 takes the wrong hits from 2.1 to 2.4 %, and one of 16 to 2.2 %.
FEW_ENTRIES = 16
FREE_WORDING = 1 / 3  # share of words; the 22 everyday wordings that are gained share at most .31

TRAINED = WeightFiles("verifier", "the verifier's weights")

# If a rule names a difference, the trees are not consulted and the doubt is full.
_NAMED = attrgetter("numbers_swapped", "negation", "opposites", "reversed")


@dataclass(frozen=True, slots=True)
class FirstCombination:
    """The weights of the first opinion, in log-odds."""

    bias: float
    similarity: float
    doubt: float  # negative: what a certain refusal by the trees costs

    def log_odds(self, similarity: float, doubt: float) -> float:
        return self.bias + self.similarity * similarity + self.doubt * doubt


@dataclass(frozen=True, slots=True)
class SecondCombination:
    """The weights of the second opinion, in log-odds."""

    bias: float
    similarity: float
    doubt: float
    refusal: float  # per unit of a logit below 0
    approval: float  # per unit of a logit above 0
    near_doubt: float  # what `doubt` gains up to a similarity of 1
    near_refusal: float  # per unit of a logit below `SURE_LOGIT`, at a similarity of 1
    wording: float  # of questions that share all words
    wording_doubt: float  # what `doubt` gains there
    wording_approval: float  # what `approval` gains there

    def log_odds(self, similarity: float, doubt: float, logit: float, words_shared: float = 0.0) -> float:
        """`doubt` of the trees is in [0, 1]. `logit` comes from the cross-encoder, limited to +-`MAX_LOGIT`.
        `words_shared` is the share of all words that both have, in [0, 1]."""
        limited = min(MAX_LOGIT, max(-MAX_LOGIT, logit))
        read = (self.refusal if limited < 0.0 else self.approval) * limited
        nearness = max(0.0, similarity - NEAR_FROM) / (1.0 - NEAR_FROM)
        near = self.near_doubt * doubt + self.near_refusal * min(0.0, limited - SURE_LOGIT)
        alike = max(0.0, words_shared - WORDING_FROM) / (1.0 - WORDING_FROM)
        worded = self.wording + self.wording_doubt * doubt + self.wording_approval * max(0.0, limited)
        return self.bias + self.similarity * similarity + self.doubt * doubt + read + nearness * near + alike * worded


@dataclass(frozen=True, slots=True)
class FewEntriesCombination:
    """The weights of the second opinion in a scope of at most `FEW_ENTRIES` entries, in log-odds."""

    weights: SecondCombination
    crowding: float  # lost for each e-fold of entries

    def log_odds(
        self, similarity: float, doubt: float, logit: float, words_shared: float = 0.0, entries: int = 1
    ) -> float:
        """The arguments are those of `SecondCombination.log_odds`, and at least one entry."""
        return self.weights.log_odds(similarity, doubt, logit, words_shared) - self.crowding * math.log(entries)


@dataclass(frozen=True, slots=True)
class LogitRange:
    """The logits of the cross-encoder by similarity: straight lines, as their values at `FLOOR` and at 1."""

    highest: tuple[float, float]
    typical: tuple[float, float]
    lowest: float

    def highest_at(self, similarity: float) -> float:
        return _on_line(self.highest, similarity)

    def typical_at(self, similarity: float) -> float:
        return _on_line(self.typical, similarity)


def _on_line(ends: tuple[float, float], similarity: float) -> float:
    start, end = ends
    return start + (end - start) * max(0.0, similarity - FLOOR) / (1.0 - FLOOR)


Combination = TypeVar("Combination", FirstCombination, SecondCombination)


def score_of(log_odds: float) -> float:
    """Return the score for the log-odds of being right: at most 1."""
    return 1.0 - (TOP - min(TOP, log_odds)) / SPREAD


@dataclass(frozen=True, slots=True)
class VerifierWeights:
    digest: str  # hex SHA-256 of the arrays
    power: float  # above 1: half a doubt costs less than half
    first: FirstCombination
    second: SecondCombination
    words: Forest
    calibration: Calibration
    few: FewEntriesCombination | None = None  # None: tuned weights, whose labels come from caches of all sizes
    logits: LogitRange | None = None  # None: tuned weights, whose logits were not measured, so that all pairs are read

    @property
    def version(self) -> str:
        """Name the scale of the scores, in 16 hex digits: scores under two names do not compare."""
        few = () if self.few is None else (astuple(self.few),)
        numbers = repr((self.power, astuple(self.first), astuple(self.second), *few))
        return self.digest[:8] + hashlib.sha256(numbers.encode()).hexdigest()[:8]

    def second_log_odds(
        self, similarity: float, doubt: float, logit: float, words_shared: float = 0.0, entries: int = 0
    ) -> tuple[float, bool]:
        """Return the log-odds of a pair in a scope of `entries` entries, and whether the weights of few gave them.

        The other arguments are those of `SecondCombination.log_odds`. 0 entries: not known, and judged as many.
        """
        usual = self.second.log_odds(similarity, doubt, logit, words_shared)
        is_free = similarity < NEAR_FROM and words_shared < FREE_WORDING
        if self.few is None or not 0 < entries <= FEW_ENTRIES or not is_free:
            return usual, False
        few = self.few.log_odds(similarity, doubt, logit, words_shared, entries)
        return max(usual, few), few > usual


def load_weights(directory: Path = WEIGHTS) -> VerifierWeights:
    """Read `verifier.npz` and `verifier.json`. Raise `WeightsCorrupt`."""
    return TRAINED.load(directory, weights_from)


def weights_from(about: bytes, arrays: bytes) -> VerifierWeights:
    """Check and unpack the weights. Raise ValueError, KeyError, TypeError or AttributeError."""
    unpacked = TRAINED.unpack(about, arrays, NAMES)
    metadata, tables = unpacked.metadata, unpacked.tables
    return VerifierWeights(
        digest=unpacked.digest,
        power=float(metadata["power"]),
        first=_combination(FirstCombination, metadata["combination"]["first"]),
        second=_combination(SecondCombination, metadata["combination"]["second"]),
        words=from_arrays(tables, "words", len(NAMES)),
        calibration=calibration_of(metadata, "learned"),
        few=_few(metadata["combination"].get("few")),
        logits=_logits(metadata.get("logits")),
    )


def _logits(lines: Mapping[str, Any] | None) -> LogitRange | None:
    if lines is None:
        return None
    highest, typical = ((float(start), float(end)) for start, end in (lines["highest"], lines["typical"]))
    return LogitRange(highest, typical, float(lines["lowest"]))


def _few(numbers: Sequence[Any] | None) -> FewEntriesCombination | None:
    if numbers is None:
        return None
    *weights, crowding = numbers
    return FewEntriesCombination(_combination(SecondCombination, weights), float(crowding))


def _combination(kind: type[Combination], numbers: Sequence[Any]) -> Combination:
    expected = len(fields(kind))
    if len(numbers) != expected:
        raise ValueError(f"{kind.__name__} has {len(numbers)} numbers, expected {expected}")
    return kind(*map(float, numbers))


_reads = lru_cache(LANGUAGES_KEPT)(reads)


def _is_foreign(question: str, candidate: StoredCandidate) -> bool:
    """Return whether one of the two is in a language that the trees and the cross-encoder were not trained on."""
    return not (_reads(question) and _reads(candidate.question))


class LearnedVerifier:
    """The learned verifier. It implements `Verifier`."""

    floor = FLOOR

    def __init__(self, weights: VerifierWeights, version: str | None = None) -> None:
        """`version` is that of tuned weights, whose scores do not compare with those of other versions."""
        self.weights = weights
        self.basis = f"learned-{weights.version}" + (f"-tuned-{version}" if version else "")
        self.prior = weights.calibration.prior

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        mine, readings = read(question), [read_stored(candidate.question) for candidate in candidates]
        compared = self._doubts_and_overlaps(mine, question, readings, [candidate.question for candidate in candidates])
        opinions, is_foreign = list[Opinion](), not _reads(question)
        for candidate, other, (doubt, words_shared) in zip(candidates, readings, compared, strict=True):
            log_odds = self.weights.first.log_odds(candidate.similarity, doubt)
            spelling = compare_read(question, mine.checks, candidate.question, other.checks)
            if spelling is SAME:
                opinions.append(replace(self.opinion(TOP, None, None, doubt, words_shared), is_same=True))
                continue
            if is_foreign or not _reads(candidate.question):
                log_odds -= FOREIGN
            rule = lexical.difference(mine.checks, other.checks)
            hard = spelling or lexical.hard_difference(mine.checks, other.checks)
            opinions.append(self.opinion(log_odds, rule, hard, doubt, words_shared))
        return opinions

    def opinion(
        self,
        log_odds: float,
        doubt: Refusal | None = None,
        veto: Refusal | None = None,
        trees_doubt: float = 1.0,
        words_shared: float = 0.0,
    ) -> Opinion:
        """Return the opinion for these log-odds. `doubt` is the difference that the rules see.

        `veto` is a difference that no score may outweigh. The trees were not trained on instructions around varying
        content, so a different payload is a veto, too. Any other difference is the reason to show where the score is
        too low.
        """
        score = score_of(log_odds)
        veto = doubt if doubt is Refusal.PAYLOAD else veto
        chance = self.weights.calibration.probability(score)
        return Opinion(score, chance, veto, doubt, None, trees_doubt, words_shared)

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        return None

    def close(self) -> None:
        pass

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        """Return the features that differ from those of the question compared with itself."""
        values, equal = features(question, [candidate.question, question])
        return {name: float(value) for name, value, at in zip(NAMES, values, equal, strict=True) if value != at}

    def _doubts_and_overlaps(
        self, mine: QuestionReading, query: str, readings: Sequence[QuestionReading], stored: Sequence[str]
    ) -> list[tuple[float, float]]:
        """Return (k,) doubts, and shares of the words of both questions that both have."""
        rows = [word_features(mine, other) for other in readings]
        words, doubts = query.split(), [1.0] * len(stored)
        undecided = list[int]()  # pairs for the trees, as no rule decides them
        for at, (other, row) in enumerate(zip(stored, rows, strict=True)):
            if other.split() == words:  # equal but for spaces: the same
                doubts[at] = 0.0
            elif max(len(query), len(other)) <= LONGEST and not any(_NAMED(row)):
                undecided.append(at)  # longer texts that are not equal keep full doubt
        if undecided:
            for at, sure in zip(undecided, self.weights.words.probability([rows[at] for at in undecided]), strict=True):
                doubts[at] = 1.0 - sure
        power = self.weights.power
        # `doubt * doubt`, as the library's power of 2 sometimes differs in the last bit.
        return [
            (doubt * doubt if power == 2.0 else doubt**power, row.words_shared)
            for doubt, row in zip(doubts, rows, strict=True)
        ]


def provenance(directory: Path = WEIGHTS) -> Mapping[str, object]:
    """Return the sources, licences, figures and versions in `verifier.json`."""
    about: Mapping[str, object] = json.loads((directory / ABOUT_FILE).read_bytes())
    return about


# The second stage: a cross-encoder for every pair that could be served.
LOG = logging.getLogger("nearhit.semantic")

MAX_LOGIT = 8.0  # a logit beyond it says no more

# Beyond this many pairs the first opinion stands. They only queue up where every lookup is uncertain; 32 take 50 ms.
MAX_WAITING = 32


class CrossEncoder(Protocol):
    """A model that reads two questions together."""

    @property
    def digest(self) -> str:
        """The name of its weights and of their arithmetic."""

    @property
    def threads(self) -> int:
        """The number of threads that may call `score` at once."""

    def score(self, query: str, stored: Sequence[str]) -> list[float]:
        """Return one logit for each stored question, in order. Swapping the two questions gives the same. Blocks.

        Raise `ModelUnavailable` where a remote model does not answer.
        """


class TwoStageVerifier:
    """The learned verifier with a cross-encoder. It implements `Verifier`.

    In process, one thread owns the cross-encoder: 1.3 to 1.9 ms for a pair of short questions. `pairs` counts what
    waits for it.
    """

    def __init__(self, first: LearnedVerifier, cross_encoder: CrossEncoder, pairs: PairQueue | None = None) -> None:
        self._first = first
        self._cross_encoder = cross_encoder
        self._pairs = PairQueue() if pairs is None else pairs
        self._executor = ThreadPoolExecutor(
            cross_encoder.threads, "nearhit-verifier", initializer=lower_priority, initargs=(MODEL_NICENESS,)
        )
        self.basis = f"{first.basis}+{cross_encoder.digest[:8]}"
        self.prior: PriorBands = first.prior
        self.floor = first.floor

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return [
            opinion
            if opinion.score >= 1.0 or _is_foreign(question, candidate)
            else self._with_outlook(candidate, opinion)
            for candidate, opinion in zip(candidates, self._first.opinions(question, candidates), strict=True)
        ]

    def _with_outlook(self, candidate: StoredCandidate, first: Opinion) -> Opinion:
        """Add the scores that the second opinion can have. Among few entries, whose threshold is low, each pair is
        read."""
        logits = self._first.weights.logits
        if logits is None or 0 < candidate.entries <= FEW_ENTRIES or first.veto is not None:
            return replace(first, ceiling=self._score(candidate, first, MAX_LOGIT))
        return replace(
            first,
            ceiling=self._score(candidate, first, logits.highest_at(candidate.similarity)),
            least=self._score(candidate, first, logits.lowest),
            estimate=self._combined(candidate, first, logits.typical_at(candidate.similarity)),
        )

    def _score(self, candidate: StoredCandidate, first: Opinion, logit: float) -> float:
        return score_of(self._log_odds(candidate, first, logit)[0])

    def _log_odds(self, candidate: StoredCandidate, first: Opinion, logit: float) -> tuple[float, bool]:
        """Return what `VerifierWeights.second_log_odds` does."""
        return self._first.weights.second_log_odds(
            candidate.similarity, first.trees_doubt, logit, first.words_shared, candidate.entries
        )

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        if len(self._pairs) >= MAX_WAITING:
            return None
        pair_s = None
        self._pairs.enter(self._cross_encoder.threads)
        try:
            logit, pair_s = await asyncio.get_running_loop().run_in_executor(
                self._executor, self._read, question, candidate.question
            )
        except ModelUnavailable:  # the model has logged it once
            return None
        except Exception as error:  # the first opinion stands; log the type only, as a message may quote the prompt
            LOG.error("the cross-encoder failed: %s", type(error).__name__)
            return None
        finally:
            self._pairs.leave(pair_s)
        return self._combined(candidate, first, logit)

    def _read(self, question: str, stored: str) -> tuple[float, float]:
        """Return the logit, and the seconds that it took."""
        started = time.monotonic()
        (logit,) = self._cross_encoder.score(question, [stored])
        return logit, time.monotonic() - started

    def _combined(self, candidate: StoredCandidate, first: Opinion, logit: float) -> Opinion:
        """Return the opinion of both stages. It keeps the veto and the doubt of the first."""
        log_odds, is_of_few = self._log_odds(candidate, first, logit)
        return replace(self._first.opinion(log_odds), veto=first.veto, doubt=first.doubt, is_of_few=is_of_few)

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        return self._first.features(question, candidate)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
