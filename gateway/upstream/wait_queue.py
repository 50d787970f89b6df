"""Order the calls that wait for a permit of a backend, and decide which are refused. Pure: callers pass the time.

**Order.** Calls are served by priority class, and within a class by `due`. That is the request's deadline or the end of
its maximum wait, whichever is earlier, so no call is overtaken for ever. Every `YIELD_EVERY`th permit goes to a lower
class that waits, in turn, and every class may fill `RESERVE` of the room. So no class starves. A tenant that holds its
share of the permits comes after all others, whatever its class.

**Room.** In a burst, the queue may hold as many calls as are served within `BURST_HOLDS` times the mean hold of a
permit. A queue that was not empty for that mean hold is overload, not a burst, and waiting in it gains nothing. Then
new calls get `STANDING_HOLDS` times the mean hold, and calls that wait already `RETAINED_FACTOR` times as much room.
The idea is CoDel, as in Facebook's servers (Maurer, "Fail at Scale", ACM Queue 13(8), 2015). Three exceptions:

- A wait below `TARGET_DELAY_S` is no reason to refuse, like CoDel's target. Clients that send the next request after
  each response keep a queue that never empties. With fast responses that does no harm.
- A queue is not overload while the limit is in its initial growth.
- A queue is not overload if the event loop causes it, and not the backend.

**Eviction.** If there is no room, the first rule that applies decides which call is refused:

1. the newest call of the lowest class above its reserve, if the new call's class is higher, or is another one below
   its reserve;
2. the newest call of the busiest tenant in the new call's class, if the new call's tenant has at least two fewer;
3. the new call.

Rule 2 is longest-queue drop (Suter et al., INFOCOM 1998).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from math import inf
from operator import attrgetter

from gateway.priority import Priority, ShedReason

BURST_HOLDS = 4.0  # the maximum wait in a burst, in mean holds
STANDING_HOLDS = 0.5  # the maximum wait in a standing queue, in mean holds
RETAINED_FACTOR = 3  # with 1, 1.8 % of the calls refused at three times the capacity had waited (make bench-overload)
MIN_ROOM = 4  # calls that may always wait: with few permits a share of them rounds to none
MAX_ROOM = 4096  # calls that may wait at most, some 4 MB
STARTING_PER_SLOT = 4  # times the ceiling: calls that may wait during the initial growth
# times the ceiling: before the first response; 64 would be as many as `server.max_inflight` admits
UNKNOWN_PER_SLOT = 16
TARGET_DELAY_S = 0.2  # half of the response time in `make bench-overload`, where it has no effect
STANDING_S = 0.1  # the minimum age of a standing queue, however fast the responses are: Maurer's N
LOOP_S = 3.0  # the maximum wait if the event loop is slow: the wait of 1,000 clients at 350 requests a second
RESERVE = 1 / 8  # share of the room; with three classes and `MIN_ROOM`, some class is always above it
YIELD_EVERY = 8


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A waiting call. `due` is monotonic; `number` is unique and grows with arrival."""

    priority: Priority
    due: float
    number: int
    tenant: str = ""


class WaitQueue:
    """`WaitQueue` keeps the waiting calls of one backend in order, and counts them by class and tenant."""

    def __init__(self) -> None:
        self._classes: dict[Priority, list[Ticket]] = {priority: [] for priority in Priority}  # in order
        self._tenants: dict[Priority, dict[str, int]] = {priority: {} for priority in Priority}  # calls of each tenant
        # when a call came to a queue at rest, and when the queue last became empty
        self._burst_since = self._emptied_at = -inf
        self.waiting_since = -inf  # since then calls have been waiting without a pause
        self._yield_count = 0  # permits granted while another class waited
        self._count = 0  # kept separately, because every call reads it

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
        """Return the number of calls that may wait. Call it for each new call.

        A queue that was empty for a moment, because many permits were released at once, does not start a new burst.
        `ceiling` is the maximum number of permits; while `is_starting`, the limit is in its initial growth.
        `hold_s` is the mean hold of a permit, if it is known. `slot_interval_s` is the time between two released
        permits, and `backend_interval_s` the part of it that the backend causes, or None for all of it.
        """
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

    def calls_ahead(self, priority: Priority, due: float = inf) -> int:
        """Return the number of calls that would be served before such a new call."""
        before = sum(len(self._classes[higher]) for higher in Priority if higher < priority)
        return before + bisect_left(self._classes[priority], due, key=attrgetter("due"))

    def trim(self, room: int, now: float) -> list[Ticket]:
        """Remove the calls that exceed `room`: the newest of the lowest class above its reserve."""
        shed = []
        while len(self) > room:
            shed.append(self._newest(self._lowest_above_reserve(room)))
            self.remove(shed[-1], now)
        return shed

    def offer(self, ticket: Ticket, room: int, now: float) -> Ticket | ShedReason | None:
        """Add a call. Return None if it waits, the ticket that it replaces, or the reason why it is refused."""
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
        """Remove the calls that are due."""
        late = []
        for own in self._classes.values():
            while own and own[0].due <= now:
                late.append(own[0])
                self.remove(own[0], now)
        return late

    def take(self, now: float, sated: Collection[str] = ()) -> Ticket | None:
        """Remove and return the next call to serve; None if none waits. The tenants in `sated` have their share."""
        first, *behind = [own for own in self._classes.values() if own] or [[]]
        if not first:
            return None
        if behind:
            self._yield_count += 1
            turn, rest = divmod(self._yield_count, YIELD_EVERY)
            if rest == 0:
                first = behind[turn % len(behind)]
        ticket = first[0]
        if ticket.tenant in sated and any(tenant not in sated for own in self._tenants.values() for tenant in own):
            in_order = chain(first, *behind, *self._classes.values())
            ticket = next(each for each in in_order if each.tenant not in sated)
        self.remove(ticket, now)
        return ticket

    def remove(self, ticket: Ticket, now: float) -> bool:
        """Remove a call. Return whether it was waiting."""
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
        """Return the reason: the tenant's share, if it has the most waiting calls and other tenants wait too."""
        tenants = self._tenants[ticket.priority]
        own = tenants.get(ticket.tenant, 0)
        greedy = len(tenants) > 1 and own > 1 and own == max(tenants.values())
        return ShedReason.TENANT_SHARE if greedy else ShedReason.QUEUE_FULL

    def _lowest_above_reserve(self, room: int) -> Priority:
        """Return the lowest class above its reserve. The queue must be full."""
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
