"""A store that replies with garbage costs hits, and neither a request nor a right answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.circuit_breaker import BreakerState
from gateway.tasks import cancel_and_wait
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.stores import outside_server
from tests.fixtures.strange_replies import STRANGE
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: main
    match: {}
    cache: {exact: {ttl: 1h}, semantic: off}
    limits: [{requests: 100k/min, per: tenant}]
    route: {backend: main}
"""


class StrangeStore:
    """A proxy of a store's server. `change` replaces what the server sends, if it is set."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._lines: set[asyncio.Task[None]] = set()
        self.change: Callable[[bytes], bytes] | None = None
        self.changed = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        for line in (self._carry(reader, server_writer, False), self._carry(server_reader, writer, True)):
            task = asyncio.create_task(line)
            self._lines.add(task)
            task.add_done_callback(self._lines.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        try:
            while data := await reader.read(2**16):
                if replies and self.change is not None:
                    changed = self.change(data)
                    self.changed += changed != data
                    data = changed
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        await cancel_and_wait(*self._lines)


@asynccontextmanager
async def behind_strange_store(tmp_path: Path, upstream: Upstream) -> AsyncIterator[tuple[StrangeStore, Served]]:
    with outside_server(tmp_path) as outside:
        store = StrangeStore(outside.url)
        async with await asyncio.start_server(store.serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            parts = urlsplit(outside.url)
            url = parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{host}:{port}").geturl()
            config = config_of(
                tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store={"url": url, "timeout": "500ms"}
            )
            try:
                async with gateway_of(config, POLICY) as served:
                    yield store, served
            finally:
                await store.close()


def flipped(seed: int) -> Callable[[bytes], bytes]:
    """One bit of one in two pieces."""
    draw = random.Random(seed)

    def change(data: bytes) -> bytes:
        if draw.random() < 0.5:
            return data
        at = draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]

    return change


async def ask(served: Served, number: int) -> None:
    answer = await served.chat(f"question {number}", headers={"authorization": f"Bearer key-{number % 7}"})
    assert answer.status == 200, answer.body
    assert answer.text == f"upstream answers: question {number}"


async def is_well(store: StrangeStore, served: Served) -> None:
    """The store is in use again once it replies as it should."""
    store.change = None
    redis = served.gateway.stores.redis
    await until(lambda: redis.breaker is not BreakerState.OPEN)
    await ask(served, 10_000)
    await until(lambda: redis.breaker is BreakerState.CLOSED)


@pytest.mark.parametrize("reply", STRANGE.values(), ids=STRANGE)
async def test_a_reply_of_another_form_is_a_miss(tmp_path: Path, upstream: Upstream, reply: bytes) -> None:
    async with behind_strange_store(tmp_path, upstream) as (store, served):
        await ask(served, 0)
        store.change = lambda _: reply
        for start in (0, 10, 5):
            await asyncio.gather(*[ask(served, number) for number in range(start, start + 10)])
        assert store.changed
        await is_well(store, served)


@pytest.mark.parametrize("seed", range(6))
async def test_flipped_bits_in_replies_cost_hits_alone(tmp_path: Path, upstream: Upstream, seed: int) -> None:
    async with behind_strange_store(tmp_path, upstream) as (store, served):
        store.change = flipped(seed)
        draw = random.Random(seed)
        for _ in range(12):
            await asyncio.gather(*[ask(served, draw.randrange(60)) for _ in range(20)])
        assert store.changed
        await is_well(store, served)
