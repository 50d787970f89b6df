"""A thread of a model comes after the event loop, whatever priority the process has."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from gateway.adapters.system.thread_priority import lower_priority

def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

with ThreadPoolExecutor(1, initializer=lower_priority, initargs=(5,)) as models:
    print(niceness(), models.submit(niceness).result())
"""


@pytest.mark.parametrize(("added", "expected"), [(0, (0, 5)), (7, (7, 12)), (17, (17, 19))])
def test_a_thread_is_lowered_from_the_priority_of_its_process(added: int, expected: tuple[int, int]) -> None:
    """A service manager may have lowered the whole process."""
    command = ["nice", "-n", str(added), sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loop, model = map(int, done.stdout.split())
    own = int(subprocess.run(["nice"], capture_output=True, text=True, check=True).stdout)
    assert (loop, model) == tuple(min(19, own + each) for each in expected)
