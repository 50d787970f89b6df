"""A log is followed in order, after failures too, and who is behind says how far."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.errors import StoreUnavailable
from gateway.features.replicas.stream_consumer import Lag, StreamConsumer
from gateway.ports import ChangeKind, EntryPage, StoreChange
from tests.fixtures.clock import FakeClock

NOW = 100.0


class ListLog:
    """Positions are numbers; `first` is the oldest change that is still there."""

    def __init__(self, page: int = 2) -> None:
        self.made: list[StoreChange] = []
        self.first = 0
        self._page = page

    def add(self, *values: str) -> None:
        self.made += [StoreChange(ChangeKind.VECTORS, "g", NOW - 10, value) for value in values]

    async def end(self) -> str:
        return str(len(self.made))

    async def read(self, after: str) -> EntryPage:
        at, added = int(after), len(self.made)
        kept = added - self.first
        if at < self.first:
            return EntryPage([], str(added), missed=True, more=False, added=added, kept=kept, now=NOW)
        some = self.made[at : at + self._page]
        return EntryPage(some, str(at + len(some)), False, at + len(some) < added, added, kept, NOW)

    async def wait(self, after: str) -> None:
        raise NotImplementedError


class Heard:
    def __init__(self) -> None:
        self.values: list[str] = []
        self.missed = 0
        self.lag = Lag(-1, -1)
        self.failing = False

    async def apply(self, changes: Sequence[StoreChange], now: float) -> None:
        if self.failing:
            raise StoreUnavailable("away")
        self.values += [change.value for change in changes]

    def miss(self) -> None:
        self.missed += 1

    def on_lag(self, lag: Lag) -> None:
        self.lag = lag


@pytest.fixture
def log() -> ListLog:
    return ListLog()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def tail(log: ListLog, heard: Heard) -> StreamConsumer:
    return StreamConsumer(log, FakeClock(), apply=heard.apply, missed=heard.miss, on_lag=heard.on_lag)


async def test_what_is_known_at_the_start_is_not_applied(log: ListLog, heard: Heard, tail: StreamConsumer) -> None:
    log.add("a", "b")
    await tail.start_from_end()
    log.add("c")
    await tail.step()
    assert heard.values == ["c"]


async def test_a_position_that_is_still_there_is_gone_on_from(log: ListLog, heard: Heard, tail: StreamConsumer) -> None:
    log.add("a", "b", "c", "d", "e")
    assert await tail.resume("1")
    assert (heard.values, tail.position, heard.lag) == (["b", "c", "d", "e"], "5", Lag(0, 0.0))


@pytest.mark.parametrize("position", [None, "1"])
async def test_a_position_that_is_gone_is_not(
    log: ListLog, heard: Heard, tail: StreamConsumer, position: str | None
) -> None:
    log.add("a", "b", "c")
    log.first = 2
    assert not await tail.resume(position)
    assert (heard.values, heard.missed, tail.position) == ([], 0, None)


async def test_a_log_in_which_nothing_was_ever_written_is_not_gone_on_from(tail: StreamConsumer) -> None:
    assert not await tail.resume("0")
    assert tail.position is None


async def test_what_could_not_be_applied_comes_again(log: ListLog, heard: Heard, tail: StreamConsumer) -> None:
    await tail.start_from_end()
    log.add("a")
    heard.failing = True
    with pytest.raises(StoreUnavailable):
        await tail.step()
    heard.failing = False
    await tail.step()
    assert heard.values == ["a"]


async def test_what_was_trimmed_before_it_was_read_is_told_and_left(
    log: ListLog, heard: Heard, tail: StreamConsumer
) -> None:
    await tail.start_from_end()
    log.add("a", "b", "c")
    log.first = 2
    await tail.step()
    log.add("d")
    await tail.step()
    assert (heard.missed, heard.values) == (1, ["d"])


async def test_the_lag_is_what_is_left_and_how_old_it_is(log: ListLog, heard: Heard, tail: StreamConsumer) -> None:
    await tail.start_from_end()
    await tail.step()
    log.add("a", "b", "c", "d", "e")
    lags = []
    while heard.values != ["a", "b", "c", "d", "e"]:
        await tail.step()
        lags.append(heard.lag)
    assert lags == [Lag(3, 10.0), Lag(1, 10.0), Lag(0, 0.0)]


async def test_who_has_not_come_to_an_end_yet_knows_a_bound_of_it(
    log: ListLog, heard: Heard, tail: StreamConsumer
) -> None:
    log.add("a", "b", "c", "d")
    tail.position = "0"
    await tail.step()
    assert heard.lag.entries == 4
    await tail.step()
    assert heard.lag == Lag(0, 0.0)
