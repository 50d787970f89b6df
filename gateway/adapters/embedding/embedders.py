"""Embedders around a text encoder. One embeds in the caller; one batches texts for its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue

from gateway.adapters.system.thread_priority import MODEL_NICENESS, lower_priority
from gateway.bounded_cache import BoundedCache
from gateway.entries import Embedding
from gateway.errors import EmbedderUnavailable
from gateway.moving_average import moving_average
from gateway.ports import EncoderCpu, EncoderQueue, ImmediateEncoder, OwnedText, TextEncoder

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
            return self._encoder.encode_text(text)
        except Exception as error:
            LOG.error("the encoder failed on a text: %s", type(error).__name__)  # a message may quote the prompt
            raise EmbedderUnavailable("the encoder failed on this text") from None

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        try:
            return None if self._closed else self._encoder.encode_text(text)
        except Exception:  # `embed` reports the error
            return None

    async def embed_idle(self, texts: Sequence[str]) -> list[Embedding]:
        return [await self.embed(text) for text in texts]

    async def embed_deferred(self, texts: Sequence[OwnedText]) -> list[Embedding]:
        return [await self.embed(text, owner) for owner, text in texts]

    @property
    def cpu(self) -> EncoderCpu:
        """No passes of its own: they run in the caller's thread."""
        return EncoderCpu()

    @property
    def queue(self) -> EncoderQueue:
        """No text waits."""
        return EncoderQueue()

    def close(self) -> None:
        """Close the embedder. May be called twice."""
        self._closed = True


# Micro-batches: requests that arrive during one forward pass share the next one.
#
# Nothing waits on purpose. While the worker thread encodes one batch, questions queue up, and they form the next batch.
# A single question starts at once. If few texts fit in a pass of the encoder, callers of one pass do not wait for the
# rest of the batch (`batch_limit`).
#
# Texts that no client waits for have a lane of their own: those of learning, and questions whose entries get their
# vectors late. The worker takes them only where no request's text waits. So a request waits for one short pass of
# theirs at most. After a pass that had to share its core, the worker rests, so that the event loop has most of it.

Key = OwnedText
"""Owner and text. Embeddings are cached and shared per owner only: otherwise the time of an embedding would tell each
tenant which texts the others have sent lately."""

RECENT_TEXTS = 2048  # each 384 float32 and a short text: 4 MB

RECENT_CHARACTERS = 2048  # longer texts are not cached: this bounds the cache to 20 MB at 4 bytes a character

TIMEOUTS_TO_FAIL_FAST = 3

CLOSE_TIMEOUT_S = 1.0  # seconds that block the event loop; requests are drained by then, so the worker is idle or hung


IDLE_TIMEOUT_S = 30.0  # the longest wait for an idle encoder

IDLE_PASS_CHARACTERS = 1000  # in one pass of the idle lane, which a request may wait for: some 256 tokens, 10 ms

# Rest after a pass of the idle lane, as a multiple of the time that it waited for its core. Next to an event loop that
# always has work, a pass of 10 ms takes 20 ms, and a rest of 60 ms follows: the event loop has 7/8 of the core.
REST_FACTOR = 6.0


@dataclass(frozen=True, slots=True)
class _Question:
    key: Key
    answer: asyncio.Future[Embedding]
    learning: bool = False


class _Signal(Enum):
    """A word to the worker, in the queue of the requests."""

    WAKE = 1  # the idle lane has texts
    CLOSE = 2


def rest_after(wall_s: float, cpu_s: float) -> float:
    """Return the seconds to rest after a pass of the idle lane.

    The pass took `wall_s` seconds, and `cpu_s` seconds of CPU. The time between them counts up to `cpu_s` only, because
    an encoder on a server waits for its answer without a core of this machine.
    """
    return REST_FACTOR * max(0.0, min(wall_s - cpu_s, cpu_s))


