"""A gateway whose light model has versions, before a real Triton."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from gateway.features.demo.triton_server import TritonServer
from gateway.features.light.runtime import Rollouts
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.own_triton import CONFIG
from tests.fixtures.upstream import Upstream, completion, question_of

POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    route:
      light: light
      large: main
      escalate_above: 1
      rollout: {{audit: 100%, per_hour: 100000, margin: 20%, slower: 100{more}}}
"""
MAX_ROUNDS = 400  # of ten questions
SAID = {"wrong": "", "fails": False, "delay_s": 0.0}


@dataclass
class Models:
    """A Triton whose repository has versions of models, each model for one test."""

    server: TritonServer
    repository: Path
    named: int = 0

    def model(self) -> str:
        """Return the name of a new model without versions."""
        self.named += 1
        name = f"light-{self.named}"
        (self.repository / name).mkdir()
        config = CONFIG.format(name=name, count=1, decoupled="false", cancelled="unused")
        (self.repository / name / "config.pbtxt").write_text(config)
        return name

    def put(self, model: str, version: int, **said: Any) -> None:
        folder = self.repository / model / str(version)
        folder.mkdir()
        (folder / "said.json").write_text(json.dumps(SAID | said))
        shutil.copy(Path(__file__).with_name("version.py"), folder / "model.py")


async def last_word(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(completion(call, question_of(call).split()[-1]))


@dataclass
class Route:
    """A gateway whose light model has versions."""

    served: Served
    model: str
    asked: int = 0

    @property
    def rollouts(self) -> Rollouts:
        found = self.served.gateway.features._open["route.rollout"]
        assert isinstance(found, Rollouts)
        return found

    async def admin(self, **body: Any) -> tuple[int, Any]:
        url = f"{self.served.admin_url}/admin/light"
        async with self.served.session.post(url, json={"route": "default"} | body) as response:
            return response.status, await response.json()

    async def start(self, version: int) -> Any:
        status, found = await self.admin(action="start", version=str(version))
        assert status == 200, found
        return found["rollout"]

    async def state(self) -> Any:
        async with self.served.session.get(f"{self.served.admin_url}/admin/light?route=default") as response:
            return (await response.json())["rollouts"][0]

    async def ask(self, words: str = "a or b") -> Answer:
        self.asked += 1
        return await self.served.chat(f"{self.asked} {words} {'red' if self.asked % 2 else 'blue'}")

    async def traffic(self, *changes: str, words: str = "a or b") -> list[str]:
        """Send questions until the newest changes are these, the newest last. Return the events since the start."""
        events: list[Any] = []
        for _ in range(MAX_ROUNDS):
            for _ in range(10):
                assert (await self.ask(words)).status == 200
            events = [each["change"] for each in reversed((await self.state())["events"])]
            if tuple(events[-len(changes) :]) == changes:
                return events
        raise AssertionError(await self.state())


@asynccontextmanager
async def routed(
    models: Models,
    upstream: Upstream,
    folder: Path,
    model: str,
    more: str = "",
    more_backends: Mapping[str, Any] = MappingProxyType({}),
    **sections: Any,
) -> AsyncIterator[Route]:
    upstream.answer = last_word
    backends = {
        "main": {"adapter": "openai", "url": upstream.url},
        "light": {"adapter": "triton", "url": models.server.url, "model": model},
        **more_backends,
    }
    async with gateway_of(config_of(folder, backends, **sections), POLICY.format(more=more)) as served:
        yield Route(served, model)
