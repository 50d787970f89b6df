"""Compare answers: the similarity of two texts, and the queue that compares fresh answers with stored ones.

The result has three values. An undecided pair, which neither words nor embeddings settle, teaches nothing.

Measured with all-MiniLM-L6-v2 on 18 equivalent and 18 different pairs of short answers, written by hand:

| pairs | right | undecided | wrong | notes |
|---|---|---|---|---|
| equivalent | 11 | 6 | 1 | the wrong one at cosine 0.72 |
| different | 0 | 6 | 12 | three undecided at 0.90 to 0.92: "on" for "off", a negation, a number |

99 % of unrelated answers in one template lie below 0.75 (measured on the development streams).
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
)  # cosines: below the first, two answers differ; from the second on they may be the same

# Characters. A client's question may wait while one passage is embedded, which takes 7 ms at this length.
PASSAGE_CHARACTERS = 400

MAX_PASSAGES = 9

MAX_COMPARED = PASSAGE_CHARACTERS * MAX_PASSAGES  # characters; longer texts are only tested for equality

_SENTENCE, _SPACE = re.compile(r"[.!?]\s|\n"), re.compile(r"\s")


def is_same_text(a: str, b: str) -> bool:
    """Return whether the texts are equal but for white space and case."""
    return " ".join(a.casefold().split()) == " ".join(b.casefold().split())


def is_comparable(a: str, b: str) -> bool:
    """Return whether embeddings can tell more than `is_same_text`: both texts can be read to their end."""
    return bool(a.strip() and b.strip()) and max(len(a), len(b)) <= MAX_COMPARED


def compare(a: str, b: str, similarity: float | None) -> Label:
    """Return whether one answer may replace the other. `similarity`: their cosine; None: not known."""
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
    """Split a text into pieces that the embedding model can read, at the end of a sentence, a line or a word."""
    pieces: list[str] = []
    rest = text.strip()
    while len(rest) > PASSAGE_CHARACTERS and len(pieces) < MAX_PASSAGES - 1:
        cut = _cut(rest[:PASSAGE_CHARACTERS])
        pieces.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [*pieces, rest[:PASSAGE_CHARACTERS]] if rest else pieces


def combine_vectors(vectors: Sequence[Vector]) -> Vector:
    """Return the embedding of a text of several passages: the direction of their sum."""
    total = np.sum(vectors, axis=0, dtype=np.float32)
    norm = float(np.linalg.norm(total))
    return vectors[0] if norm == 0.0 else np.asarray(total / norm, np.float32)


def _cut(head: str) -> int:
    """Return the end of a passage: after the last sentence, line or (failing these) word in its second half."""
    half = len(head) // 2
    for pattern in (_SENTENCE, _SPACE):
        ends = [match.end() for match in pattern.finditer(head, half)]
        if ends:
            return ends[-1]
    return len(head)


async def similarity(embedder: Embedder, a: str, b: str, *, owner: str = "", rest: float = 0.0) -> float | None:
    """Return the cosine of two answers, in [-1, 1]; None where the embedder cannot tell.

    `owner`: see `Embedder.embed`; empty if no client waits. `rest`: the pause after each passage, as a multiple of the
    time it took.
    """
    first = await embed_text(embedder, a, owner=owner, rest=rest)
    second = await embed_text(embedder, b, owner=owner, rest=rest)
    return None if first is None or second is None else float(first @ second)


async def embed_text(embedder: Embedder, text: str, *, owner: str = "", rest: float = 0.0) -> Vector | None:
    """Return the embedding of a text, or None.

    None: the embedder is not available, or does not read a passage to its end, where the difference may be.
    """
    clock, vectors = asyncio.get_running_loop(), []
    for passage in passages(text):
        started = clock.time()
        try:
            embedding = await embedder.embed(passage, owner)
        except EmbedderUnavailable:
            return None
        if embedding.partial:
            return None
        vectors.append(embedding.vector)
        if rest > 0:
            await asyncio.sleep(rest * (clock.time() - started))
    return combine_vectors(vectors) if vectors else None


# The comparer runs off every client's path: one pair at a time, with at most a quarter of the embedder's time.
LOG = logging.getLogger("nearhit.quality")

# Time left to requests, as a multiple of the time that learning takes. Measured on two busy cores with an endless
# queue: embedding a question takes 3.2 ms at p50, as without learning, and 8 instead of 4 ms at p90. With 1.0 and
# passages of 600 characters p50 was 6.2 ms.
REST_FACTOR = 3.0

MAX_INLINE_BYTES = 64 * 1024  # of an answer; parsing more would block the event loop for milliseconds

MAX_WAITING, MAX_WAITING_BYTES = 256, 32 * 1024 * 1024  # pairs; bytes of the answers in them


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """A miss: the neighbour that was found and not served, and the fresh answer of a backend."""

    route: str
    call: Call
    judged: Judgement
    fresh: Entry

    @property
    def size(self) -> int:
        return self.judged.entry.size + self.fresh.size


class AnswerComparer:
    """`AnswerComparer` compares fresh answers with stored ones in the background.

    `run` works off the queue. Beyond its bounds the oldest pairs are dropped, as new labels keep coming.
    """

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
        """True if no pair waits and none is being compared."""
        return not self._waiting and not self._busy

    def missed(self, request: RequestContext, fresh: Entry) -> None:
        """Queue the fresh answer of a miss for comparison with the neighbour that was found.

        Only neighbours that were refused for their final score alone count: the answer shows whether they would have
        been right.
        """
        judged, call = request.judged, request.call
        if call is None or judged is None or judged.reason is None:
            return
        if judged.opinion.veto is not None or not judged.final:
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
                    LOG.exception("comparing two answers failed")
                finally:
                    self._busy = False

    async def label(self, call: Call, stored: Entry, fresh: Entry) -> Label | None:
        """Compare two answers to a call. None: the answers have more than text and cannot be compared."""
        a, b = [await self._answer_text(call, entry) for entry in (stored, fresh)]
        return None if a is None or b is None else await self.compare_texts(a, b)

    async def compare_texts(self, a: str, b: str) -> Label:
        """Return whether two answers to one question say the same. One comparison runs at a time."""
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
        if label is Label.RIGHT:
            await self._labels.link(pair.judged, pair.fresh)
