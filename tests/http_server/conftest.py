from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from httpx2._transports import default

from gateway.http_server import server
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import Wire, WireUpstream, connected, wire_upstream


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """Share the TLS context of the official clients: to read the system's authorities takes 30 ms for each client."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default, "create_ssl_context", cache(default.create_ssl_context))
        yield


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a body that was refused may be slow to come; the next request stands behind it."""
    monkeypatch.setattr(server, "LINGER_S", 120.0)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, with nothing changed but its base URL; it does not retry, so that a failure is seen."""
    async with openai_client(served) as client:
        yield client


def openai_client(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0, timeout=120.0)


@pytest.fixture
def absent(upstream: Upstream) -> Upstream:
    """One that has nothing of what it is asked for."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    upstream.answer = answer
    return upstream


@pytest.fixture
async def raw() -> AsyncIterator[WireUpstream]:
    """An upstream that answers in bytes."""
    async with wire_upstream() as upstream:
        yield upstream


@pytest.fixture
async def before_raw(raw: WireUpstream, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway before `raw`. Its bodies may be small: what passes through is not bound by that."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": raw.url}}, server={"max_body": "64KiB"})
    async with gateway_of(config) as gateway:
        yield gateway


@pytest.fixture
async def wire(served: Served) -> AsyncIterator[Wire]:
    """A bare connection to `served`."""
    async with connected(served.url) as wire:
        yield wire
