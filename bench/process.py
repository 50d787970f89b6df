"""Reads the times, the memory, the children and the command of a process from /proc (proc(5)).

A thread or a child may end between its listing and its reading. It is then left out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def _schedule(pid: int) -> dict[int, tuple[float, float]]:
    """Return the seconds on a processor and the seconds of waiting for one, by live thread.

    They come from the scheduler's own count in nanoseconds. The ticks of /proc/PID/stat are 10 ms, which is a whole
    round of a fast path.
    """
    found = dict[int, tuple[float, float]]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            on_processor, waiting = (task / "schedstat").read_text().split()[:2]
            found[int(task.name)] = int(on_processor) / 1e9, int(waiting) / 1e9
    return found


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the CPU time of each live thread by its number. That of the event loop is the number of the process."""
    return {thread: on_processor for thread, (on_processor, _) in _schedule(pid).items()}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all live threads of a process, without its children."""
    return sum(thread_seconds(pid).values())


def loop_seconds(pid: int) -> float:
    """Return the CPU time of the first thread, which is the event loop of a gateway."""
    return thread_seconds(pid)[pid]


def starved_seconds(pid: int) -> float:
    """Return the time in which live threads were ready to run and had no processor."""
    return sum(waiting for _, waiting in _schedule(pid).values())


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    """Return the arguments, each with a zero byte behind it. They are empty if the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children_of(pid: int, program: bytes) -> list[int]:
    """Return the children whose command line names the program."""
    return [child for child in children(pid) if program in command_line(child)]


def pin(pid: int, *cores: int) -> None:
    """Pin a process and its children to the cores, with all threads. Threads and children to come inherit it."""
    for process in (pid, *children(pid)):
        for thread in _schedule(process):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
