"""The arithmetic of limits: what they never give, what they give back, and that the store's arithmetic is the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from gateway.features.limits.demands import (
    HELD,
    MICROS,
    Cost,
    Demand,
    LimitPart,
    LimitState,
    Meters,
    PacedLimit,
    Return,
    Slot,
    TakeResult,
    could_fit,
    left,
    wait_us,
    window_ends_us,
    window_of,
)
from gateway.features.limits.redis import BEAT, SETTLE, TAKE, limit_states, settle_arguments, take_arguments
from tests.fixtures.stores import OutsideServer

START_US = 1_790_000_000 * MICROS
TIME = "redis.call('TIME')"


def paced(amount: int, period_s: float, burst: int, units: float = 1) -> PacedLimit:
    return PacedLimit("k", period_s * MICROS / amount, burst, units)


@given(
    amount=st.integers(1, 1000),
    period_s=st.sampled_from([1, 7, 60, 3600]),
    burst=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 3 * MICROS), st.integers(1, 60)), max_size=80),
)
def test_no_span_of_time_gets_more_than_the_burst_and_the_rate(
    amount: int, period_s: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    meters, now = Meters(), START_US
    given_at: list[tuple[int, int]] = []
    for wait, units in steps:
        now += wait
        if meters.take([paced(amount, period_s, burst, units)], now, now).granted:
            given_at.append((now, min(units, burst)))
    for i, (first, _) in enumerate(given_at):
        total = 0
        for at, units in given_at[i:]:
            total += units
            assert total <= burst + (at - first) * amount / (period_s * MICROS) + 0.01


@given(amount=st.integers(1, 1000), burst=st.integers(1, 50), units=st.integers(1, 50))
def test_who_waits_as_long_as_told_is_let_in(amount: int, burst: int, units: int) -> None:
    meters, now, demand = Meters(), START_US, paced(amount, 60, burst, units)
    while (taken := meters.take([demand], now, now)).granted:
        pass
    now += int(wait_us(demand, taken.observed[0], now)) + 1
    assert meters.take([demand], now, now).granted


def test_a_burst_is_given_whole_also_where_the_interval_is_no_round_number() -> None:
    meters, demand = Meters(), paced(7, 60, 7)
    taken = [meters.take([demand], START_US, START_US) for _ in range(8)]
    assert [t.granted for t in taken] == [True] * 7 + [False]
    assert [left(demand, t.observed[0], taken=t.granted) for t in taken] == [6, 5, 4, 3, 2, 1, 0, 0]


def test_what_was_dearer_than_it_was_taken_for_is_a_debt() -> None:
    meters, demand = Meters(), paced(60, 60, 10, 10)
    assert meters.take([demand], START_US, START_US).granted
    meters.settle([Return("pace", "k", 20 * demand.interval_us)], START_US)
    assert not meters.take([demand], START_US + 29 * MICROS, 0).granted
    assert meters.take([demand], START_US + 30 * MICROS, 0).granted


def test_of_several_demands_all_are_met_or_none_is_counted() -> None:
    meters, one, many = Meters(), PacedLimit("one", MICROS, 1, 1), PacedLimit("many", MICROS, 9, 1)
    assert meters.take([one, many], START_US, START_US).granted
    refused = meters.take([one, many], START_US, START_US)
    assert (refused.granted, [observed.ok for observed in refused.observed]) == (False, [False, True])
    assert left(many, meters.take([many], START_US, START_US).observed[0], taken=True) == 7


def test_a_cap_counts_anew_with_its_utc_day_and_month() -> None:
    meters, demand = Meters(), Cost("k", 10, 10, "day", soft=False)
    evening = int(datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC).timestamp()) * MICROS
    assert meters.take([demand], 0, evening).granted
    refused = meters.take([demand], 0, evening)
    assert (refused.granted, wait_us(demand, refused.observed[0], evening)) == (False, MICROS)
    assert meters.take([demand], 0, evening + MICROS).granted
    assert window_ends_us("month", evening) == evening + MICROS
    december = int(datetime(2026, 12, 31, 12, tzinfo=UTC).timestamp()) * MICROS
    assert window_ends_us("month", december) == int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()) * MICROS


@given(share=st.floats(0.05, 1), steps=st.lists(st.integers(0, 60 * MICROS), max_size=100))
def test_large_ones_are_never_more_than_their_part(share: float, steps: list[int]) -> None:
    meters, now, large, total = Meters(), START_US, 0, 0
    for wait in steps:
        now += wait
        total += 1
        large += meters.take([LimitPart("k", share)], now, now).observed[0].ok
    faded = 2 ** (-sum(steps) / (3600 * MICROS))  # what is long ago counts less
    assert large * faded <= share * total + 1e-6


def test_several_gateways_have_a_part_each() -> None:
    demands: list[Demand] = [paced(60, 60, 60), Slot("p", 10, "m"), Cost("s", 100, 10, "day", soft=False)]
    counts = []
    for demand in demands:
        meters, met = Meters(), 0
        while meters.take([Slot("p", 10, str(met)) if demand.key == "p" else demand], 0, START_US, 5).granted:
            met += 1
        counts.append(met)
    assert counts == [12, 2, 2]


def test_what_the_store_said_last_is_where_one_process_goes_on() -> None:
    meters, demand, cap = Meters(), paced(60, 60, 60), Cost("s", 100, 10, "day", soft=False)
    meters.observe(demand, LimitState(True, 58 * MICROS), 0, START_US)  # 59 of 60 are taken
    meters.observe(cap, LimitState(True, 70), 0, START_US)  # 80 of 100 are spent
    assert meters.take([demand], 0, START_US).granted
    assert not meters.take([demand], 0, START_US).granted
    assert meters.take([cap], 0, START_US, 2).granted  # half of what is left
    assert not meters.take([cap], 0, START_US, 2).granted


def test_what_is_remembered_is_bounded_and_places_that_are_taken_are_kept() -> None:
    meters = Meters(max_keys=10)
    meters.take([Slot("mine", 1, "m")], 0, START_US)
    for i in range(1000):
        meters.take([PacedLimit(str(i), 1.0, 1, 1)], 0, START_US)
    assert len(meters) <= 11
    assert not meters.take([Slot("mine", 1, "n")], 0, START_US).granted


# The store


class Scripts:
    """The store's scripts, at a time that the test sets. `lasting`: the store's own time lets nothing expire."""

    def __init__(self, client: Redis, *, lasting: bool = False) -> None:
        self._client = client
        self._lasting = lasting
        self.now_us = START_US

    def _run(self, script: str, keys: Sequence[str], arguments: Sequence[object]) -> list[int]:
        at = f"{{'{self.now_us // MICROS}', '{self.now_us % MICROS}'}}"
        with self._client.pipeline() as pipe:
            pipe.eval(script.replace(TIME, at), len(keys), *keys, *arguments)
            for key in (*keys, *(key + HELD for key in keys)) if self._lasting else ():
                pipe.persist(key)
            return pipe.execute()[0]  # type: ignore[no-any-return]

    def take(self, demands: Sequence[Demand]) -> TakeResult:
        granted, now, *observed = self._run(
            TAKE, [d.key for d in demands], take_arguments(demands, 10**12 if self._lasting else 3_600_000)
        )
        assert int(now) == self.now_us
        return TakeResult(bool(granted), limit_states(observed), int(now))

    def settle(self, returns: Sequence[Return]) -> None:
        self._run(SETTLE, [r.key for r in returns], settle_arguments(returns))


WAITS = st.sampled_from([0, 0, 1, 1000, 250_000, MICROS, 30 * MICROS, 3600 * MICROS, 86_400 * MICROS])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), waits=st.lists(WAITS, min_size=1, max_size=25))
def test_the_store_and_one_process_reckon_alike(
    outside_store: OutsideServer, data: st.DataObject, waits: list[int]
) -> None:
    outside_store.client.flushall()
    scripts, meters = Scripts(outside_store.client, lasting=True), Meters()
    rate = PacedLimit("r", 60 * MICROS / data.draw(st.integers(1, 100)), data.draw(st.integers(1, 20)), 1)
    for number, wait in enumerate(waits):
        scripts.now_us += wait
        units = data.draw(st.integers(1, 25))
        least = data.draw(st.integers(0, 25))
        tokens = PacedLimit("r", rate.interval_us, rate.burst, units, least, f"m{number}")
        dollars = Cost("d", 500, data.draw(st.integers(0, 200)), "day", soft=False, floor=least, member=f"m{number}")
        demands: list[Demand] = [
            tokens,
            dollars,
            Cost("m", 900, 50, "month", soft=True),
            LimitPart("l", 0.3),
        ]
        mine = meters.take(demands, scripts.now_us, scripts.now_us)
        theirs = scripts.take(demands)
        assert (theirs.granted, [t.ok for t in theirs.observed]) == (mine.granted, [t.ok for t in mine.observed])
        assert all(abs(a.level - b.level) <= 1 for a, b in zip(theirs.observed, mine.observed, strict=True))
        assert all(abs(a.held - b.held) <= 1 for a, b in zip(theirs.observed, mine.observed, strict=True))
        if theirs.granted and data.draw(st.booleans()):
            real = data.draw(st.integers(0, 40))
            returns = [
                Return("pace", "r", real * rate.interval_us, "", tokens.reservation),
                Return("spend", "d", real, window_of("day", scripts.now_us), dollars.reservation),
                Return("part", "l"),
            ]
            returns = returns if theirs.observed[3].ok else returns[:2]
            meters.settle(returns, scripts.now_us)
            scripts.settle(returns)


@given(seconds=st.integers(0, 4_000_000_000))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_store_knows_the_calendar(outside_store: OutsideServer, seconds: int) -> None:
    outside_store.client.flushall()
    scripts = Scripts(outside_store.client)
    scripts.now_us = seconds * MICROS
    scripts.take([Cost("d", 9, 1, "day", soft=False), Cost("m", 9, 1, "month", soft=False)])
    kept = [outside_store.client.get(key) for key in "dm"]
    assert kept == [f"{window_of(w, scripts.now_us)} 1".encode() for w in ("day", "month")]


def test_a_place_is_free_again_when_it_is_left_and_when_nothing_is_heard_of_its_gateway(
    outside_store: OutsideServer,
) -> None:
    scripts = Scripts(outside_store.client)
    places = [Slot("p", 2, member) for member in "abc"]
    assert [scripts.take([place]).granted for place in places] == [True, True, False]
    scripts.settle([Return("place", "p", of="a"), Return("place", "p", of="a")])
    assert scripts.take([places[2]]).granted
    scripts.now_us += 3_000_000_000
    assert scripts._run(BEAT, ["g", "p"], ["me", 3_600_000, "b"]) == 1  # b goes on
    scripts.now_us += 1_000_000_000
    assert scripts.take([places[0]]).granted  # c has not been heard of
    assert not scripts.take([places[2]]).granted


def test_a_reservation_lasts_while_its_gateway_is_heard_of_and_then_goes_back(outside_store: OutsideServer) -> None:
    scripts = Scripts(outside_store.client)
    tokens = [PacedLimit("t", 3600.0 * MICROS, 100, 60, 10, member) for member in "abc"]
    dollars = [Cost("s", 100, 60, "day", soft=False, floor=10, member=member) for member in "abc"]
    assert scripts.take([tokens[0], dollars[0]]).granted
    refused = scripts.take([tokens[1], dollars[1]])
    assert [(state.ok, state.held) for state in refused.observed] == [(False, 60 * 3600 * MICROS), (False, 60)]
    assert all(
        could_fit(demand, state) for demand, state in zip((tokens[1], dollars[1]), refused.observed, strict=True)
    )
    scripts.now_us += 3_000_000_000
    held = [(demand.key + HELD, demand.reservation) for demand in (tokens[0], dollars[0])]
    assert scripts._run(BEAT, ["g", *(key for key, _ in held)], ["me", 3_600_000, *(name for _, name in held)]) == 1
    scripts.now_us += 1_000_000_000
    assert not scripts.take([dollars[1]]).granted
    scripts.now_us += 3_000_000_000  # nothing is heard of it
    taken = scripts.take([tokens[1], dollars[1]])
    assert taken.granted
    assert taken.observed[1].level == 0
    today = window_of("day", scripts.now_us)
    scripts.settle([Return("spend", "s", 30, today, demand.reservation) for demand in dollars[:2]])  # both have cost 30
    assert scripts.take([dollars[2]]).observed[0].level == 60


def test_everything_that_is_counted_expires(outside_store: OutsideServer) -> None:
    scripts = Scripts(outside_store.client)
    scripts.take([paced(1, 60, 5), Slot("p", 2, "a"), Cost("s", 9, 1, "month", soft=True), LimitPart("l", 1.0)])
    client = outside_store.client
    assert {key: client.pttl(key) > 0 for key in client.keys("*")} == dict.fromkeys([b"k", b"p", b"s", b"l"], True)