class BatchingEmbedder:
    """`BatchingEmbedder` batches texts for a `TextEncoder` in one worker thread. It implements `Embedder`; use it from
    one event loop.

    It takes up to `max_batch` questions from the queue together, so that equal texts of one owner are encoded once. One
    call of the encoder has up to `batch_limit` texts, or all of them with None. Their callers then get their answers.
    At most `max_queue` questions wait, and a caller at most `timeout_s` seconds.

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
        self._queue: SimpleQueue[_Question | _Signal] = SimpleQueue()
        self._idle_lane: deque[_Question] = deque()  # texts that no client waits for
        self._requests_cpu_s = self._learning_cpu_s = 0.0  # of the worker's passes; only the worker writes them
        # The next four are written by the worker alone.
        self._text_s = 0.0  # moving average of the time that a text of a request takes in a pass
        self._in_hand = 0  # texts that left the queue, and wait for their pass
        self._in_pass = 0  # texts of requests in the pass in progress
        self._emptied = time.monotonic()  # when the queue was last seen empty
        self._idle_from = 0.0  # when the idle lane may go on (monotonic)
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
        if (embedding := self._cache.get(key)) is not None:
            return embedding
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

    async def embed_idle(self, texts: Sequence[str]) -> list[Embedding]:
        """Raise `EmbedderUnavailable` if closed, the encoder failed, or it was not idle within `IDLE_TIMEOUT_S`.

        Nothing is read from or put into the cache of requests: learning must not evict it, nor tell its contents.
        """
        return await self._embed_when_idle([("", text) for text in texts], learning=True)

    async def embed_deferred(self, texts: Sequence[OwnedText]) -> list[Embedding]:
        """Raise as `embed_idle`, and at once while the encoder owes a late answer. It is work of requests, which share
        its results."""
        if self._timeouts:
            raise EmbedderUnavailable(f"the embedder has not answered {self._timeouts} times in a row")
        embeddings = {key: embedding for key in texts if (embedding := self._cache.get(key)) is not None}
        unknown = [key for key in dict.fromkeys(texts) if key not in embeddings]
        embeddings |= zip(unknown, await self._embed_when_idle(unknown, learning=False), strict=True)
        return [embeddings[key] for key in texts]

    async def _embed_when_idle(self, keys: Sequence[Key], *, learning: bool) -> list[Embedding]:
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")
        if not keys:
            return []
        loop = asyncio.get_running_loop()
        questions = [_Question(key, loop.create_future(), learning) for key in dict.fromkeys(keys)]
        self._idle_lane.extend(questions)
        self._queue.put(_Signal.WAKE)
        answers = {question.key: question.answer for question in questions}
        try:
            _, late = await asyncio.wait(answers.values(), timeout=IDLE_TIMEOUT_S)
        finally:
            for answer in answers.values():
                answer.cancel()  # of those not answered yet: the worker then skips them
        if late:
            raise EmbedderUnavailable(f"the encoder was not idle within {IDLE_TIMEOUT_S:g} s")
        errors = [error for answer in answers.values() if (error := answer.exception()) is not None]
        if errors:
            raise errors[0]
        return [answers[key].result() for key in keys]

    @property
    def cpu(self) -> EncoderCpu:
        return EncoderCpu(self._requests_cpu_s, self._learning_cpu_s)

    @property
    def queue(self) -> EncoderQueue:
        """The times are numbers of texts, times the recent time of a text."""
        waiting = self._queue.qsize() + self._in_hand
        standing_s = time.monotonic() - self._emptied if waiting or self._in_pass else 0.0
        return EncoderQueue(waiting * self._text_s, self._in_pass * self._text_s, standing_s)

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
            self._queue.put(_Signal.CLOSE)
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
        """Run the worker thread: batch after batch until it is told to close."""
        lower_priority(MODEL_NICENESS)
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            self._in_hand = len(batch)
            for part in self._batches(batch):
                self._in_hand, self._in_pass = self._in_hand - len(part), len(part)
                if not self._answer(part):
                    return
            self._in_pass = 0
            if not batch and open_:
                wall, cpu, idle = time.monotonic(), time.thread_time(), self._next_idle_batch()
                if not self._answer(idle, learning=bool(idle) and idle[0].learning):
                    return
                now = time.monotonic()
                self._idle_from = now + rest_after(now - wall, time.thread_time() - cpu)
            batch = part = idle = []  # release the memory while the worker waits

    def _batches(self, batch: Sequence[_Question]) -> Iterator[list[_Question]]:
        """Yield parts of `batch_limit` different texts each, in the order of their first question."""
        questions: dict[Key, list[_Question]] = {}
        for question in batch:
            questions.setdefault(question.key, []).append(question)
        same = list(questions.values())
        for at in range(0, len(same), self._batch_limit):
            yield [question for each in same[at : at + self._batch_limit] for question in each]

    def _answer(self, questions: Sequence[_Question], *, learning: bool = False) -> bool:
        """Return False if the loop is closed, so that nobody waits."""
        if not questions:
            return True
        wanted = [question for question in questions if not question.answer.done()]
        answer = self._encode_measured(list(dict.fromkeys(question.key for question in wanted)), learning=learning)
        deliver = self._deliver_idle if learning else self._deliver
        try:
            # Wake the loop once per call of the encoder.
            questions[0].answer.get_loop().call_soon_threadsafe(deliver, wanted, answer)
        except RuntimeError:
            return False
        return True

    def _next_batch(self) -> tuple[list[_Question], bool]:
        """Wait for one question, then take all others in the queue. Return False with the last batch, after `CLOSE`
        came. The batch is empty where only the idle lane has texts."""
        batch: list[_Question] = []
        try:
            item = self._next_item()
            while item is not _Signal.CLOSE:
                if isinstance(item, _Question):
                    batch.append(item)
                if len(batch) == self._max_batch:
                    return batch, True
                item = self._queue.get_nowait()
        except Empty:
            return batch, True
        return batch, False

    def _next_item(self) -> _Question | _Signal:
        """Wait for a question or the end. Raise `Empty` where the idle lane has texts and its rest is over."""
        item: _Question | _Signal = _Signal.WAKE
        while item is _Signal.WAKE:
            was_empty, rest = self._queue.empty(), self._idle_from - time.monotonic()
            try:
                if not self._idle_lane:
                    item = self._queue.get()
                else:
                    item = self._queue.get(timeout=rest) if rest > 0 else self._queue.get_nowait()
            finally:
                if was_empty:
                    self._emptied = time.monotonic()
        return item

    def _next_idle_batch(self) -> list[_Question]:
        """Return texts of the idle lane for one pass, all of learning or none: one at least, and no more than
        `IDLE_PASS_CHARACTERS` in all."""
        lane, batch, characters = self._idle_lane, list[_Question](), 0
        while lane and len(batch) < self._batch_limit and (not batch or lane[0].learning is batch[0].learning):
            characters += len(lane[0].key[1])
            if batch and characters > IDLE_PASS_CHARACTERS:
                break
            batch.append(lane.popleft())
        return batch

    def _encode_measured(self, keys: Sequence[Key], *, learning: bool) -> dict[Key, Embedding] | str:
        """Encode, and add the time to the figures of requests or of learning.

        The CPU is that of this thread alone. An encoder with more threads, or on a server, takes as much more for
        requests as for learning, so their ratio stays true.
        """
        cpu, wall = time.thread_time(), time.monotonic()
        answer = self._encode(keys)
        cpu = time.thread_time() - cpu
        if learning:
            self._learning_cpu_s += cpu
        else:
            self._requests_cpu_s += cpu
            self._text_s = moving_average(self._text_s, (time.monotonic() - wall) / max(1, len(keys)))
        return answer

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

    def _deliver_idle(self, questions: Sequence[_Question], answer: dict[Key, Embedding] | str) -> None:
        """Deliver embeddings to learning."""
        self._timeouts = 0
        for question in questions:
            if question.answer.done():
                continue
            if isinstance(answer, str):
                question.answer.set_exception(EmbedderUnavailable(answer))
            else:
                question.answer.set_result(answer[question.key])

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
