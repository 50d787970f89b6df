"""Runs the gateway, and samples the stack of its event loop between two signals.

    python bench/stack_sampler.py --samples=FILE serve ...

SIGUSR1 starts sampling, every `PERIOD_S`. SIGUSR2 stops it, and writes JSON. It has the samples by the modules of the
gateway on the stack, the innermost first. It also has the names of all threads by their number in the system. It is a
script, not a module of `bench`, so that it can run the gateway of another checkout.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from gateway.__main__ import main

OPTION = "--samples="
PERIOD_S = 0.001


class StackSampler:
    """`StackSampler` counts stacks. It writes them to `to`."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._stacks: Counter[tuple[str, ...]] = Counter()
        self._began = self._cpu_s = 0.0

    def begin(self, number: int, frame: FrameType | None) -> None:
        self._stacks.clear()
        self._began, self._cpu_s = time.perf_counter(), time.thread_time()
        signal.setitimer(signal.ITIMER_REAL, PERIOD_S, PERIOD_S)

    def sample(self, number: int, frame: FrameType | None) -> None:
        modules = list[str]()
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith("gateway.") and name not in modules[-1:]:
                modules.append(name)
            frame = frame.f_back
        self._stacks[tuple(modules)] += 1

    def end(self, number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        said = {
            "period_s": PERIOD_S,
            "seconds": time.perf_counter() - self._began,
            "cpu_s": time.thread_time() - self._cpu_s,
            "stacks": [[list(stack), count] for stack, count in self._stacks.items()],
            "threads": {thread.native_id: thread.name for thread in threading.enumerate()},
        }
        part = self._to.with_suffix(".part")
        part.write_text(json.dumps(said))
        part.rename(self._to)  # whoever waits for it finds all of it


if __name__ == "__main__":
    (option,) = (argument for argument in sys.argv if argument.startswith(OPTION))
    sys.argv.remove(option)
    sampling = StackSampler(Path(option.removeprefix(OPTION)))
    signal.signal(signal.SIGUSR1, sampling.begin)
    signal.signal(signal.SIGALRM, sampling.sample)
    signal.signal(signal.SIGUSR2, sampling.end)
    raise SystemExit(main())
