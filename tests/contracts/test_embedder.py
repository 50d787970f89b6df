"""`BatchingEmbedder` over an encoder that answers when the test says so. No test sleeps."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from gateway.adapters.embedding import embedders
from gateway.adapters.embedding.embedders import REST_FACTOR, TIMEOUTS_TO_FAIL_FAST, BatchingEmbedder, rest_after
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.adapters.system.thread_priority import MODEL_NICENESS
from gateway.entries import Embedding
from gateway.errors import EmbedderUnavailable
from gateway.ports import EncoderQueue
from tests.fixtures.waiting import until

PATIENCE_S = 60.0  # for what must happen; nothing waits for it to pass


class ScriptedEncoder:
    """Records its batches. While `gate` is unset it hangs; texts that contain "bad" fail their batch."""

    dimension = 8
    fingerprint = "scripted"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)  # released once a batch, before the gate
        self.seen: Callable[[], object] = lambda: None  # called in each batch, behind the gate

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        self.batches.append(list(texts))
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        self.seen()
        if any("bad" in text for text in texts):
            raise RuntimeError("secret prompt")
        return HashEncoder(self.dimension).encode(texts)

    async def busy(self) -> None:
        """Returns once the worker is inside `encode`."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE_S)


@pytest.fixture
def encoder() -> Iterator[ScriptedEncoder]:
    scripted = ScriptedEncoder()
    yield scripted
    scripted.gate.set()


@pytest.fixture
async def time_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the loop's clock past every timeout."""
    loop = asyncio.get_running_loop()

    def skip() -> None:
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 2 * PATIENCE_S)

    return skip


def expected(text: str) -> Embedding:
    return HashEncoder(ScriptedEncoder.dimension).encode([text])[0]


async def queued(embedder: BatchingEmbedder, *texts: str) -> list[asyncio.Task[Embedding]]:
    """Callers that have put their question, in order."""
    tasks = [asyncio.create_task(embedder.embed(text)) for text in texts]
    await asyncio.sleep(0)  # lets each run up to its wait; passes no time
    return tasks


async def hung(encoder: ScriptedEncoder, embedder: BatchingEmbedder) -> asyncio.Task[Embedding]:
    """The worker is inside `encode` with one text; what comes now queues up."""
    encoder.gate.clear()
    while encoder.entered.acquire(blocking=False):  # earlier batches
        pass
    (first,) = await queued(embedder, "first")
    await encoder.busy()
    return first


