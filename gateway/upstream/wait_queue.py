"""Who waits for a place at a backend, in which order, and who is refused. Pure: the clock's reading comes in.

The order: classes of priority, within a class the earliest due (`due` is the request's deadline, or for one without any
the end of what the gateway lets it wait, so that nobody is overtaken for ever). Every `YIELD_EVERY`th place goes to a
class that waits behind the first, by turns, and every class may hold `RESERVE` of the room: nobody is starved.

The room: as many as have their turn within `BURST_HOLDS` times what an answer takes, as long as it is a burst. A
queue that has not got empty for as long as an answer takes is no burst but overload, and waiting in it buys nothing:
then it is `STANDING_HOLDS` times that, and `RETAINED_FACTOR` times that for those who wait already (the idea of CoDel,
as Facebook has it in its servers: Maurer, "Fail at Scale", ACM Queue 13(8), 2015). Who would wait less than
`TARGET_DELAY_S` is no reason to refuse anybody, as in CoDel's target: clients that each ask again when they are
answered keep a queue that never gets empty, and of fast answers nobody minds. Nor is a queue before a limit that is
still growing from its start overload, nor one that the event loop makes, and not the backend.

Who goes where there is no room: the last of the lowest class that holds more than its reserve, if the newcomer is of a
higher one, or its own holds less than its reserve; else the last of the tenant that waits most often in the newcomer's
class, if the newcomer's tenant has two fewer (longest-queue drop: Suter et al., INFOCOM 1998); else the newcomer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from gateway.priority import Priority, ShedReason

BURST_HOLDS = 4.0  # how long one of a burst waits at most, in times of what an answer takes
STANDING_HOLDS = 0.5  # likewise in a queue that stands
RETAINED_FACTOR = 3  # with 1, 1.8 % of those refused at three times the capacity had waited (make bench-overload)
MIN_ROOM = 4  # may wait in any case: with few places a share of them is nobody
MAX_ROOM = 4096  # may wait, however fast the answers are: some 4 MB
STARTING_PER_SLOT = 4  # of the ceiling: may wait in any case, while the limit says nothing yet
UNKNOWN_PER_SLOT = 16  # of the ceiling, before the first answer: at 64 as many as `server.max_inflight` lets in
TARGET_DELAY_S = 0.2  # half of what the answers of `make bench-overload` take: there it changes nothing
STANDING_S = 0.1  # no queue younger than this is a standing one, however fast the answers are: Maurer's N
LOOP_S = 3.0  # of a queue that the event loop makes: what 1,000 clients wait where it manages 350 requests a second
RESERVE = 1 / 8  # with three classes and room for `MIN_ROOM`, one class always holds more
YIELD_EVERY = 8


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """One who waits. `due`: monotonic clock; `number`: unique, higher for who came later."""

    priority: Priority
    due: float
    number: int
    tenant: str = ""


class WaitQueue:
    def __init__(self) -> None:
        self._classes: dict[Priority, list[Ticket]] = {priority: [] for priority in Priority}  # in order
        self._tenants: dict[Priority, dict[str, int]] = {priority: {} for priority in Priority}  # how many of each
        self._burst_since = (
            self._emptied_at
        ) = -inf  # when somebody came to a queue that was at rest; when it last got empty
        self.waiting_since = -inf  # since when somebody has been waiting, without a pause
        self._yield_count = 0  # places to somebody while another class waited
        self._count = 0  # kept beside the classes: every call asks for it

    def __len__(self) -> int:
        return self._count

    def room(
        self,
        ceiling: int,
        now: float,
        hold_s: float | None,
        slot_interval_s: float,
        backend_interval_s: float | None = None,
        *,
        is_starting: bool = False,
    ) -> int:
        """How many may wait. To be asked for each newcomer. What was empty for a moment, because many places came free
        at once, is no new burst. `ceiling`: how many places there may be at most, `is_starting`: their number says
        nothing yet; `hold_s`: how long one is held as a rule, None: not known yet; `slot_interval_s`: from one that
        comes free to the next, `backend_interval_s`: as far as the backend decides that, all of it unless said."""
        interval = max(STANDING_S, hold_s or 0.0)
        if not len(self):
            self.waiting_since = now
            if now - self._emptied_at > interval:
                self._burst_since = now
        if hold_s is None:
            return max(MIN_ROOM, ceiling * UNKNOWN_PER_SLOT)
        holds = STANDING_HOLDS if now - self._burst_since > interval else BURST_HOLDS
        bearable_s = max(TARGET_DELAY_S, holds * hold_s)
        room = _within(bearable_s, slot_interval_s if backend_interval_s is None else backend_interval_s)
        room = min(room, _within(max(bearable_s, LOOP_S), slot_interval_s))
        return max(MIN_ROOM, room, ceiling * STARTING_PER_SLOT if is_starting else 0)

    def ahead(self, priority: Priority, due: float = inf) -> int:
        """How many would have their turn before such a newcomer."""
        before = sum(len(self._classes[higher]) for higher in Priority if higher < priority)
        return before + bisect_left(self._classes[priority], due, key=attrgetter("due"))

    def trim(self, room: int, now: float) -> list[Ticket]:
        """Takes out those for whom there is no room any more: who came last, from the lowest class on."""
        shed = []
        while len(self) > room:
            shed.append(self._newest(self._lowest_above_reserve(room)))
            self.remove(shed[-1], now)
        return shed

    def offer(self, ticket: Ticket, room: int, now: float) -> Ticket | ShedReason | None:
        """None: it waits. A ticket: it waits in place of that one. A reason: it may not."""
        victim = None
        if len(self) >= room:
            victim = self._victim(ticket, room)
            if victim is None:
                return self._shed_reason(ticket)
            self.remove(victim, now)
        insort(self._classes[ticket.priority], ticket)
        self._count += 1
        tenants = self._tenants[ticket.priority]
        tenants[ticket.tenant] = tenants.get(ticket.tenant, 0) + 1
        return victim

    def expired(self, now: float) -> list[Ticket]:
        """Takes out those who are due."""
        late = []
        for own in self._classes.values():
            while own and own[0].due <= now:
                late.append(own[0])
                self.remove(own[0], now)
        return late

    def take(self, now: float) -> Ticket | None:
        """Whose turn it is; None where nobody waits."""
        first, *behind = [own for own in self._classes.values() if own] or [[]]
        if not first:
            return None
        if behind:
            self._yield_count += 1
            turn, rest = divmod(self._yield_count, YIELD_EVERY)
            if rest == 0:
                first = behind[turn % len(behind)]
        ticket = first[0]
        self.remove(ticket, now)
        return ticket

    def remove(self, ticket: Ticket, now: float) -> bool:
        """Whether it was waiting."""
        own, tenants = self._classes[ticket.priority], self._tenants[ticket.priority]
        at = bisect_left(own, ticket)
        if at == len(own) or own[at] != ticket:
            return False
        del own[at]
        self._count -= 1
        tenants[ticket.tenant] -= 1
        if not tenants[ticket.tenant]:
            del tenants[ticket.tenant]
        if not len(self):
            self._emptied_at = now
        return True

    def _victim(self, ticket: Ticket, room: int) -> Ticket | None:
        lowest = self._lowest_above_reserve(room)
        behind = len(self._classes[ticket.priority]) < self._reserve(room)
        if lowest > ticket.priority or (behind and lowest is not ticket.priority):
            return self._newest(lowest)
        busiest, most = self._busiest(ticket.priority)
        if most >= self._tenants[ticket.priority].get(ticket.tenant, 0) + 2:
            return self._newest(ticket.priority, busiest)
        return None

    def _shed_reason(self, ticket: Ticket) -> ShedReason:
        """Its own tenant, where nobody waits more often and others wait, too."""
        tenants = self._tenants[ticket.priority]
        own = tenants.get(ticket.tenant, 0)
        greedy = len(tenants) > 1 and own > 1 and own == max(tenants.values())
        return ShedReason.TENANT_SHARE if greedy else ShedReason.QUEUE_FULL

    def _lowest_above_reserve(self, room: int) -> Priority:
        """To be asked where the queue is full."""
        reserve = self._reserve(room)
        return max(priority for priority, own in self._classes.items() if len(own) > reserve)

    def _reserve(self, room: int) -> int:
        return max(1, int(room * RESERVE))

    def _newest(self, priority: Priority, tenant: str | None = None) -> Ticket:
        own = self._classes[priority]
        return max((t for t in own if tenant is None or t.tenant == tenant), key=attrgetter("number"))

    def _busiest(self, priority: Priority) -> tuple[str, int]:
        tenants = self._tenants[priority]
        busiest = max(tenants, key=tenants.__getitem__, default="")
        return busiest, tenants.get(busiest, 0)


def _within(seconds: float, slot_interval_s: float) -> int:
    return int(seconds / slot_interval_s) if slot_interval_s * MAX_ROOM > seconds else MAX_ROOM
