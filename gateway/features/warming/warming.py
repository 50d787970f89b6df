"""Cache warming: prompts are sent through the data port at a bounded rate."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from gateway.cli.output import CommandFailed
from gateway.cli.progress import Advance

MAX_LINE = 10 * 2**20
MAX_FAULTS = 10
CONNECT_S, TIMEOUT_S = 5.0, 900.0
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(?:/(s|m|h))?", re.ASCII)
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class WarmingPlan:
    """Options of one warming run. `rate` is in requests per second."""

    file: Path
    url: str
    model: str
    rate: float
    concurrency: int
    headers: Mapping[str, str]


@dataclass(slots=True)
class WarmingSummary:
    stored: int = 0
    hits: int = 0
    not_stored: int = 0  # answered, but the policy or the answer forbids storage
    failed: int = 0
    first_failure: str | None = None  # without prompts or answers

    def count(self, status: int, cache_status: str) -> None:
        if status != 200:
            self.record_failure(f"status {status}")
        elif "; hit" in cache_status:
            self.hits += 1
        elif "; stored" in cache_status:
            self.stored += 1
        else:
            self.not_stored += 1

    def record_failure(self, reason: str) -> None:
        self.failed += 1
        self.first_failure = self.first_failure or reason


def parse_rate(text: str) -> float:
    """Parse `5/s`, `300/m` or `5` into requests per second. Raises `ValueError`."""
    match = _RATE.fullmatch(text)
    rate = float(match[1]) / _SECONDS[match[2]] if match else 0.0
    if rate <= 0:
        raise ValueError(f"expected a rate such as 5/s or 100/m, got {text!r}")
    return rate


def count_prompts(plan: WarmingPlan) -> int:
    """Count the prompts. Raises `CommandFailed` with the invalid lines, before anything is sent."""
    count, faults = 0, []
    for number, line in _lines(plan.file):
        try:
            _parse_line(line, plan.model)
            count += 1
        except ValueError as error:
            faults.append(f"{plan.file}:{number}: {error}")
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise CommandFailed("\n".join(faults))
    return count


async def warm(plan: WarmingPlan, total: int, progress: Advance) -> WarmingSummary:
    """Send all prompts. Raises `CommandFailed` if no gateway listens."""
    summary = WarmingSummary()
    places = asyncio.Semaphore(plan.concurrency)
    begun = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:

        async def send(path: str, body: bytes) -> None:
            try:
                await _send(session, plan, path, body, summary)
            finally:
                places.release()
            progress(1)

        for i, (_, line) in enumerate(_lines(plan.file)):
            await asyncio.sleep(max(0.0, begun + i / plan.rate - time.monotonic()))
            await places.acquire()
            path, body = _parse_line(line, plan.model)
            tasks.create_task(send(path, body))
    if summary.failed == total > 0 and summary.first_failure == NO_LISTENER:
        raise CommandFailed(f"no gateway answers at {plan.url}: start one with its data port there, or change --url")
    return summary


NO_LISTENER = "no gateway listens"


async def _send(
    session: aiohttp.ClientSession, plan: WarmingPlan, path: str, body: bytes, summary: WarmingSummary
) -> None:
    headers = {"Content-Type": "application/json", **plan.headers}
    try:
        async with session.post(plan.url + path, data=body, headers=headers) as response:
            async for _ in response.content.iter_chunked(2**16):
                pass  # read to the end: only a complete stream is stored
            summary.count(response.status, response.headers.get("Cache-Status", ""))
    except aiohttp.ClientConnectorError:
        summary.record_failure(NO_LISTENER)
    except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
        summary.record_failure(type(error).__name__)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as opened:
            number = 0
            while line := opened.readline(MAX_LINE):
                number += 1
                if len(line) == MAX_LINE:
                    raise CommandFailed(f"{file}:{number}: expected a line of at most {MAX_LINE} bytes")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise CommandFailed(f"{file}: cannot be read ({error.strerror}): expected a file of prompts") from None


def _parse_line(line: bytes, model: str) -> tuple[str, bytes]:
    """Return the path and the body of a request. Raises `ValueError`."""
    expected = "expected a JSON string, or a body with messages or a prompt"
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}), {expected}") from None
    if isinstance(value, str) and value.strip():
        value = {"messages": [{"role": "user", "content": value}]}
    if not isinstance(value, dict) or not (isinstance(value.get("messages"), list) or "prompt" in value):
        raise ValueError(expected)
    path = "/v1/chat/completions" if "messages" in value else "/v1/completions"
    return path, orjson.dumps({"model": model, **value})
