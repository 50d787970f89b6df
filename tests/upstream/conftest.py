"""Tests of the client run on the loop of a gateway that is started as users start it: its transports are others than
asyncio's own, on which the tests of the proxy run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from gateway.upstream.http1.client import Client
from gateway.upstream.http1.headers import Origin
from tests.fixtures.http_clients import PATIENT_S
from tests.fixtures.wire import WireUpstream, wire_upstream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def server() -> AsyncIterator[WireUpstream]:
    async with wire_upstream() as server:
        yield server


@pytest.fixture
async def client(server: WireUpstream) -> AsyncIterator[Client]:
    made = Client(Origin.of(server.url), connect_s=PATIENT_S, max_connections=2, idle_s=10 * PATIENT_S)
    yield made
    await made.close()
