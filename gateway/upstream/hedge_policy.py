"""Whether, when and within what a call is sent to a second upstream while the first one has not answered. Pure.

Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): a second request that waits for the 95th percentile of what
the first one is expected to take adds some 5 % of load and cuts most of the tail, as long as a slow answer is the fault
of the one upstream and not of the request. The bound is Finagle's (`BackupRequestFilter`) and gRPC's (proposal A6):
tokens that calls bring in, so that upstreams which are slow all together are not asked twice for everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.context import Crowd
from gateway.messages import Call

BURST = 5.0  # hedges that a quiet time may save up
SHORTEST_S = 0.001  # Finagle's minimum: below it a timer tells more of this process than of an upstream
KEPT_BY_DEFAULT = frozenset({"responses"})  # operations whose answers OpenAI keeps unless `store` is false
CLIENT_TOOLS = frozenset({"function", "custom"})  # others (web search, MCP, code) run at the host


class Hedged(StrEnum):
    """What came of a call that had outlasted its delay; the label `outcome` of `nearhit_hedges_total`."""

    WON = "won"  # the second upstream's answer was served
    LOST = "lost"  # the first one's was, after all
    FAILED = "failed"  # neither of the two had one
    CANCELLED = "cancelled"  # the client left meanwhile
    BUDGET = "budget"  # not sent: too many were, for the calls that there are
    OVERLOADED = "overloaded"  # not sent: there is not room for all calls as it is
    ALONE = "alone"  # not sent: no other upstream is in service


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """When a second upstream is asked, and how often at most."""

    after: float = 0.95  # quantile of the time to the first byte, in (0, 1)
    budget: float = 0.05  # of the calls, in (0, 1]


class HedgeBudget:
    """Of any `n` calls in a row at most `share * n + BURST` are hedged, of the first `n` at most `share * n`. No clock:
    a share of the calls is one whatever time they take."""

    __slots__ = ("_share", "_tokens")

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = 0.0

    def asked(self) -> None:
        """A call came that could be hedged."""
        self._tokens = min(BURST, self._tokens + self._share)

    def spend(self) -> bool:
        """Takes a hedge's token. False: there is none."""
        if self._tokens < 1.0 - 1e-9:  # twenty times 0.05 is not quite 1
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        return True


def hedgeable(call: Call | None, *, unasked: bool) -> bool:
    """Calls that may run twice at once. What passes through unread may change something, and a WebSocket is no call;
    what is kept at its host would be kept twice; tools that its host runs may change something there; and nobody waits
    for the gateway's own checks (`unasked`)."""
    if call is None or unasked or call.stateful:
        return False
    body = call.body
    kept = body.get("store", call.operation in KEPT_BY_DEFAULT) or body.get("background") or body.get("conversation")
    return not kept and not body.get("mcp_servers") and all(map(_of_the_client, _listed(body.get("tools"))))


def _listed(tools: object) -> Sequence[object]:
    return tools if isinstance(tools, list) else ()


def _of_the_client(tool: object) -> bool:
    """Whether the client runs it, once it has one answer."""
    return isinstance(tool, Mapping) and tool.get("type", "custom") in CLIENT_TOOLS


def delay_s(predicted_s: float | None, remaining_s: float, other_s: float | None) -> float | None:
    """How long the first upstream is waited for before a second one is asked. None: none is, however long it takes.

    `predicted_s`: the quantile of its time to the first byte; None or infinite where nothing is known. `remaining_s`:
    until the answer is due. `other_s`: what another upstream is expected to take; None where nothing is known. A hedge
    that could only answer when it is too late would be for nothing."""
    if predicted_s is None or math.isinf(predicted_s):
        return None
    delay = max(SHORTEST_S, predicted_s)
    return delay if delay + (other_s or 0.0) < remaining_s else None


def has_room(crowd: Crowd) -> bool:
    """Whether one more call would find a place there at once."""
    return crowd.queued == 0 and crowd.inflight < crowd.limit


def held_back(budget: HedgeBudget, everywhere: Sequence[Crowd], others: Sequence[Crowd]) -> Hedged | None:
    """Why the hedge that is due is not sent; None where it is, and its token taken. `everywhere`: all upstreams of the
    backend; `others`: those in service but the one that is waited for. Where anybody waits for a place, calls are more
    than the upstreams bear, and more of them would make everybody's slower."""
    if not others:
        return Hedged.ALONE
    if any(crowd.queued for crowd in everywhere) or not any(map(has_room, others)):
        return Hedged.OVERLOADED
    return None if budget.spend() else Hedged.BUDGET
