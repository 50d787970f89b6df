"""Embedders around a text encoder. One embeds in the caller; one batches texts for its own thread."""

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
    """`InlineEmbedder` embeds in the caller. It implements `Embedder`."""

    def __init__(self, encoder: ImmediateEncoder) -> None:
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._closed = False

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """Raise `EmbedderUnavailable` if the embedder is closed or the encoder failed."""
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
        except Exception:  # `embed` reports the error
            return None

    def close(self) -> None:
        """Close the embedder. May be called twice."""
        self._closed = True


# Micro-batches: requests that arrive during one forward pass share the next one.
#
# Nothing waits on purpose. While the worker thread encodes one batch, questions queue up, and they form the next batch.
# A single question starts at once. If few texts fit in a pass of the encoder, callers of one pass do not wait for the
# rest of the batch (`batch_limit`).

Key = tuple[str, str]
"""Owner and text. Embeddings are cached and shared per owner only: otherwise the time of an embedding would tell each
tenant which texts the others have sent lately."""

RECENT_TEXTS = 2048  # each 384 float32 and a short text: 4 MB

RECENT_CHARACTERS = 2048  # longer texts are not cached: this bounds the cache to 20 MB at 4 bytes a character

TIMEOUTS_TO_FAIL_FAST = 3

CLOSE_TIMEOUT_S = 1.0  # seconds that block the event loop; requests are drained by then, so the worker is idle or hung


@dataclass(frozen=True, slots=True)
class _Question:
    key: Key
    answer: asyncio.Future[Embedding]


class BatchingEmbedder:
    """`BatchingEmbedder` batches texts for a `TextEncoder` in one worker thread. It implements `Embedder`; use it from
    one event loop.

    - `max_batch`: questions taken from the queue together, so that equal texts of one owner are encoded once.
    - `batch_limit`: texts in one call of the encoder, whose callers then get their answers; None: all of them.
    - `max_queue`: maximum number of waiting questions.
    - `timeout_s`: maximum wait of a caller in seconds.

    After `TIMEOUTS_TO_FAIL_FAST` timeouts in a row, callers fail at once until the worker answers again.
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
        self._timeouts = 0  # in a row, since the worker's last answer
        self._closed = False
        # A daemon, so that a hung encoder does not keep the process from ending.
        self._worker = threading.Thread(target=self._work, name="embedder", daemon=True)
        self._worker.start()

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """Raise `EmbedderUnavailable` if closed, the queue is full, or the encoder failed or is too slow."""
        key = owner, text
        if (known := self._cache.get(key)) is not None:
            return known
        if (begun := self._started.get(key)) is not None:
            answer = asyncio.shield(begun)  # other callers may await it, too
        else:
            self._fail_fast()
            answer = self._enqueue(key)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer  # cancelled with its caller: the worker then skips it
        except TimeoutError:
            self._timeouts += 1
            raise EmbedderUnavailable(f"no embedding within {self._timeout_s:g} s") from None

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        return self._cache.get((owner, text))

    def begin(self, text: str, owner: str = "") -> None:
        """Implement `EagerEmbedder`. Do nothing if other texts wait: those are certainly needed."""
        key = owner, text
        if key in self._cache or key in self._started or self._closed or self._timeouts or not self._queue.empty():
            return
        self._started[key] = begun = self._enqueue(key)
        begun.add_done_callback(lambda _: self._forget_started(key))

    def _forget_started(self, key: Key) -> None:
        begun = self._started.pop(key)
        if not begun.cancelled():
            begun.exception()  # mark the exception as retrieved: perhaps nobody awaited it

    def _enqueue(self, key: Key) -> asyncio.Future[Embedding]:
        answer: asyncio.Future[Embedding] = asyncio.get_running_loop().create_future()
        self._queue.put(_Question(key, answer))
        return answer

    def close(self) -> None:
        """Let the worker finish the queue, and stop it. Give up on a hung worker. May be called twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._worker.join(CLOSE_TIMEOUT_S)

    def _fail_fast(self) -> None:
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")
        if self._timeouts >= TIMEOUTS_TO_FAIL_FAST:
            raise EmbedderUnavailable(f"the embedder has not answered {self._timeouts} times in a row")
        # Abandoned questions count until the worker drops them, because they use memory.
        if self._queue.qsize() >= self._max_queue:
            raise EmbedderUnavailable(f"{self._max_queue} texts are waiting for the embedder already")

    def _work(self) -> None:
        """Run the worker thread: batch after batch until `None` comes."""
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            for part in self._batches(batch):
                if not self._answer(part):
                    return
            batch = part = []  # release the memory while the worker waits

    def _batches(self, batch: Sequence[_Question]) -> Iterator[list[_Question]]:
        """Yield parts of `batch_limit` different texts each, in the order of their first question."""
        asked: dict[Key, list[_Question]] = {}
        for question in batch:
            asked.setdefault(question.key, []).append(question)
        same = list(asked.values())
        for at in range(0, len(same), self._batch_limit):
            yield [question for each in same[at : at + self._batch_limit] for question in each]

    def _answer(self, questions: Sequence[_Question]) -> bool:
        """Return False if the loop is closed, so that nobody waits."""
        wanted = [question for question in questions if not question.answer.done()]
        answer = self._encode(list(dict.fromkeys(question.key for question in wanted)))
        try:
            # Wake the loop once per call of the encoder.
            questions[0].answer.get_loop().call_soon_threadsafe(self._deliver, wanted, answer)
        except RuntimeError:
            return False
        return True

    def _next_batch(self) -> tuple[list[_Question], bool]:
        """Wait for one question, then take all others in the queue. Return False with the last batch, after `None`
        came."""
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
        """Return the embedding of each key, or an error message."""
        if not keys:
            return {}
        try:
            return dict(zip(keys, self._encoder.encode([text for _, text in keys]), strict=True))
        except EmbedderUnavailable as error:  # an encoder over a network: its message is passed on, and already logged
            return str(error)
        except Exception as error:
            # Log only the type: the message may quote the prompt.
            LOG.error("the encoder failed on a batch of %d texts: %s", len(keys), type(error).__name__)
            return "the encoder failed on this batch"

    def _deliver(self, questions: Sequence[_Question], answer: dict[Key, Embedding] | str) -> None:
        """Deliver the answers, on the event loop. Any answer shows that the worker is alive."""
        self._timeouts = 0
        for key, embedding in ({} if isinstance(answer, str) else answer).items():
            if len(key[1]) <= RECENT_CHARACTERS:
                self._cache.put(key, embedding)
        self._resolve(deque(questions), answer)

    def _resolve(self, pending: deque[_Question], answer: dict[Key, Embedding] | str) -> None:
        """Resolve one caller per loop iteration. Each then works for up to a millisecond, and between two iterations
        the loop reads sockets for other requests."""
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
