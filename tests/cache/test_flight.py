"""One answer on its way to any number of readers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

import pytest

from gateway.cache import flight as flights
from gateway.cache.flight import SharedCall
from gateway.errors import BackendError, UpstreamStreamError
from gateway.messages import ByteStream, Comment, Event, EventStream, FullBody, Provenance, Response
from gateway.outcomes import Verdict
from gateway.streams import BufferedStream, ClosingStream, Comments, ObservedStream, close_body, close_stream
from gateway.unread_memory import UnreadMemory


class Source:
    """A backend's stream: gives what `push` has put there, and knows whether it was closed."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.taken = 0
        self.closed = False
        self.ended = asyncio.Event()

    def push(self, *items: bytes | Exception | None) -> None:
        for item in items:
            self.items.put_nowait(item)

    async def __call__(self) -> AsyncGenerator[Event, None]:
        while (item := await self.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self.taken += 1
            yield Event(item)

    def body(self) -> EventStream:
        def over() -> None:
            self.closed = True
            self.ended.set()

        return EventStream(ClosingStream(self(), over))


async def landing(body: EventStream | ByteStream | FullBody) -> Response:
    return Response(200, (("x-a", "b"),), body)


def stream_of(response: Response) -> AsyncIterator[Event]:
    assert isinstance(response.body, EventStream)
    return response.body.events


async def all_of(response: Response) -> list[bytes]:
    return [event.data async for event in stream_of(response)]


async def take(response: Response, count: int) -> list[bytes]:
    events = stream_of(response)
    return [(await anext(events)).data for _ in range(count)]


def letters(text: str) -> Iterable[bytes]:
    return [letter.encode() for letter in text]


async def until_idle() -> None:
    """Until nothing is left for the loop to do but to wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_every_reader_gets_the_whole_answer() -> None:
    source = Source()
    flight = SharedCall(landing(source.body()))
    readers = [await flight.join() for _ in range(5)]
    source.push(*letters("abc"), None)
    assert await asyncio.gather(*map(all_of, readers)) == [[b"a", b"b", b"c"]] * 5
    assert source.taken == 3
    assert readers[0].headers == (("x-a", "b"),)
    assert source.closed


async def test_a_late_reader_gets_the_past_and_then_the_live_tail() -> None:
    source = Source()
    flight = SharedCall(landing(source.body()))
    first = await flight.join()
    source.push(*letters("ab"))
    assert await take(first, 2) == [b"a", b"b"]
    late = await flight.join()
    assert await take(late, 2) == [b"a", b"b"]
    source.push(*letters("c"), None)
    assert await asyncio.gather(all_of(first), all_of(late)) == [[b"c"], [b"c"]]


async def test_a_whole_answer_is_handed_to_all() -> None:
    gate: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    flight = SharedCall(gate)
    readers = [asyncio.create_task(flight.join()) for _ in range(3)]
    await until_idle()
    gate.set_result(Response(200, (), FullBody(b"x")))
    assert [response.body for response in await asyncio.gather(*readers)] == [FullBody(b"x")] * 3


async def test_bytes_are_shared_as_well_as_events() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"

    flight = SharedCall(landing(ByteStream(chunks())))
    bodies = [(await flight.join()).body for _ in range(2)]
    assert [[chunk async for chunk in body.chunks] for body in bodies] == [[b"one", b"two"]] * 2


async def test_an_error_before_the_head_is_everybodys() -> None:
    async def fail() -> Response:
        raise BackendError("no")

    flight = SharedCall(fail())
    outcomes = await asyncio.gather(flight.join(), flight.join(), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["no", "no"]
    assert not flight.is_joinable


async def test_a_break_reaches_each_reader_after_what_came_before_it() -> None:
    source = Source()
    flight = SharedCall(landing(source.body()))
    readers = [await flight.join() for _ in range(2)]
    source.push(b"a", UpstreamStreamError("broke off"))
    for reader in readers:
        assert await take(reader, 1) == [b"a"]
        with pytest.raises(UpstreamStreamError, match="broke off"):
            await take(reader, 1)
    assert not flight.is_joinable
    assert source.closed


async def test_a_reader_that_leaves_takes_nothing_from_the_others() -> None:
    source = Source()
    flight = SharedCall(landing(source.body()))
    leader, follower = await flight.join(), await flight.join()
    source.push(b"a")
    assert await take(leader, 1) == [b"a"]
    await close_body(leader.body)
    source.push(b"b", None)
    assert await all_of(follower) == [b"a", b"b"]


async def test_the_last_reader_that_leaves_cancels_the_call() -> None:
    source = Source()
    flight = SharedCall(landing(source.body()))
    readers = [await flight.join() for _ in range(2)]
    source.push(b"a")
    for reader in readers:
        assert not source.closed
        await close_body(reader.body)
    await source.ended.wait()
    assert not flight.is_joinable
    await asyncio.gather(flight.task, return_exceptions=True)
    assert flight.task.cancelled()


async def test_a_reader_that_never_began_to_read_leaves_too() -> None:
    """A generator that was not started runs no `finally`: the place of such a reader must not be kept."""
    source = Source()
    flight = SharedCall(landing(source.body()))
    reader = await flight.join()
    await close_stream(stream_of(reader))
    await source.ended.wait()


async def test_leaving_before_the_head_cancels_the_call_once_nobody_waits() -> None:
    called, cancelled = asyncio.Event(), asyncio.Event()

    async def call() -> Response:
        called.set()
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    flight = SharedCall(call())
    leader, follower = asyncio.create_task(flight.join()), asyncio.create_task(flight.join())
    await called.wait()
    leader.cancel()
    await until_idle()
    assert not cancelled.is_set()
    assert flight.is_joinable
    follower.cancel()
    await cancelled.wait()
    assert not flight.is_joinable, "a newcomer must not join a call that is being cancelled"


async def test_a_slow_reader_holds_nobody_up() -> None:
    source = Source()
    flight = SharedCall(landing(source.body()))
    slow, fast = await flight.join(), await flight.join()
    source.push(*letters("abcdef"), None)
    assert await all_of(fast) == list(letters("abcdef"))
    assert await all_of(slow) == list(letters("abcdef"))


async def test_beyond_the_buffer_the_backend_is_read_no_faster_than_the_slowest_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 4)
    source = Source()
    flight = SharedCall(landing(source.body()))
    slow, fast = await flight.join(), await flight.join()
    source.push(*letters("abcdefghij"), None)
    assert await take(fast, 5) == list(letters("abcde"))
    await until_idle()
    assert source.taken == 5, "one item beyond the bound, then it waits for room"
    assert await take(slow, 3) == list(letters("abc"))
    assert await take(fast, 1) == [b"f"]
    await until_idle()
    assert source.taken <= 8
    rest = await asyncio.gather(all_of(slow), all_of(fast))
    assert rest == [list(letters("defghij")), list(letters("ghij"))]


class Remarks:
    """A backend's stream that has many empty comments, and nothing else."""

    can_notify, drained, complete = False, True, False

    def __init__(self, count: int) -> None:
        self.left = count

    def is_finished(self) -> bool:
        return False

    def take(self) -> Sequence[Event] | None:
        if not self.left:
            return None
        self.left -= 1
        return Comments([Comment(b"")])

    async def wait(self) -> None:
        await asyncio.get_running_loop().create_future()

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        raise AssertionError("it cannot notify")


async def test_empty_comments_that_nobody_reads_are_not_collected_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 4 * flights.COMMENT_BYTES)
    source = Remarks(100)
    flight = SharedCall(landing(EventStream(ObservedStream(source))))
    reader = await flight.join()
    await until_idle()
    assert source.left >= 90
    await close_body(reader.body)


