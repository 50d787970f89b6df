from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.adapters.system import json_webhook
from gateway.features.demo.errors import TritonUnavailable
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer
from gateway.features.light import runtime
from tests.features.light.routes import Models
from tests.features.spend.test_budgets import Receiver
from tests.fixtures.build_environment import python as python  # the fixture
from tests.fixtures.triton import CHECKOUT, free_ports
from tests.fixtures.upstream import listening


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder = tmp_path_factory.mktemp("light")
    (folder / "models").mkdir()
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            env = ensure_triton(CHECKOUT / ".venv-triton", print)
            ports = TritonPorts(*free_ports(3))
            server = runner.run(TritonServer.start(env, folder / "models", folder, ports, control=True))
        except TritonUnavailable as reason:
            pytest.skip(str(reason))
        try:
            yield Models(server, folder / "models")
        finally:
            runner.run(server.stop())


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "CHECK_S", 0.05)
    monkeypatch.setattr(runtime, "TURN_S", 0.04)
    monkeypatch.setattr(json_webhook, "PAUSES_S", (0.0, 0.0))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    async with listening(found.answer) as url:
        found.url = url
        yield found
