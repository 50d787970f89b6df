"""Who waits for a place: the bound, the order, and that nobody is starved."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.priority import Priority, ShedReason
from gateway.upstream.wait_queue import (
    BURST_HOLDS,
    LOOP_S,
    MAX_ROOM,
    MIN_ROOM,
    STARTING_PER_SLOT,
    TARGET_DELAY_S,
    UNKNOWN_PER_SLOT,
    YIELD_EVERY,
    Ticket,
    WaitQueue,
)

HIGH, NORMAL, LOW = Priority


def waiting_of(*tickets: Ticket, room: int = 1000) -> WaitQueue:
    waiting = WaitQueue()
    for ticket in tickets:
        assert waiting.offer(ticket, room, 0.0) is None
    return waiting


def taken(waiting: WaitQueue) -> list[int]:
    numbers = []
    while (ticket := waiting.take(0.0)) is not None:
        numbers.append(ticket.number)
    return numbers


newcomers = st.tuples(st.sampled_from(Priority), st.floats(0, 100), st.sampled_from("abc"))


@given(came=st.lists(newcomers, max_size=60), room=st.integers(MIN_ROOM, 20), taking=st.integers(2, 9))
def test_the_queue_never_exceeds_its_room_and_nobody_is_lost(
    came: list[tuple[Priority, float, str]], room: int, taking: int
) -> None:
    waiting, inside, seen = WaitQueue(), set[int](), list[int]()
    for number, (priority, due, tenant) in enumerate(came):
        outcome = waiting.offer(Ticket(priority, due, number, tenant), room, 0.0)
        if isinstance(outcome, ShedReason):
            seen.append(number)
        else:
            inside.add(number)
            if outcome is not None:
                inside.remove(outcome.number)
                seen.append(outcome.number)
        if number % taking == 0 and (ticket := waiting.take(0.0)) is not None:
            inside.remove(ticket.number)
            seen.append(ticket.number)
        assert len(waiting) == len(inside) <= room
    trim = waiting.trim(MIN_ROOM, 0.0)
    assert len(waiting) <= MIN_ROOM
    seen += [ticket.number for ticket in trim] + taken(waiting)
    assert sorted(seen) == list(range(len(came))), "each was taken, let go or refused, once"


@given(dues=st.lists(st.floats(0, 1e6), max_size=30))
def test_within_a_class_the_earliest_due_goes_first(dues: list[float]) -> None:
    waiting = waiting_of(*(Ticket(NORMAL, due, number) for number, due in enumerate(dues)))
    assert taken(waiting) == sorted(range(len(dues)), key=lambda number: (dues[number], number))


def test_those_of_one_due_go_in_the_order_in_which_they_came() -> None:
    assert taken(waiting_of(*(Ticket(NORMAL, 60.0, number) for number in range(5)))) == [0, 1, 2, 3, 4]


def test_higher_classes_go_first() -> None:
    waiting = waiting_of(Ticket(LOW, 1.0, 0), Ticket(NORMAL, 2.0, 1), Ticket(HIGH, 3.0, 2))
    assert taken(waiting) == [2, 1, 0]


@given(behind=st.sets(st.sampled_from([NORMAL, LOW]), min_size=1))
def test_no_class_is_starved_however_many_of_a_higher_one_come(behind: set[Priority]) -> None:
    waiting = waiting_of(*(Ticket(priority, 0.0, -priority) for priority in behind))
    for number in range(1, YIELD_EVERY * len(behind) + 1):
        waiting.offer(Ticket(HIGH, 0.0, number), 1000, 0.0)
        waiting.take(0.0)
    assert len(waiting) == len(behind), "as many of the higher one wait instead"
    assert {waiting.take(0.0).priority for _ in behind} == {HIGH}  # type: ignore[union-attr]


def test_a_full_queue_lets_go_of_the_last_of_the_lowest_class_for_a_higher_one() -> None:
    waiting = waiting_of(*(Ticket(LOW, 9.0 - n, n) for n in range(3)), Ticket(NORMAL, 1.0, 3))
    gone = waiting.offer(Ticket(HIGH, 1.0, 4), 4, 0.0)
    assert isinstance(gone, Ticket) and gone.number == 2
    assert waiting.offer(Ticket(LOW, 0.0, 5), 4, 0.0) is ShedReason.QUEUE_FULL


def test_each_class_keeps_an_eighth_of_the_room() -> None:
    waiting = waiting_of(*(Ticket(LOW, 1.0, n) for n in range(16)))
    for number in range(16, 100):
        waiting.offer(Ticket(HIGH, 1.0, number), 16, 0.0)
    left = [waiting.take(0.0) for _ in range(16)]
    assert sum(ticket is not None and ticket.priority is LOW for ticket in left) == 2


def test_a_class_below_its_share_of_the_room_gets_in() -> None:
    waiting = waiting_of(*(Ticket(HIGH, 1.0, n) for n in range(16)))
    assert isinstance(waiting.offer(Ticket(LOW, 1.0, 16), 16, 0.0), Ticket)


def test_one_tenant_cannot_fill_the_queue_alone() -> None:
    waiting = waiting_of(*(Ticket(NORMAL, 1.0, n, "greedy") for n in range(8)))
    outcomes = [waiting.offer(Ticket(NORMAL, 1.0, 100 + n, "modest"), 8, 0.0) for n in range(6)]
    assert [isinstance(outcome, Ticket) for outcome in outcomes] == [True] * 4 + [False] * 2
    assert waiting.offer(Ticket(NORMAL, 1.0, 200, "greedy"), 8, 0.0) is ShedReason.TENANT_SHARE
    assert isinstance(waiting.offer(Ticket(NORMAL, 1.0, 201, "third"), 8, 0.0), Ticket)


def test_a_lone_tenant_is_not_blamed() -> None:
    waiting = waiting_of(*(Ticket(NORMAL, 1.0, n, "a") for n in range(4)))
    assert waiting.offer(Ticket(NORMAL, 1.0, 4, "a"), 4, 0.0) is ShedReason.QUEUE_FULL


def test_who_is_due_is_taken_out() -> None:
    waiting = waiting_of(Ticket(NORMAL, 1.0, 0), Ticket(LOW, 2.0, 1), Ticket(HIGH, 3.0, 2))
    assert sorted(ticket.number for ticket in waiting.expired(2.0)) == [0, 1]
    assert taken(waiting) == [2]


def test_a_queue_that_does_not_get_empty_is_cut() -> None:
    """Twenty places, each held for a second."""
    waiting = WaitQueue()
    burst, slot_interval_s = int(20 * BURST_HOLDS), 1 / 20
    assert waiting.room(64, 0.0, 1.0, slot_interval_s) == burst
    for number in range(40):
        assert waiting.room(64, 10.0, 1.0, slot_interval_s) == burst
        waiting.offer(Ticket(NORMAL, math.inf, number), 80, 10.0)
    assert waiting.room(64, 11.0, 1.0, slot_interval_s) == burst, "for as long as an answer takes"
    assert waiting.room(64, 11.5, None, 0.0) == 64 * UNKNOWN_PER_SLOT, "nobody knows how long that is"
    assert waiting.room(64, 11.5, 1.0, slot_interval_s) == 10
    assert [ticket.number for ticket in waiting.trim(10, 11.5)] == list(range(39, 9, -1)), "who came last goes first"
    while waiting.take(12.0):
        pass
    assert waiting.room(64, 12.5, 1.0, slot_interval_s) == 10, "empty for a moment: no new burst"
    assert waiting.room(64, 13.5, 1.0, slot_interval_s) == burst, "it was at rest"


@pytest.mark.parametrize(
    ("priority", "due", "ahead"), [(HIGH, 9.0, 1), (NORMAL, 1.5, 2), (NORMAL, 9.0, 3), (LOW, 0.0, 3)]
)
def test_how_many_go_before_a_newcomer(priority: Priority, due: float, ahead: int) -> None:
    waiting = waiting_of(Ticket(HIGH, 5.0, 0), Ticket(NORMAL, 1.0, 1), Ticket(NORMAL, 2.0, 2))
    assert waiting.calls_ahead(priority, due) == ahead


def test_who_has_left_is_not_taken() -> None:
    first, second = Ticket(NORMAL, 1.0, 0), Ticket(NORMAL, 1.0, 1)
    waiting = waiting_of(first, second)
    assert waiting.remove(first, 0.0) and not waiting.remove(first, 0.0)
    assert taken(waiting) == [1]


@given(hold_s=st.floats(1e-4, 100), places=st.integers(1, 1000), now=st.floats(0, 1e6))
def test_nobody_is_refused_for_a_wait_that_nobody_notices(hold_s: float, places: int, now: float) -> None:
    """However low the limit is, and however long the queue has been there."""
    waiting = WaitQueue()
    waiting.offer(Ticket(NORMAL, math.inf, 1), 4, 0.0)
    slot_interval_s = hold_s / places
    assert waiting.room(64, now, hold_s, slot_interval_s) >= min(MAX_ROOM, TARGET_DELAY_S / slot_interval_s - 1)


def test_a_queue_before_an_event_loop_that_is_short_is_not_the_backends_overload() -> None:
    waiting = WaitQueue()
    waiting.offer(Ticket(NORMAL, math.inf, 1), 4, 0.0)
    assert waiting.room(64, 100.0, 0.1, 0.002) == 100
    assert waiting.room(64, 100.0, 0.1, 0.002, 0.0) == LOOP_S / 0.002, "for a time"


def test_a_limit_that_is_still_growing_is_no_sign_of_overload() -> None:
    waiting = WaitQueue()
    waiting.offer(Ticket(NORMAL, math.inf, 1), 4, 0.0)
    assert waiting.room(64, 100.0, 1.0, 1 / 16) == 8
    assert waiting.room(64, 100.0, 1.0, 1 / 16, is_starting=True) == 64 * STARTING_PER_SLOT
