"""Priorities of threads, so that the event loop comes first on a core that it shares with models."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

MODEL_NICENESS = 5  # of the encoder and the cross-encoder, which clients wait for: a third of the loop's weight

BACKGROUND_NICENESS = 10  # of rebuilds and of models as backends: a ninth of the loop's weight


def lower_priority(niceness: int) -> None:
    """Lower the priority of the calling thread, on Linux. Elsewhere a thread has none of its own, and nothing happens.

    Weights are those of the kernel's scheduler (sched(7)): each step of niceness is worth a factor of 1.25.
    """
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
