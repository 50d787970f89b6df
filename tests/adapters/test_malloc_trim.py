"""Memory that was freed is given back."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from gateway.adapters.system.memory import trim_heap

SIZE, COUNT = 100_000, 3_000  # bytes: less than what malloc asks the system for by itself


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_what_lies_between_blocks_in_use_is_given_back() -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [c.malloc(SIZE) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        c.free(block)
    before = resident()
    trim_heap()
    assert before - resident() > 0.8 * SIZE * COUNT
    c.free(blocks[-1])


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
