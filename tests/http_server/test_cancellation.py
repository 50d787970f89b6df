"""A cancellation that arrives while the store is asked is never lost, whatever the client library makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from tests.fixtures.gateways import PATIENT_S

TURNS = 40  # of the event loop: more than connecting and one command take


async def test_a_cancelled_store_call_is_cancelled_at_every_point_of_its_way(tmp_path: Path) -> None:
    """A lost cancellation lets a request of a client that has left go on to the backend, and kept the gateway itself
    from stopping."""
    server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    try:
        lost = [turn for turn in range(TURNS) if not await ends_when_cancelled(server.url, turn)]
        assert lost == []
    finally:
        await server.stop()


async def ends_when_cancelled(url: str, turn: int) -> bool:
    """Cancels a first call after `turn` turns of the loop; True where it was over by then."""
    store = RedisStore(connect(url, PATIENT_S), embedder="e", timeout_s=5.0, clock=SystemClock())
    try:
        call = asyncio.create_task(store.stats())
        for _ in range(turn):
            await asyncio.sleep(0)
        over = not call.cancel()
        await asyncio.wait([call])
        return over or call.cancelled()
    finally:
        await store.close()
