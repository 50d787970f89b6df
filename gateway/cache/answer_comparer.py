"""The queue that compares fresh answers with stored ones in the background."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from gateway.bounded_cache import BoundedCache
from gateway.cache.answer_similarity import compare, compare_words, normalised, passages, text_vector
from gateway.cache.labels import Labels
from gateway.cache.learning_budget import LearningBudget
from gateway.cache.threshold.answer_shares import UNLIKE_BELOW, AnswerText, RouteAnswers
from gateway.cache.threshold.wrong_hits import Label
from gateway.calls import Call
from gateway.context import RequestContext
from gateway.entries import Entry, Vector
from gateway.errors import EmbedderUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Judgement, LearningEmbedder
from gateway.scores import ComparedAnswer

# The comparer runs off every client's path: one pair at a time, within the budget of learning, while the encoder is
# idle.
#
# The choice of pairs biases nothing that a route learns. A pair is chosen by the band of its score and the state of its
# route, which are known before anybody looks at the answers. A chosen pair is compared to its end, whether words or
# embeddings decide it. The budget depends on the cost of earlier pairs only. So within a band the compared pairs are
# like the others. The ledger takes from labels only the share of wrong ones in each band. It takes from all lookups how
# often neighbours fall into the band (`gateway.cache.threshold.ledger`). The residuals near a question compare a label
# with what its own score promised.
#
# To let the words choose would be a bias: equal texts cost nothing, so right pairs would be compared more often. Each
# audit has a known chance, which `WrongHits` divides by. The budget makes audits wait and drops none.
LOG = logging.getLogger("nearhit.quality")

# Time left to requests after a comparison, as a multiple of the time that its embeddings took.
REST_FACTOR = 3.0

MAX_REST_S = 1.0

MAX_INLINE_BYTES = 64 * 1024  # of an answer; parsing more would block the event loop for milliseconds

MAX_WAITING, MAX_WAITING_BYTES = 256, 32 * 1024 * 1024  # pairs; bytes of the answers in them

MAX_VECTORS = 1024  # of answers, kept as the same neighbour is compared many times: 2 MB

OnCompared: TypeAlias = Callable[[RequestContext, str, ComparedAnswer, ComparedAnswer, str], None]
"""Notes for the traffic log what the comparison of two answers to a request found: see `steps.recording`."""


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """A miss: the neighbour that was found and not served, and the fresh answer of a backend."""

    route: str
    call: Call
    judged: Judgement
    fresh: Entry
    rank: tuple[float, int]  # how much its label would tell, then its number: newer pairs first

    @property
    def size(self) -> int:
        return self.judged.entry.size + self.fresh.size


class AnswerComparer:
    """`AnswerComparer` compares fresh answers with stored ones in the background.

    `run` works off the queue, the pair with the most telling label first. Beyond the bounds of the queue the pair with
    the least telling one is dropped, the oldest first.
    """

    def __init__(
        self,
        embedder: LearningEmbedder,
        labels: Labels,
        telemetry: Telemetry,
        budget: LearningBudget,
        limit: int = MAX_WAITING,
    ) -> None:
        self.budget = budget
        self._embedder = embedder
        self._labels = labels
        self._telemetry = telemetry
        self._limit = limit
        self._waiting: list[AnswerPair] = []
        self._bytes = 0
        self._missed = 0  # pairs so far
        self._vectors: BoundedCache[bytes, Vector] = BoundedCache(MAX_VECTORS)
        self._answers: dict[str, RouteAnswers] = {}  # by route
        self._work_available = asyncio.Event()
        self._comparison_lock = asyncio.Lock()
        self._busy = False

    @property
    def idle(self) -> bool:
        """True if no pair waits and none is being compared."""
        return not self._waiting and not self._busy

    def enqueue_miss(self, request: RequestContext, fresh: Entry) -> None:
        """Queue the fresh answer of a miss for comparison with the neighbour that was found.

        Only neighbours that were refused for their final score alone count: the answer shows whether they would have
        been right.
        """
        judged, call = request.judged, request.call
        if call is None or judged is None or judged.reason is None:
            return
        if judged.opinion.veto is not None or not judged.final:
            return
        self._missed += 1
        rank = self._labels.worth(request.route, judged), self._missed
        pair = AnswerPair(request.route, call, judged, fresh, rank)
        self._waiting.append(pair)
        self._bytes += pair.size
        while self._waiting and (len(self._waiting) > self._limit or self._bytes > MAX_WAITING_BYTES):
            reason = "count" if len(self._waiting) > self._limit else "bytes"
            self._telemetry.comparisons_dropped.add(self._take(min).route, reason)
        self._work_available.set()

    async def run(self) -> None:
        while True:
            await self._work_available.wait()
            self._work_available.clear()
            while self._waiting:
                await self.budget.wait_turn()
                if not self._waiting:
                    break
                self._busy = True
                try:
                    await self._learn(self._take(max))
                except Exception:
                    LOG.exception("comparing two answers failed")
                finally:
                    self._busy = False

    async def label(self, call: Call, stored: Entry, fresh: Entry) -> Label | None:
        """Compare two answers to a call. Return None if the answers have more than text and cannot be compared.

        Both are compared as answers to the question of the fresh one.
        """
        a, b = [await self._answer_text(call, entry) for entry in (stored, fresh)]
        if a is None or b is None:
            return None
        return await self.compare_texts(a, b, fresh.question or "", stored.question or "")

    async def compare_texts(self, a: str, b: str, question: str = "", stored: str = "") -> Label:
        """Return whether two answers say the same. One comparison runs at a time, in its turn. `question` is the
        question of `b`, or `""` if it is not known. `stored` is the question of `a`, if it is another."""
        async with self._comparison_lock:
            await self.budget.wait_turn()
            with self.budget.spending():
                label = compare_words(a, b, question, stored)
            if label is not None:
                return label
            first, second = await self._embed(a, b)
            with self.budget.spending():
                return compare(
                    a, b, None if first is None or second is None else float(first @ second), question, stored
                )

    async def _embed(self, *texts: str) -> list[Vector | None]:
        """Return the embedding of each text, or None as `text_vector` does. All that are not known go together."""
        keys = [_key(text) for text in texts]
        vectors = {key: self._vectors.get(key) for key in keys}
        pieces = {key: passages(text) for key, text in zip(keys, texts, strict=True) if vectors[key] is None}
        if pieces:
            clock = asyncio.get_running_loop()
            started = clock.time()
            try:
                embeddings = iter(
                    await self._embedder.embed_idle([piece for each in pieces.values() for piece in each])
                )
            except EmbedderUnavailable:
                return [vectors[key] for key in keys]
            for key, each in pieces.items():
                vector = vectors[key] = text_vector([next(embeddings) for _ in each])
                if vector is not None:
                    self._vectors.put(key, vector)
            await asyncio.sleep(min(MAX_REST_S, REST_FACTOR * (clock.time() - started)))
        return [vectors[key] for key in keys]

    async def _answer_text(self, call: Call, entry: Entry) -> str | None:
        read = partial(call.dialect.answer_text, call, entry.payload, entry.streamed)
        if entry.size > MAX_INLINE_BYTES:
            return await asyncio.to_thread(read)
        with self.budget.spending():
            return read()

    def _take(self, choose: Callable[..., AnswerPair]) -> AnswerPair:
        """Remove and return the pair with the least or the greatest rank, as `choose` says."""
        pair = choose(self._waiting, key=attrgetter("rank"))
        self._waiting.remove(pair)
        self._bytes -= pair.size
        return pair

    async def _learn(self, pair: AnswerPair) -> None:
        label = await self.label(pair.call, pair.judged.entry, pair.fresh)
        if label is None:
            return
        lesson, chance = await self.evidence(pair.route, pair.call, label, pair.judged.entry, pair.fresh)
        with self.budget.spending():
            self._labels.report(pair.route, pair.judged, lesson, "miss", chance)
        await self._observe(pair, label)
        if lesson is Label.RIGHT:
            await self._labels.link(pair.judged, pair.fresh)

    async def evidence(self, route: str, call: Call, label: Label, stored: Entry, fresh: Entry) -> tuple[Label, float]:
        """Return what the label of two answers teaches about their questions, and the chance of an equal answer to
        another question, in (0, 1]."""
        a, b = [await self._known_text(call, entry) for entry in (stored, fresh)]
        answers = self.answers_of(route)
        if a is None or b is None or answers.says_nothing(fresh.scope, a, b):
            return Label.UNDECIDED, 1.0
        return label, answers.evidence_chance(fresh.scope, b)

    async def chance(self, route: str, call: Call, entry: Entry) -> float:
        """Return the greatest probability, in (0, 1], that another question of the scope may get an answer like that of
        the entry. An answer without text says nothing: 1."""
        answer = await self._known_text(call, entry)
        return 1.0 if answer is None else self.answers_of(route).chance(entry.scope, answer)

    async def is_frequent(self, route: str, call: Call, entry: Entry) -> bool:
        """Return whether many questions are known to get an answer like that of the entry, so that an equal one
        confirms no answer."""
        answer = await self._known_text(call, entry)
        return answer is None or self.answers_of(route).is_frequent(entry.scope, answer)

    async def _observe(self, pair: AnswerPair, label: Label) -> None:
        """Count a fresh answer among those of its route, and the label of a neighbour that is unlike the question."""
        answer, answers = await self._known_text(pair.call, pair.fresh), self.answers_of(pair.route)
        if answer is None:
            return
        with self.budget.spending():
            answers.observe(pair.fresh.scope, answer)
            if label is not Label.UNDECIDED and pair.judged.opinion.probability < UNLIKE_BELOW:
                answers.observe_unlike(pair.fresh.scope, label is Label.RIGHT)
        self._telemetry.answer_share.set(pair.route, value=answers.largest)

    async def _known_text(self, call: Call, entry: Entry) -> AnswerText | None:
        """Return the text of an answer, with its embedding if it was compared by it, or None if the answer has more
        than text."""
        text = await self._answer_text(call, entry)
        return None if text is None else AnswerText(normalised(text), self._vectors.get(_key(text)))

    def answers_of(self, route: str) -> RouteAnswers:
        """Return the answers of a route that were compared."""
        return self._answers.setdefault(route, RouteAnswers())


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