async def test_a_flight_that_has_let_go_of_its_beginning_takes_no_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 2)
    source = Source()
    flight = SharedCall(landing(source.body()))
    reader = await flight.join()
    source.push(*letters("abcdef"))
    assert await take(reader, 6) == list(letters("abcdef"))
    await until_idle()
    assert not flight.is_joinable
    source.push(None)
    assert await all_of(reader) == []


async def test_a_stalled_reader_is_cut_off_when_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 2)
    monkeypatch.setattr(flights, "MAX_STALL_S", 0)
    source = Source()
    flight = SharedCall(landing(source.body()))
    stalled, lively = await flight.join(), await flight.join()
    source.push(*letters("abcdefgh"), None)
    assert await all_of(lively) == list(letters("abcdefgh"))
    with pytest.raises(UpstreamStreamError, match="too slowly"):
        await all_of(stalled)


async def test_a_lone_slow_reader_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds nobody up but itself."""
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 2)
    monkeypatch.setattr(flights, "MAX_STALL_S", 0)
    source = Source()
    flight = SharedCall(landing(source.body()))
    reader = await flight.join()
    source.push(*letters("abcdefgh"), None)
    assert await take(reader, 1) == [b"a"]
    await until_idle()  # many times the longest stall
    assert await all_of(reader) == list(letters("bcdefgh"))


async def test_when_every_reader_has_left_a_full_buffer_does_not_keep_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 2)
    source = Source()
    flight = SharedCall(landing(source.body()))
    reader = await flight.join()
    source.push(*letters("abcdefgh"))
    await until_idle()
    await close_body(reader.body)
    await source.ended.wait()


async def test_a_stream_that_lands_before_anybody_has_joined_is_read_whole() -> None:
    """A semantic hit is such a stream, and its connection joins in the next iteration of the loop."""
    memory, items = UnreadMemory(1_000_000), tuple(Event(b"%d" % number) for number in range(7))

    async def answer() -> Response:
        return Response(200, (), EventStream(BufferedStream(items)), Provenance(Verdict.SEMANTIC))

    flight = SharedCall(answer(), None, memory)
    await flight.task
    response = await flight.join()
    assert isinstance(response.body, EventStream)
    assert tuple([event async for event in response.body.events]) == items
    await close_body(response.body)
    assert memory.used == 0


async def test_a_flight_that_nobody_joins_gives_its_memory_back() -> None:
    memory = UnreadMemory(1_000_000)

    async def answer() -> Response:
        return Response(200, (), EventStream(BufferedStream((Event(b"one"),))), Provenance(Verdict.SEMANTIC))

    flight = SharedCall(answer(), None, memory)
    await flight.task
    assert memory.used > 0
    del flight
    gc.collect()
    assert memory.used == 0