async def test_a_lone_text_is_encoded_at_once(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    embedding = await embedder.embed("hello there")
    np.testing.assert_array_equal(embedding.vector, expected("hello there").vector)
    assert (embedder.dimension, embedder.fingerprint) == (encoder.dimension, encoder.fingerprint)
    embedder.close()


async def test_what_queues_up_during_a_batch_goes_into_the_next_one_together(encoder: ScriptedEncoder) -> None:
    """Each caller gets its own text's embedding."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "a", "b", "c")
    encoder.gate.set()
    for text, embedding in zip(["first", "a", "b", "c"], await asyncio.gather(first, *rest), strict=True):
        np.testing.assert_array_equal(embedding.vector, expected(text).vector)
    assert encoder.batches == [["first"], ["a", "b", "c"]]
    embedder.close()


async def test_a_batch_has_at_most_max_batch_texts(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, max_batch=2, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "a", "b", "c")
    encoder.gate.set()
    await asyncio.gather(first, *rest)
    assert encoder.batches == [["first"], ["a", "b"], ["c"]]
    embedder.close()


async def test_identical_texts_in_a_batch_are_encoded_once(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "same", "other", "same")
    encoder.gate.set()
    await asyncio.gather(first, *rest)
    assert encoder.batches[1] == ["same", "other"]
    embedder.close()


async def test_who_asked_first_does_not_wait_for_the_rest_of_a_batch(encoder: ScriptedEncoder) -> None:
    """`at_once=1`: a call of the encoder a text, those of equal texts together; each is answered when it is done."""
    embedder = BatchingEmbedder(encoder, batch_limit=1, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    a, b, again = await queued(embedder, "a", "b", "a")
    encoder.gate.set()
    np.testing.assert_array_equal((await b).vector, expected("b").vector)
    assert (await a).vector is (await again).vector
    await first
    assert encoder.batches == [["first"], ["a"], ["b"]]
    embedder.close()


async def test_callers_of_one_pass_go_on_in_turns_of_their_own(encoder: ScriptedEncoder) -> None:
    """What has come for others is looked at between them."""
    embedder, loop, order = BatchingEmbedder(encoder, timeout_s=PATIENCE_S), asyncio.get_running_loop(), list[str]()
    first = await hung(encoder, embedder)

    async def caller(text: str) -> None:
        await embedder.embed(text)
        order.append(text)
        loop.call_soon(order.append, "others")

    tasks = [asyncio.create_task(caller(text)) for text in ("a", "b", "c")]
    await asyncio.sleep(0)
    encoder.gate.set()
    await asyncio.gather(first, *tasks)
    assert encoder.batches == [["first"], ["a", "b", "c"]]
    assert order[:4] == ["a", "others", "b", "others"]
    embedder.close()


async def test_a_text_that_was_begun_is_encoded_once(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    encoder.gate.clear()
    embedder.begin("a")
    await encoder.busy()
    embedder.begin("a")
    one, other = await queued(embedder, "a", "a")
    one.cancel()  # takes nothing from who waits for the same
    encoder.gate.set()
    np.testing.assert_array_equal((await other).vector, expected("a").vector)
    embedder.begin("a")  # known by now
    assert encoder.batches == [["a"]]
    embedder.close()


async def test_nothing_is_begun_behind_texts_that_are_asked_for(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    (second,) = await queued(embedder, "second")
    embedder.begin("third")
    encoder.gate.set()
    await asyncio.gather(first, second)
    assert encoder.batches == [["first"], ["second"]]
    embedder.close()


async def test_what_was_begun_and_failed_is_said_to_who_asks_for_it_alone(encoder: ScriptedEncoder) -> None:
    """A failure that nobody asked about is no complaint of the event loop (filterwarnings are errors here)."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    encoder.gate.clear()
    embedder.begin("bad")
    await encoder.busy()
    (asking,) = await queued(embedder, "bad")
    encoder.gate.set()
    with pytest.raises(EmbedderUnavailable):
        await asking
    embedder.begin("bad again")
    await encoder.busy()
    assert (await embedder.embed("good")).vector.shape == (encoder.dimension,)
    embedder.close()


async def test_a_recent_text_is_not_encoded_again(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    assert await embedder.embed("a") is await embedder.embed("a")
    assert encoder.batches == [["a"]]
    embedder.close()


async def test_a_full_queue_refuses_at_once(encoder: ScriptedEncoder) -> None:
    """More waiting would only be more lateness: a miss now is better. Those who wait already are served."""
    embedder = BatchingEmbedder(encoder, max_queue=2, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "a", "b")
    with pytest.raises(EmbedderUnavailable, match=r"^2 texts are waiting for the embedder already$"):
        await embedder.embed("c")
    encoder.gate.set()
    await asyncio.gather(first, *rest)
    embedder.close()


async def test_a_hung_encoder_is_a_timeout_and_not_a_hang(
    encoder: ScriptedEncoder, time_out: Callable[[], None]
) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    time_out()
    with pytest.raises(EmbedderUnavailable, match=r"^no embedding within 60 s$"):
        await first
    encoder.gate.set()
    embedder.close()


async def test_repeated_timeouts_fail_fast_until_the_worker_answers_again(
    encoder: ScriptedEncoder, time_out: Callable[[], None]
) -> None:
    """A hung encoder must not cost every request its whole timeout; one sign of life ends that."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    waiting = await hung(encoder, embedder)
    for i in range(TIMEOUTS_TO_FAIL_FAST):
        time_out()
        with pytest.raises(EmbedderUnavailable, match="within"):
            await waiting
        if i < TIMEOUTS_TO_FAIL_FAST - 1:
            (waiting,) = await queued(embedder, f"text {i}")
    with pytest.raises(EmbedderUnavailable, match=r"^the embedder has not answered 3 times in a row$"):
        await embedder.embed("refused at once")

    encoder.gate.set()
    embedding = await answered(embedder, "well again")
    np.testing.assert_array_equal(embedding.vector, expected("well again").vector)
    assert encoder.batches == [["first"], ["well again"]], "abandoned texts are not encoded"
    embedder.close()


async def answered(embedder: BatchingEmbedder, text: str) -> Embedding:
    """Asks until the embedder accepts; the worker's sign of life arrives through the loop."""
    while True:
        try:
            return await embedder.embed(text)
        except EmbedderUnavailable:
            await asyncio.sleep(0)


async def test_a_cancelled_caller_is_dropped_before_encoding(encoder: ScriptedEncoder) -> None:
    """A client that has gone costs no forward pass, and the others in its batch do not notice."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    gone, stays = await queued(embedder, "gone", "stays")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    encoder.gate.set()
    await asyncio.gather(first, stays)
    assert encoder.batches == [["first"], ["stays"]]
    embedder.close()


async def test_a_caller_cancelled_during_its_batch_leaves_the_others_served(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    (second,) = await queued(embedder, "second")
    first.cancel()
    encoder.gate.set()
    np.testing.assert_array_equal((await second).vector, expected("second").vector)
    embedder.close()


async def test_an_encoder_error_fails_its_batch_only(
    encoder: ScriptedEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    """The message of the error may quote a prompt: neither the log nor the exception repeats it."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    with pytest.raises(EmbedderUnavailable, match=r"^the encoder failed on this batch$"):
        await embedder.embed("a bad text")
    assert (await embedder.embed("a good text")).tokens == 3
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    embedder.close()


async def test_every_caller_of_a_failed_batch_gets_an_error_of_its_own(encoder: ScriptedEncoder) -> None:
    """A shared exception would collect every caller's traceback."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "bad", "innocent")
    encoder.gate.set()
    await first
    errors = await asyncio.gather(*rest, return_exceptions=True)
    assert [type(error) for error in errors] == [EmbedderUnavailable, EmbedderUnavailable]
    assert errors[0] is not errors[1]
    embedder.close()


async def test_only_a_recent_text_of_the_same_owner_needs_no_wait(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    assert embedder.embed_nowait("hello there", "acme") is None
    known = await embedder.embed("hello there", "acme")
    assert embedder.embed_nowait("hello there", "acme") is known
    assert embedder.embed_nowait("hello", "acme") is None
    assert embedder.embed_nowait("hello there", "bravo") is None
    assert embedder.embed_nowait("hello there") is None
    embedder.close()


async def test_after_close_nothing_is_accepted(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    embedder.close()
    embedder.close()
    with pytest.raises(EmbedderUnavailable, match=r"^the embedder is closed$"):
        await embedder.embed("a")


async def test_close_lets_the_queued_finish(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    (second,) = await queued(embedder, "second")
    closing = asyncio.create_task(asyncio.to_thread(embedder.close))
    encoder.gate.set()
    await asyncio.gather(first, second, closing)
    assert encoder.batches == [["first"], ["second"]]


def test_a_worker_outlives_a_loop_that_has_been_closed(encoder: ScriptedEncoder) -> None:
    """A process that ends in the middle of a batch ends without a traceback from the thread."""

    async def abandoned() -> BatchingEmbedder:
        embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
        (await hung(encoder, embedder)).cancel()
        return embedder

    embedder = asyncio.run(abandoned())
    encoder.gate.set()
    embedder.close()
    assert encoder.batches == [["first"]]


async def learning(embedder: BatchingEmbedder, *texts: str) -> asyncio.Task[list[Embedding]]:
    task = asyncio.create_task(embedder.embed_idle(texts))
    await asyncio.sleep(0)  # lets it run up to its wait; passes no time
    return task


async def test_texts_of_learning_wait_for_those_of_requests_and_go_together(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    later = await learning(embedder, "x", "y")
    rest = await queued(embedder, "a", "b")
    encoder.gate.set()
    await asyncio.gather(first, *rest)
    for text, embedding in zip(["x", "y"], await later, strict=True):
        np.testing.assert_array_equal(embedding.vector, expected(text).vector)
    assert encoder.batches == [["first"], ["a", "b"], ["x", "y"]]
    assert embedder.embed_nowait("x") is None, "the cache belongs to requests"
    assert embedder.cpu.requests_s > 0
    assert embedder.cpu.learning_s > 0
    embedder.close()


async def test_deferred_texts_wait_for_clients_and_share_the_cache_of_requests(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    learnt = await learning(embedder, "l")
    deferred = asyncio.create_task(embedder.embed_deferred([("acme", "x"), ("acme", "y"), ("acme", "x")]))
    await asyncio.sleep(0)
    rest = await queued(embedder, "a")
    encoder.gate.set()
    await asyncio.gather(first, learnt, *rest)
    found = await deferred
    for text, embedding in zip("xyx", found, strict=True):
        np.testing.assert_array_equal(embedding.vector, expected(text).vector)
    assert encoder.batches == [["first"], ["a"], ["l"], ["x", "y"]]
    assert embedder.embed_nowait("x", "acme") is found[0]
    assert embedder.embed_nowait("x", "other") is None, "no tenant sees what another one has sent"
    assert await embedder.embed_deferred([("acme", "x")]) == [found[0]]
    assert len(encoder.batches) == 4
    embedder.close()


async def test_a_pass_of_learning_is_short(encoder: ScriptedEncoder) -> None:
    """A request may have to wait for it."""
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    long = [letter * 400 for letter in "xyz"]
    later = await learning(embedder, *long)
    encoder.gate.set()
    await asyncio.gather(first, later)
    assert encoder.batches[1:] == [long[:2], long[2:]]
    embedder.close()


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "rest"),
    [(0.010, 0.010, 0.0), (0.020, 0.010, 0.010), (0.080, 0.010, 0.010), (0.080, 0.0, 0.0), (0.009, 0.010, 0.0)],
)
def test_a_pass_rests_for_the_core_that_it_shared_not_for_a_server(wall_s: float, cpu_s: float, rest: float) -> None:
    assert rest_after(wall_s, cpu_s) == pytest.approx(REST_FACTOR * rest)


async def test_a_request_does_not_wait_for_a_rest_and_texts_of_learning_do(
    encoder: ScriptedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedders, "REST_FACTOR", 1e9)
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    encoder.gate.clear()
    learnt = await learning(embedder, "x")
    await encoder.busy()  # the pass waits at the gate, as one that shares its core
    encoder.gate.set()
    await learnt
    later = await learning(embedder, "y")
    await embedder.embed("a")
    await embedder.embed("b")
    assert encoder.batches == [["x"], ["a"], ["b"]]
    later.cancel()
    embedder.close()


async def test_learning_hears_of_a_failure_and_of_the_end(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, timeout_s=PATIENCE_S)
    with pytest.raises(EmbedderUnavailable, match="failed on this batch"):
        await embedder.embed_idle(["good", "bad"])
    assert await embedder.embed_idle([]) == []
    embedder.close()
    with pytest.raises(EmbedderUnavailable, match="closed"):
        await embedder.embed_idle(["late"])


async def test_the_expected_wait_grows_with_the_queue(encoder: ScriptedEncoder) -> None:
    embedder = BatchingEmbedder(encoder, batch_limit=2, timeout_s=PATIENCE_S)
    await embedder.embed("once")
    await until(lambda: embedder.queue == EncoderQueue())
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "a", "b", "c")
    queue = embedder.queue
    assert queue.wait_s == 3 * embedder._text_s > 0
    assert queue.pass_s == embedder._text_s
    assert 0 < queue.standing_s < embedder.queue.standing_s
    encoder.gate.set()
    await asyncio.gather(first, *rest)
    embedder.close()


async def test_texts_that_left_the_queue_wait_until_their_pass_begins(encoder: ScriptedEncoder) -> None:
    """The worker takes all four at once, and encodes two of them in a pass."""
    embedder = BatchingEmbedder(encoder, batch_limit=2, timeout_s=PATIENCE_S)
    first = await hung(encoder, embedder)
    rest = await queued(embedder, "a", "b", "c", "d")
    seen = list[EncoderQueue]()
    encoder.seen = lambda: seen.append(embedder.queue)
    encoder.gate.set()
    await asyncio.gather(first, *rest)
    text_s = embedder._text_s
    embedder.close()
    assert text_s > 0
    assert [(queue.wait_s > 0, queue.pass_s > 0) for queue in seen[1:]] == [(True, True), (False, True)]


async def test_the_worker_yields_its_core_to_the_event_loop(encoder: ScriptedEncoder) -> None:
    embedder, priorities = BatchingEmbedder(encoder, timeout_s=PATIENCE_S), list[int]()
    encoder.seen = lambda: priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    await embedder.embed("a")
    embedder.close()
    assert priorities == [os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + MODEL_NICENESS]
