"""A stream with its taps is what a nest of generators would be, whoever drives it and however its items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamStreamError
from gateway.streams import ClosingStream, ObservedStream, StreamObserver, as_observed, pump, wait_ready

BROKEN = UpstreamStreamError("it broke off")
ROUNDS = 200  # of the loop: more than any case takes


@dataclass
class Scripted:
    """A source that tells. `batches` come one after the other when `step` is called; then the end, or a break."""

    batches: list[list[int]]
    breaks: bool = False
    ends_with_its_last: bool = False  # the end comes in the same read as the last batch
    come: list[int] = field(default_factory=list)
    over: bool = False
    drained: bool = False
    wake: Callable[[], None] | None = None
    complete: bool = False  # its end marker was taken
    can_notify: ClassVar[bool] = True

    def is_finished(self) -> bool:
        return False

    def step(self) -> None:
        if self.over:  # it has told of that
            return
        if self.batches:
            self.come += self.batches.pop(0)
        else:
            self.over = True
        if self.ends_with_its_last and not self.batches:
            self.over = True
        if self.wake is not None:
            self.wake()

    def take(self) -> Sequence[int] | None:
        if self.come:
            come, self.come = self.come, []
            self.drained = not self.over
            return come
        if not self.over:
            return None
        if self.breaks:
            raise BROKEN
        return ()

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        self.wake = wake

    async def wait(self) -> None:
        await wait_ready(self)


@dataclass
class Noting:
    """A tap that notes what it sees. `hides`: what it does not let pass; `says`: what it has to say of a break."""

    name: str
    hides: frozenset[int]
    says: tuple[int, ...] | None
    notes: list[str]
    saw: list[int] = field(default_factory=list)

    def tap(self) -> StreamObserver[int]:
        return StreamObserver(self._saw, self._ended, self._broke, lambda: self.notes.append(f"{self.name} closed"))

    def _saw(self, items: Sequence[int]) -> Sequence[int]:
        self.saw += items
        return [item for item in items if item not in self.hides]

    async def _ended(self) -> None:
        await asyncio.sleep(0)
        self.notes.append(f"{self.name} ended")

    def _broke(self, error: UpstreamStreamError) -> Sequence[int] | None:
        self.notes.append(f"{self.name} broke")
        return self.says

    async def generator(self, inner: ClosingStream[int]) -> AsyncGenerator[int, None]:
        """The same, as the stages had it before there were taps."""
        try:
            async for item in inner:
                self.saw.append(item)
                if item not in self.hides:
                    yield item
        except UpstreamStreamError as error:
            for item in self._broke(error) or ():
                yield item
            if self.says is None:
                raise
            return
        await self._ended()


@dataclass(frozen=True)
class Case:
    batches: list[list[int]]
    breaks: bool
    taps: list[tuple[frozenset[int], tuple[int, ...] | None]]

    def noting(self, notes: list[str]) -> list[Noting]:
        return [Noting(f"tap {place}", hides, says, notes) for place, (hides, says) in enumerate(self.taps)]


ITEMS = st.integers(0, 5)
CASES = st.builds(
    Case,
    st.lists(st.lists(ITEMS, min_size=1, max_size=4), max_size=5),
    st.booleans(),
    st.lists(st.tuples(st.frozensets(ITEMS, max_size=3), st.none() | st.tuples(ITEMS)), max_size=4),
)
Seen = tuple[list[int], bool, list[list[int]], list[str]]


async def in_generators(case: Case) -> Seen:
    """-> (what came, whether it broke, what each tap saw, what else they noted)"""

    async def source() -> AsyncGenerator[int, None]:
        for batch in case.batches:
            for item in batch:
                yield item
        if case.breaks:
            raise BROKEN

    notes: list[str] = []
    taps, stream = case.noting(notes), ClosingStream(source())
    for tap in taps:
        stream = ClosingStream(tap.generator(stream), lambda tap=tap: notes.append(f"{tap.name} closed"), source=stream)
    came: list[int] = []
    try:
        async for item in stream:
            came.append(item)  # noqa: PERF401 - what came before a break counts
    except UpstreamStreamError:
        return came, True, [tap.saw for tap in taps], notes
    return came, False, [tap.saw for tap in taps], notes


async def in_a_flow(case: Case, how: str, room: list[bool]) -> Seen:
    can_notify, single = how != "drawn", how == "item by item"
    notes: list[str] = []
    taps = case.noting(notes)
    source = Scripted([list(batch) for batch in case.batches], case.breaks, how == "the end with its last")
    flow = ObservedStream(source, *[tap.tap() for tap in taps]) if can_notify else as_observed(_drawn(case))
    for tap in () if can_notify else taps:
        flow.tap(tap.tap())
    came: list[int] = []
    takes = iter(room)

    def write(items: Sequence[int]) -> bool:
        assert items
        came.extend(items)
        return next(takes, True)

    async def each() -> None:
        async for item in flow:
            came.append(item)  # noqa: PERF401 - what came before a break counts

    async def more_room() -> None:
        before = len(came)
        for _ in range(5):
            source.step()
            await asyncio.sleep(0)
        assert len(came) == before, "nothing is taken while there is no room"

    driven = asyncio.create_task(each() if single else pump(flow, write, more_room))
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
        source.step()
    assert driven.done(), "it was not told of all that came"
    try:
        await driven
    except UpstreamStreamError:
        return came, True, [tap.saw for tap in taps], notes
    finally:
        before = list(notes)
        await flow.aclose()
        await flow.aclose()
        assert notes == before or driven.exception() is not None, "what has ended is closed already"
    return came, False, [tap.saw for tap in taps], notes


async def _drawn(case: Case) -> AsyncGenerator[int, None]:
    for batch in case.batches:
        for item in batch:
            yield item
    if case.breaks:
        raise BROKEN


@pytest.mark.parametrize("how", ["told", "the end with its last", "item by item", "drawn"])
@given(CASES, st.lists(st.booleans(), max_size=6))
def test_taps_see_and_say_what_generators_would(how: str, case: Case, room: list[bool]) -> None:
    assert asyncio.run(in_a_flow(case, how, room)) == asyncio.run(in_generators(case))


@given(CASES, st.integers(0, 5), st.booleans())
def test_a_stream_that_is_given_up_closes_each_tap_once_and_ends_none(case: Case, steps: int, cancels: bool) -> None:
    async def given_up() -> list[str]:
        notes: list[str] = []
        source = Scripted([list(batch) for batch in case.batches] + [[1]] * 6)
        flow = ObservedStream(source, *[tap.tap() for tap in case.noting(notes)])
        driven = asyncio.create_task(pump(flow, bool, asyncio.Event().wait))
        for _ in range(steps):
            await asyncio.sleep(0)
            source.step()
        if cancels:
            driven.cancel()
            await asyncio.wait((driven,))
            source.step()  # nobody minds
        await flow.aclose()
        await flow.aclose()
        assert flow.take() == ()
        driven.cancel()
        return notes

    assert asyncio.run(given_up()) == [f"tap {place} closed" for place in range(len(case.taps))]


@given(CASES, st.booleans())
def test_a_stream_that_is_closed_after_its_end_marker_completes_each_tap_once(case: Case, cancels: bool) -> None:
    async def closed() -> list[str]:
        notes: list[str] = []
        source = Scripted([[1, 2]], complete=True)
        flow = ObservedStream(source, *[tap.tap() for tap in case.noting(notes)])
        driven = asyncio.create_task(pump(flow, lambda _: True, asyncio.Event().wait))
        await asyncio.sleep(0)
        source.step()
        if cancels:
            driven.cancel()
            await asyncio.wait((driven,))
        await flow.aclose()
        await flow.aclose()
        driven.cancel()
        return notes

    assert asyncio.run(closed()) == [
        f"tap {place} {what}" for place in range(len(case.taps)) for what in ("ended", "closed")
    ]


async def test_what_came_together_goes_on_within_the_callback_that_brought_it() -> None:
    source, came = Scripted([[1, 2], [3]]), list[Sequence[int]]()
    flow = ObservedStream(source)
    driven = asyncio.create_task(pump(flow, lambda items: came.append(items) or True, asyncio.Event().wait))
    await asyncio.sleep(0)
    source.step()
    assert came == [[1, 2]], "no turn of the loop in between"
    source.step()
    assert came == [[1, 2], [3]]
    source.step()
    await driven


async def test_who_cannot_write_hears_of_it() -> None:
    source = Scripted([[1], [2]])

    def write(items: Sequence[int]) -> bool:
        raise ConnectionResetError("the client has left")

    on_close: list[bool] = []
    flow = ObservedStream(source, StreamObserver(on_close=lambda: on_close.append(True)))
    driven = asyncio.create_task(pump(flow, write, asyncio.Event().wait))
    await asyncio.sleep(0)
    source.step()  # which raises nothing where the callback is called
    source.step()
    with pytest.raises(ConnectionResetError):
        await driven
    await flow.aclose()
    assert on_close == [True]


async def test_a_tap_that_fails_at_the_end_leaves_none_unclosed() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    on_close: list[int] = []
    taps = [
        StreamObserver(on_complete=fail, on_close=lambda: on_close.append(0)),
        StreamObserver(fail, fail, on_close=lambda: on_close.append(1)),
    ]
    with pytest.raises(ZeroDivisionError):
        await ObservedStream(Scripted([], over=True), *taps).next_batch()
    assert on_close == [0, 1]
