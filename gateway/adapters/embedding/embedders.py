"""Embedders around a text encoder: one embeds in the caller, one batches texts for a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from gateway.bounded_cache import BoundedCache
from gateway.errors import EmbedderUnavailable
from gateway.messages import Embedding
from gateway.ports import ImmediateEncoder, TextEncoder

LOG = logging.getLogger(__name__)


class InlineEmbedder:
    """Implements `Embedder`."""

    def __init__(self, encoder: ImmediateEncoder) -> None:
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._closed = False

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """Raises `EmbedderUnavailable`: closed, or the encoder failed."""
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")
        try:
            return self._encoder.encode_one(text)
        except Exception as error:
            LOG.error("the encoder failed on a text: %s", type(error).__name__)  # a message may quote the prompt
            raise EmbedderUnavailable("the encoder failed on this text") from None

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        try:
            return None if self._closed else self._encoder.encode_one(text)
        except Exception:  # `embed` says what is wrong
            return None

    def close(self) -> None:
        """May be called twice."""
        self._closed = True


# Micro-batches: what concurrent requests ask within one forward pass goes into the next one together.
#
# Nothing waits on purpose. While the worker thread encodes one batch, questions queue up; the next batch is what has
# queued up by then. A lone question starts at once. Where few texts share a pass of the encoder, nobody waits for the
# others of a batch either (`batch_limit`).

Key = tuple[str, str]
"""Owner and text: what one owner asks is remembered, and shared, for that owner alone. Otherwise the time that an
embedding takes would tell each tenant what the others have asked lately."""

RECENT_TEXTS = 2048  # of 384 float32 with a short text: 4 MB

RECENT_CHARACTERS = 2048  # longer texts are not kept: bounds the above to 20 MB at 4 bytes a character

TIMEOUTS_TO_FAIL_FAST = 3

CLOSE_TIMEOUT_S = 1.0  # blocks the loop: requests have been drained by then, so the worker is idle or hung


@dataclass(frozen=True, slots=True)
class _Question:
    key: Key
    answer: asyncio.Future[Embedding]


class BatchingEmbedder:
    """Implements `Embedder` over a `TextEncoder` that one worker thread owns. To be used from one event loop.

    `max_batch`: questions that are taken from the queue together, so that equal texts of one owner are encoded once.
    `batch_limit`: of these so many texts a call of the encoder, whose callers are then answered; None: all.
    `max_queue`: questions that may wait. `timeout_s`: seconds that a caller waits at most. After
    `TIMEOUTS_TO_FAIL_FAST` timeouts in a row callers are refused at once, until the worker answers again.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        max_batch: int = 32,
        batch_limit: int | None = None,
        max_queue: int = 256,
        timeout_s: float = 2.0,
    ) -> None:
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._max_batch = max_batch
        self._batch_limit = batch_limit or max_batch
        self._max_queue = max_queue
        self._timeout_s = timeout_s
        self._queue: SimpleQueue[_Question | None] = SimpleQueue()
        self._cache: BoundedCache[Key, Embedding] = BoundedCache(RECENT_TEXTS)
        self._started: dict[Key, asyncio.Future[Embedding]] = {}
        self._timeouts = 0  # in a row, since the worker last answered
        self._closed = False
        # A daemon: a hung encoder must not keep the process from ending.
        self._worker = threading.Thread(target=self._work, name="embedder", daemon=True)
        self._worker.start()

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """Raises `EmbedderUnavailable`: closed, queue full, encoder failed or too slow."""
        key = owner, text
        if (known := self._cache.get(key)) is not None:
            return known
        if (begun := self._started.get(key)) is not None:
            answer = asyncio.shield(begun)  # others may wait for it, too
        else:
            self._fail_fast()
            answer = self._enqueue(key)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer  # cancelled with its caller: the worker then leaves it out
        except TimeoutError:
            self._timeouts += 1
            raise EmbedderUnavailable(f"no embedding within {self._timeout_s:g} s") from None

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        return self._cache.get((owner, text))

    def begin(self, text: str, owner: str = "") -> None:
        """Implements `EagerEmbedder`. Only where no other text waits: those are asked for already."""
        key = owner, text
        if key in self._cache or key in self._started or self._closed or self._timeouts or not self._queue.empty():
            return
        self._started[key] = begun = self._enqueue(key)
        begun.add_done_callback(lambda _: self._forget_started(key))

    def _forget_started(self, key: Key) -> None:
        begun = self._started.pop(key)
        if not begun.cancelled():
            begun.exception()  # heard: nobody need have waited for it

    def _enqueue(self, key: Key) -> asyncio.Future[Embedding]:
        answer: asyncio.Future[Embedding] = asyncio.get_running_loop().create_future()
        self._queue.put(_Question(key, answer))
        return answer

    def close(self) -> None:
        """Lets the worker finish what is queued and ends it; gives up on a hung one. May be called twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._worker.join(CLOSE_TIMEOUT_S)

    def _fail_fast(self) -> None:
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")
        if self._timeouts >= TIMEOUTS_TO_FAIL_FAST:
            raise EmbedderUnavailable(f"the embedder has not answered {self._timeouts} times in a row")
        # Abandoned questions count until the worker has dropped them: they hold memory too.
        if self._queue.qsize() >= self._max_queue:
            raise EmbedderUnavailable(f"{self._max_queue} texts are waiting for the embedder already")

    def _work(self) -> None:
        """The worker thread: batch after batch until `None` comes."""
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            for part in self._batches(batch):
                if not self._answer(part):
                    return
            batch = part = []  # a worker that waits should hold nothing

    def _batches(self, batch: Sequence[_Question]) -> Iterator[list[_Question]]:
        """Those of `batch_limit` different texts each, in the order in which these were asked first."""
        asked: dict[Key, list[_Question]] = {}
        for question in batch:
            asked.setdefault(question.key, []).append(question)
        same = list(asked.values())
        for at in range(0, len(same), self._batch_limit):
            yield [question for each in same[at : at + self._batch_limit] for question in each]

    def _answer(self, questions: Sequence[_Question]) -> bool:
        """False: the loop has been closed, nobody waits any more."""
        wanted = [question for question in questions if not question.answer.done()]
        answer = self._encode(list(dict.fromkeys(question.key for question in wanted)))
        try:
            # One wake-up of the loop a call of the encoder.
            questions[0].answer.get_loop().call_soon_threadsafe(self._deliver, wanted, answer)
        except RuntimeError:
            return False
        return True

    def _next_batch(self) -> tuple[list[_Question], bool]:
        """Waits for one question, then takes what else is there. False: `None` came, it is the last batch."""
        batch: list[_Question] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == self._max_batch:
                return batch, True
            try:
                item = self._queue.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _encode(self, keys: Sequence[Key]) -> dict[Key, Embedding] | str:
        """Each with its embedding; or why there are none."""
        if not keys:
            return {}
        try:
            return dict(zip(keys, self._encoder.encode([text for _, text in keys]), strict=True))
        except EmbedderUnavailable as error:  # an encoder over a network says so itself, once
            return str(error)
        except Exception as error:
            # The type alone: a message may quote the prompt.
            LOG.error("the encoder failed on a batch of %d texts: %s", len(keys), type(error).__name__)
            return "the encoder failed on this batch"

    def _deliver(self, questions: Sequence[_Question], answer: dict[Key, Embedding] | str) -> None:
        """On the loop. An answer of any kind shows that the worker is alive."""
        self._timeouts = 0
        for key, embedding in ({} if isinstance(answer, str) else answer).items():
            if len(key[1]) <= RECENT_CHARACTERS:
                self._cache.put(key, embedding)
        self._resolve(deque(questions), answer)

    def _resolve(self, pending: deque[_Question], answer: dict[Key, Embedding] | str) -> None:
        """One caller a turn of the loop: what each then does takes up to a millisecond, and what has come for others
        meanwhile is read between two turns."""
        while pending:
            question = pending.popleft()
            if question.answer.done():
                continue
            if isinstance(answer, str):
                question.answer.set_exception(EmbedderUnavailable(answer))
            else:
                question.answer.set_result(answer[question.key])
            if pending:
                question.answer.get_loop().call_soon(self._resolve, pending, answer)
            return
