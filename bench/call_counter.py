"""Runs the gateway and counts the function calls of its event loop between two signals.

    python -m bench.call_counter --counts=FILE serve ...

SIGUSR1 starts counting. SIGUSR2 writes the counts since then as JSON: [file, function, line, calls] each. C functions
are not counted, nor are tasks that existed before, such as the gateway's background work. The watchdog of the event
loop is left out too, because it ticks more often on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gateway.__main__ import main
from gateway.observability.event_loop_monitor import EventLoopMonitor

OPTION = "--counts="
BEGUN = "begun"
TICK = EventLoopMonitor._tick.__code__


class CallCounter:
    """Counts calls. The file `to` has `BEGUN`, and after the end the counts."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._calls: Counter[CodeType] = Counter()
        self._others: set[asyncio.Task[Any]] = set()
        self._ticking = False

    def begin(self, number: int, frame: FrameType | None) -> None:
        self._calls.clear()
        self._others = asyncio.all_tasks()
        self._write(BEGUN)
        sys.setprofile(self._profile)

    def end(self, number: int, frame: FrameType | None) -> None:
        sys.setprofile(None)
        rows = [(code.co_filename, code.co_qualname, code.co_firstlineno, n) for code, n in self._calls.items()]
        self._write(json.dumps(rows))

    def _write(self, said: str) -> None:
        part = self._to.with_suffix(".part")
        part.write_text(said)
        part.rename(self._to)  # whoever waits for it finds all of it

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is TICK:
            self._ticking = event == "call"
        # A coroutine that goes on counts again: it costs again.
        elif event == "call" and not self._ticking and asyncio.current_task() not in self._others:
            self._calls[frame.f_code] += 1


if __name__ == "__main__":
    (option,) = (argument for argument in sys.argv if argument.startswith(OPTION))
    sys.argv.remove(option)
    counting = CallCounter(Path(option.removeprefix(OPTION)))
    signal.signal(signal.SIGUSR1, counting.begin)
    signal.signal(signal.SIGUSR2, counting.end)
    raise SystemExit(main())
