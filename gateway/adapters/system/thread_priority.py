"""Priorities of threads, so that the event loop comes first on a core that it shares with models."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

MODEL_NICENESS = 5  # above that of the process: the encoder and the cross-encoder have a third of the loop's weight

BACKGROUND_NICENESS = 10  # above that of the process: rebuilds and models as backends have a ninth of it


def lower_priority(niceness: int) -> None:
    """Set the niceness of the calling thread to that of the process's main thread and `niceness` more, on Linux.

    Elsewhere a thread has no priority of its own, and nothing happens. The kernel bounds the sum at 19. Weights are
    those of its scheduler (sched(7)): each step of niceness is worth a factor of 1.25.
    """
    with suppress(AttributeError, OSError):
        of_process = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), of_process + niceness)
