"""Calls of which several came with one turn of the event loop are looked up together: one step for all of them, and
then the next.

One by one each lookup goes through some hundred kB of code and tables, more than the processor's nearest caches hold,
so that each begins in the cold; together only the first one does. Nobody waits for it: what is written in a turn of
the loop leaves at its end anyway. Where turns bring one call or a few, each is looked up at once, as being gathered
costs more than it saves. Measured: docs/decisions/0051-turns.md.
"""

from __future__ import annotations

import asyncio
import logging

from gateway.data_port.lookups import Lookups
from gateway.data_port.sought import Came, Outcome

LOG = logging.getLogger("nearhit.http")
MOST = 64  # that are looked up before others have their turn of the loop: some 5 ms
ENOUGH = 4  # that a turn brings, for gathering to save more than it costs
EVERY = 31  # calls it is seen how many a turn brings; a prime, so that it is any place in a turn's row
PATIENCE = 8  # turns in a row that bring fewer than enough before calls are looked up at once again


class Turns:
    """To be used from one event loop."""

    def __init__(self, lookups: Lookups, loop: asyncio.AbstractEventLoop) -> None:
        self._lookups = lookups
        self._loop = loop
        self._alone = 0  # that were looked up at once
        self._patience = 0  # turns that may yet bring few while calls are gathered; 0: they are not
        self._came: list[Came] = []  # with this turn

    def find(self, came: Came) -> Outcome | Came:
        """What comes of it; or itself, where it is told so at the end of this turn, unless it is cancelled before."""
        if not self._patience:
            self._alone += 1
            if not self._alone % EVERY:
                self._loop.call_soon(self._see, self._alone)
            return self._lookups.find(came)
        if not self._came:
            self._loop.call_soon(self._run)
        self._came.append(came)
        return came

    def _see(self, first: int) -> None:
        """How many of its turn have come behind that one."""
        if self._alone - first + 1 >= ENOUGH:
            self._patience = PATIENCE

    def _run(self) -> None:
        some, self._came = self._came[:MOST], self._came[MOST:]
        if self._came:
            self._loop.call_soon(self._run)
        there = []
        for came in some:
            if came.to is None:
                continue
            if came.to.stays:
                there.append(came)
            else:  # the stages say that its connection ends
                came.tell(None)
        try:
            self._lookups.find_together(there)
        except Exception as error:  # the stages say what is wrong, each with its own
            LOG.error("calls were not looked up: %s", type(error).__name__)  # a message may quote the prompt
            for came in there:
                came.tell(None)
        # Not before: what comes while others are told is gathered, too, as it may ask the same as one that is not yet.
        if len(some) >= ENOUGH:
            self._patience = PATIENCE
        elif self._patience > 1 or not self._came:
            self._patience -= 1
