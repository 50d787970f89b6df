"""What the log says of faults that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
import uvloop

from gateway.observability import json_logging

KEY = "Bearer sk-canary"
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = [logging.getLogger(name) for name in ("nearhit.http", "nearhit.audit", "watchfiles", "asyncio", "aiohttp")]
    levels = [each.level for each in quiet]
    yield
    root.handlers[:], root.level = handlers, level
    for each, before in zip(quiet, levels, strict=True):
        each.setLevel(before)


def said_of(loop: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    gc.collect()  # what tests before this one left has its say before there is this log
    stream = io.StringIO()

    async def with_log() -> None:
        json_logging.configure_logging("info", stream)
        await work()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(with_log())
    assert "canary" not in stream.getvalue()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail(request: dict[str, str]) -> None:
    raise RuntimeError(f"a fault of ours with {request}")


@LOOPS
def test_a_callback_that_fails_is_named_without_what_it_holds(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(partial(fail, {"authorization": KEY}))
        await asyncio.sleep(0)

    (line,) = said_of(loop, work)
    assert (line["level"], line["message"], line["error"]) == ("error", "Exception in callback", "RuntimeError")
    assert line["traceback"][-1].endswith(" fail")


@LOOPS
def test_a_task_that_nobody_waits_for_is_said_without_what_it_holds(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def failing() -> None:
        fail({"authorization": KEY})

    async def work() -> None:
        task = asyncio.create_task(failing(), name=KEY)
        await asyncio.sleep(0)
        del task
        gc.collect()

    (line,) = said_of(loop, work)
    assert line["message"] == "Task exception was never retrieved"
    assert line["traceback"][-1].endswith(" fail")
