"""Compares answers: pure similarity of two texts, and the queue that compares fresh answers with stored ones.

Three-way and honest: what neither the words nor the embeddings settle is undecided, and teaches nothing.

With all-MiniLM-L6-v2, on 18 pairs of equivalent and 18 of different short answers written by hand: of the equivalent
ones 11 come out as right, 6 as undecided, 1 as wrong (cosine 0.72); of the different ones none as right, 12 as wrong, 6
as undecided, three of them at a cosine of 0.90 to 0.92: "on" for "off", a negation, a number. Of unrelated answers in
one template 99 % lie below 0.75 (measured on the development streams).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gateway.cache.labels import Labels
from gateway.cache.lexical import difference, read
from gateway.cache.threshold.wrong_hits import Label
from gateway.context import RequestContext
from gateway.errors import EmbedderUnavailable
from gateway.messages import Call, Entry, Vector
from gateway.observability.telemetry import Telemetry
from gateway.ports import Embedder, Judgement

DIFFERENT_BELOW, SAME_FROM = (
    0.75,
    0.90,
)  # cosines of two answers: below the one they differ, from the other on they may be the same

# A client's question may have to wait while one passage is embedded: 7 ms for so many characters.
PASSAGE_CHARACTERS = 400

MAX_PASSAGES = 9

MAX_COMPARED = PASSAGE_CHARACTERS * MAX_PASSAGES  # characters; of what is longer only equality is looked at

_SENTENCE, _SPACE = re.compile(r"[.!?]\s|\n"), re.compile(r"\s")


def is_same_text(a: str, b: str) -> bool:
    """Equal but for white space and case."""
    return " ".join(a.casefold().split()) == " ".join(b.casefold().split())


def is_comparable(a: str, b: str) -> bool:
    """Whether embeddings can tell more than `is_same_text`: both can be read to their end."""
    return bool(a.strip() and b.strip()) and max(len(a), len(b)) <= MAX_COMPARED


def compare(a: str, b: str, similarity: float | None) -> Label:
    """Whether one may stand for the other. `similarity`: the cosine of their embeddings; None: not known."""
    if is_same_text(a, b):
        return Label.RIGHT
    if similarity is None or not is_comparable(a, b):
        return Label.UNDECIDED
    if similarity < DIFFERENT_BELOW:
        return Label.WRONG
    if similarity >= SAME_FROM and difference(read(a), read(b)) is None:
        return Label.RIGHT
    return Label.UNDECIDED


def passages(text: str) -> list[str]:
    """The text in pieces that the embedding model can read, cut where a sentence, a line or a word ends."""
    pieces: list[str] = []
    rest = text.strip()
    while len(rest) > PASSAGE_CHARACTERS and len(pieces) < MAX_PASSAGES - 1:
        cut = _cut(rest[:PASSAGE_CHARACTERS])
        pieces.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [*pieces, rest[:PASSAGE_CHARACTERS]] if rest else pieces


def combine_vectors(vectors: Sequence[Vector]) -> Vector:
    """The embedding of a text of several passages: the direction of their sum."""
    total = np.sum(vectors, axis=0, dtype=np.float32)
    norm = float(np.linalg.norm(total))
    return vectors[0] if norm == 0.0 else np.asarray(total / norm, np.float32)


def _cut(head: str) -> int:
    """Where to end a passage: after the last sentence or line of its second half, else after its last word."""
    half = len(head) // 2
    for pattern in (_SENTENCE, _SPACE):
        ends = [match.end() for match in pattern.finditer(head, half)]
        if ends:
            return ends[-1]
    return len(head)


# How near two answers are, by their embeddings.
async def similarity(embedder: Embedder, a: str, b: str, *, rest: float = 0.0) -> float | None:
    """The cosine, in [-1, 1]; None where the embedder cannot tell. `rest`: the time left to others after each passage,
    as a multiple of what it took."""
    first, second = await embed_text(embedder, a, rest=rest), await embed_text(embedder, b, rest=rest)
    return None if first is None or second is None else float(first @ second)


async def embed_text(embedder: Embedder, text: str, *, rest: float = 0.0) -> Vector | None:
    """None where the model is not there, or does not read a passage to its end: what is not read may be the
    difference."""
    clock, vectors = asyncio.get_running_loop(), []
    for passage in passages(text):
        started = clock.time()
        try:
            embedding = await embedder.embed(passage)
        except EmbedderUnavailable:
            return None
        if embedding.partial:
            return None
        vectors.append(embedding.vector)
        if rest > 0:
            await asyncio.sleep(rest * (clock.time() - started))
    return combine_vectors(vectors) if vectors else None


# Compares fresh answers with stored ones, off every client's path: one pair at a time, and at most a quarter of the
# embedder's time.
LOG = logging.getLogger("nearhit.quality")

# Time that learning leaves to requests, as a multiple of what it takes. Measured on two busy cores, with a queue that
# never ends: a question is embedded in 3.2 ms (p50) as without it, and in 8 instead of 4 ms (p90); with 1.0 and
# passages of 600 characters p50 was 6.2 ms.
REST_FACTOR = 3.0

MAX_INLINE_BYTES = 64 * 1024  # bytes of an answer: taking apart more would hold up the loop for milliseconds

MAX_WAITING, MAX_WAITING_BYTES = 256, 32 * 1024 * 1024  # pairs; the answers in them


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """A miss: what was found for it and not served, and what a backend then answered."""

    route: str
    call: Call
    judged: Judgement
    fresh: Entry

    @property
    def size(self) -> int:
        return self.judged.entry.size + self.fresh.size


class AnswerComparer:
    """`run` works off what waits; beyond the bounds the oldest pairs are dropped: labels come by themselves."""

    def __init__(self, embedder: Embedder, labels: Labels, telemetry: Telemetry, limit: int = MAX_WAITING) -> None:
        self._embedder = embedder
        self._labels = labels
        self._telemetry = telemetry
        self._limit = limit
        self._waiting: deque[AnswerPair] = deque()
        self._bytes = 0
        self._work_available = asyncio.Event()
        self._comparison_lock = asyncio.Lock()
        self._busy = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not self._waiting and not self._busy

    def missed(self, request: RequestContext, fresh: Entry) -> None:
        """A fresh answer has been stored. Where a neighbour was refused for its score alone, the answer tells whether
        it would have been right."""
        judged, call = request.judged, request.call
        if call is None or judged is None or judged.reason is None or judged.opinion.veto is not None:
            return
        pair = AnswerPair(request.route, call, judged, fresh)
        self._waiting.append(pair)
        self._bytes += pair.size
        while self._waiting and (len(self._waiting) > self._limit or self._bytes > MAX_WAITING_BYTES):
            self._telemetry.comparisons_dropped.add(self._pop().route)
        self._work_available.set()

    async def run(self) -> None:
        while True:
            await self._work_available.wait()
            self._work_available.clear()
            while self._waiting:
                self._busy = True
                try:
                    await self._learn(self._pop())
                except Exception:
                    LOG.exception("a comparison failed")
                finally:
                    self._busy = False

    async def label(self, call: Call, stored: Entry, fresh: Entry) -> Label | None:
        """None: the answers are not text alone, and nothing can be said of them."""
        a, b = [await self._answer_text(call, entry) for entry in (stored, fresh)]
        return None if a is None or b is None else await self.compare_texts(a, b)

    async def compare_texts(self, a: str, b: str) -> Label:
        """Whether two answers to one question say the same; waits until nothing else is compared."""
        if is_same_text(a, b) or not is_comparable(a, b):
            return compare(a, b, None)
        async with self._comparison_lock:
            return compare(a, b, await similarity(self._embedder, a, b, rest=REST_FACTOR))

    async def _answer_text(self, call: Call, entry: Entry) -> str | None:
        read = partial(call.dialect.answer_text, call, entry.payload, entry.streamed)
        return read() if entry.size <= MAX_INLINE_BYTES else await asyncio.to_thread(read)

    def _pop(self) -> AnswerPair:
        pair = self._waiting.popleft()
        self._bytes -= pair.size
        return pair

    async def _learn(self, pair: AnswerPair) -> None:
        label = await self.label(pair.call, pair.judged.entry, pair.fresh)
        if label is not None:
            self._labels.report(pair.route, pair.judged, label, "miss")
