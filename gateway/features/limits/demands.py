"""The demands of a request on its limits: the arithmetic of GCRA, caps and slots. Pure; times are in microseconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

# The arithmetic of limits: how much is left now, and when more is available.
#
# `Meters` does this in one process. The store does the same (`gateway.features.limits.redis`); a property test compares
# the two.
#
# Rates use GCRA (ITU-T I.371, annex A; also redis-cell's CL.THROTTLE). Each limit is one number, its backlog: the time
# in which the units taken would accrue at the rate. At most `burst + rate * t` units are granted in any span `t`. A
# request that costs more than estimated leaves a debt, and later requests wait for it.
#
# Tokens and costs are reserved before a call and settled after it. A reservation is an upper bound, so that calls in
# flight cannot exceed a limit together. A call that finds no other in flight is judged by its `floor`, its likely cost:
# so the upper bound never keeps the rest of a limit from being used.

MICROS = 1_000_000

HALF_LIFE_US = 3600.0 * MICROS  # decay of the counts for a share: a call an hour ago counts half

SLACK_US = 1.0  # tolerance of a burst, so that its last unit does not fail by rounding

MAX_KEYS = 10_000  # keys that one process keeps; beyond that it drops the least recently used

DAY_US = 86_400 * MICROS

HELD = ":held"  # what follows the key of a limit in the key of its reservations

Window = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class PacedLimit:
    """Units of a rate. At most one burst is charged at once, so that larger requests can be granted; the rest becomes
    debt."""

    key: str
    interval_us: float  # per unit
    burst: int
    units: float
    floor: float | None = None  # units that it needs if no other call is in flight; None for all
    member: str = ""  # unique name of its reservation, or "" if it is settled at once

    @property
    def cost_us(self) -> float:
        return min(self.units, self.burst) * self.interval_us

    @property
    def floor_us(self) -> float:
        return self.cost_us if self.floor is None else min(self.floor, self.units, self.burst) * self.interval_us

    @property
    def reservation(self) -> str:
        return f"{self.member} {self.cost_us!r}" if self.member else ""

    @property
    def burst_us(self) -> float:
        return self.burst * self.interval_us


@dataclass(frozen=True, slots=True)
class Slot:
    """One of a limited number of concurrent places, until it is released."""

    key: str
    places: int
    member: str  # unique name of the holder


@dataclass(frozen=True, slots=True)
class Cost:
    """A share of a spending cap, in millionths of a dollar, within a UTC day or month."""

    key: str
    cap: int
    amount: int
    window: Window
    soft: bool  # beyond the cap nothing is refused: the spending continues and is reported
    floor: int | None = None  # the amount that it needs if no other call is in flight; None for all
    member: str = ""  # unique name of its reservation, or "" if it is settled at once

    @property
    def floor_amount(self) -> int:
        return self.amount if self.floor is None else min(self.floor, self.amount)

    @property
    def reservation(self) -> str:
        return f"{self.member} {self.amount}" if self.member else ""


@dataclass(frozen=True, slots=True)
class LimitPart:
    """One more call, of which at most `share` may go to large models. It is never refused, only reported. It counts as
    large if the share allows it."""

    key: str
    share: float  # in [0, 1]


Demand = PacedLimit | Slot | Cost | LimitPart


@dataclass(frozen=True, slots=True)
class LimitState:
    """The outcome of a demand.

    `level` is the value before it: backlog in us (`PacedLimit`), places taken, millionths of a dollar spent, or share
    in millionths. `held` is the part of it that calls in flight have reserved, if the demand is not met.
    """

    ok: bool
    level: int
    held: int = 0


@dataclass(frozen=True, slots=True)
class TakeResult:
    """The outcome of a set of demands: all are met or none, apart from soft ones."""

    granted: bool
    observed: tuple[LimitState, ...]
    at_us: int  # wall clock of the store or process that decided


@dataclass(frozen=True, slots=True)
class Return:
    """A correction once the real cost is known.

    For `pace` and `spend`, `amount` is added. Below 0 it is given back. With a `reservation` it is the whole real cost,
    which replaces what was reserved. `place` releases a place, `part` takes back a call that did not go to a large
    model. `of` is the window of a spending, or the member of a place.
    """

    kind: Literal["pace", "place", "spend", "part"]
    key: str
    amount: float = 0.0
    of: str = ""
    reservation: str = ""

    @property
    def reserved(self) -> float:
        return reserved_by(self.reservation)


def reserved_by(reservation: str) -> float:
    """Return the amount of a reservation, which is its last word, or 0 if there is none."""
    return float(reservation.rpartition(" ")[2]) if reservation else 0.0


def could_fit(demand: Demand, observed: LimitState) -> bool:
    """Return whether a demand that is not met would be, if the calls in flight cost nothing."""
    if isinstance(demand, PacedLimit):
        return observed.held > 0 and observed.level - observed.held + demand.floor_us <= demand.burst_us + SLACK_US
    if isinstance(demand, Cost):
        return observed.held > 0 and observed.level - observed.held + demand.floor_amount <= demand.cap
    return False


def window_of(window: Window, wall_us: int) -> str:
    """Return the UTC day or month of a time. Caps restart with each window."""
    if window == "day":
        return f"d{wall_us // DAY_US}"
    day = datetime.fromtimestamp(wall_us // MICROS, UTC)
    return f"m{day.year * 12 + day.month - 1}"


def window_ends_us(window: Window, wall_us: int) -> int:
    """Return when the window of that time ends."""
    if window == "day":
        return (wall_us // DAY_US + 1) * DAY_US
    day = datetime.fromtimestamp(wall_us // MICROS, UTC)
    after = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC)
    return int(after.timestamp()) * MICROS


def left(demand: Demand, observed: LimitState, *, taken: bool) -> float:
    """Return how much of a limit is left, in its own units (dollars in millionths). With `taken`, subtract the likely
    use of this demand, too."""
    if isinstance(demand, PacedLimit):
        backlog = observed.level + (demand.floor_us if taken else 0.0)
        return max(0.0, (demand.burst_us + SLACK_US - backlog) // demand.interval_us)
    if isinstance(demand, Slot):
        return max(0, demand.places - observed.level - taken)
    if isinstance(demand, Cost):
        return max(0, demand.cap - observed.level - (demand.floor_amount if taken else 0))
    return 0.0


def wait_us(demand: Demand, observed: LimitState, wall_us: int) -> float:
    """Return the time until an unmet demand could be met if nobody else came. For a place, and
    for what calls in flight have reserved, the time is unknown: return one second."""
    if isinstance(demand, PacedLimit):
        return max(0.0, observed.level - observed.held + demand.floor_us - demand.burst_us)
    if isinstance(demand, Cost) and not could_fit(demand, observed):
        return window_ends_us(demand.window, wall_us) - wall_us
    return float(MICROS)


@dataclass(slots=True)
class _MeterState:
    """The state of one key. Its demands decide which fields apply."""

    until_us: float = 0.0  # rates: when the backlog is gone
    members: set[str] = field(default_factory=set)
    held: dict[str, float] = field(default_factory=dict)  # reservations with their amounts
    window: str = ""
    spent: int = 0
    base: int = 0  # part of `spent` that the store reported last
    large: float = 0.0
    total: float = 0.0
    at_us: float = 0.0


class Meters:
    """`Meters` counts the limits of one process, which gets `1/gateways` of each.

    This applies to rates, bursts, places (at least one) and the rest of a cap. Times are on a monotonic clock, windows
    on the wall clock.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._states: OrderedDict[str, _MeterState] = OrderedDict()
        self._max_keys = max_keys

    def __len__(self) -> int:
        return len(self._states)

    def take(self, demands: Sequence[Demand], now_us: int, wall_us: int, gateways: int = 1) -> TakeResult:
        states = [self._state(demand.key) for demand in demands]
        observed = [self._evaluate(d, s, now_us, wall_us, gateways) for d, s in zip(demands, states, strict=True)]
        granted = all(t.ok or is_soft(d) for d, t in zip(demands, observed, strict=True))
        if granted:
            for demand, state, outcome in zip(demands, states, observed, strict=True):
                _apply_demand(demand, state, outcome, now_us, gateways)
        return TakeResult(granted, tuple(observed), wall_us)

    def observe(self, demand: Demand, observed: LimitState, now_us: int, wall_us: int) -> None:
        """Adopt the store's level after it has met this demand. If the store fails, the process continues from there.
        The backlog of a rate is a time, so it is the same for a part of the rate."""
        state = self._state(demand.key)
        if isinstance(demand, PacedLimit):
            state.until_us = now_us + observed.level + demand.cost_us
            _hold(state, demand)
        elif isinstance(demand, Slot):
            state.members.add(demand.member)
        elif isinstance(demand, Cost):
            state.window = window_of(demand.window, wall_us)
            state.spent = state.base = observed.level + demand.amount
            _hold(state, demand)

    def settle(self, returns: Sequence[Return], now_us: int) -> None:
        for item in returns:
            state = self._states.get(item.key)
            if state is None:
                continue
            change = item.amount - state.held.pop(item.reservation, 0.0)
            if item.kind == "pace":
                state.until_us = max(state.until_us, now_us if change > 0 else 0.0) + change
            elif item.kind == "place":
                state.members.discard(item.of)
            elif item.kind == "spend" and state.window == item.of:
                state.spent = max(0, state.spent + int(change))
            elif item.kind == "part":
                state.large = max(0.0, state.large - 1.0)

    def places(self) -> list[tuple[str, str]]:
        """Return key and member of every place and reservation that this process holds."""
        places = [(key + HELD, name) for key, state in self._states.items() for name in state.held]
        return places + [(key, member) for key, state in self._states.items() for member in state.members]

    def _state(self, key: str) -> _MeterState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _MeterState()
            self._prune()
        self._states.move_to_end(key)
        return state

    def _prune(self) -> None:
        """Drop the oldest keys. Places that are taken stay: there are at most as many as requests in flight."""
        for key in list(self._states)[: max(0, len(self._states) - self._max_keys)]:
            if not self._states[key].members and not self._states[key].held:
                del self._states[key]

    def _evaluate(self, demand: Demand, state: _MeterState, now_us: int, wall_us: int, gateways: int) -> LimitState:
        if isinstance(demand, PacedLimit):
            own = _share_of(demand, gateways)
            backlog = max(0.0, state.until_us - now_us)
            need = own.cost_us if state.held else own.floor_us
            ok = backlog + need <= own.burst_us + SLACK_US
            return LimitState(ok, int(backlog), 0 if ok else int(sum(state.held.values())))
        if isinstance(demand, Slot):
            places = max(1, demand.places // gateways)
            return LimitState(len(state.members) < places, len(state.members))
        if isinstance(demand, Cost):
            window = window_of(demand.window, wall_us)
            if state.window != window:
                state.window, state.spent, state.base = window, 0, 0
                state.held.clear()
            own_part = max(0, demand.cap - state.base) // gateways
            need = demand.amount if state.held else demand.floor_amount
            ok = state.spent - state.base + need <= own_part
            return LimitState(ok, state.spent, 0 if ok else int(sum(state.held.values())))
        faded = 2.0 ** (-max(0.0, now_us - state.at_us) / HALF_LIFE_US)
        state.large, state.total, state.at_us = state.large * faded, state.total * faded, now_us
        ok = state.large + 1.0 <= demand.share * (state.total + 1.0) + 1e-9
        return LimitState(ok, int(MICROS * state.large / state.total) if state.total else 0)


def is_soft(demand: Demand) -> bool:
    """Return whether a demand is soft: counted, but never refused."""
    return isinstance(demand, LimitPart) or (isinstance(demand, Cost) and demand.soft)


def _hold(state: _MeterState, demand: PacedLimit | Cost) -> None:
    if demand.member:
        state.held[demand.reservation] = reserved_by(demand.reservation)


def _share_of(demand: PacedLimit, gateways: int) -> PacedLimit:
    own, burst = demand.interval_us * gateways, max(1, demand.burst // gateways)
    return replace(demand, interval_us=own, burst=burst) if gateways > 1 else demand


def _apply_demand(demand: Demand, state: _MeterState, observed: LimitState, now_us: int, gateways: int) -> None:
    if isinstance(demand, PacedLimit):
        state.until_us = max(state.until_us, now_us) + _share_of(demand, gateways).cost_us
        _hold(state, demand)
    elif isinstance(demand, Slot):
        state.members.add(demand.member)
    elif isinstance(demand, Cost):
        state.spent += demand.amount
        _hold(state, demand)
    else:
        state.total += 1.0
        state.large += observed.ok
