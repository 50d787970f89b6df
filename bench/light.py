"""Plays a day of a light model before a real Triton in some minutes, as docs/light.md describes it (`make light`).

A first version is rolled out, a better one is promoted, a worse one is refused, and one that drifts goes back. The
large model is scripted; training, Triton and the gateway are real. Each change is printed, and is on the dashboard.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bench.gateways import free_port, gateway_of
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer

ROUTE = "intents"
CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
backends:
  light: {{adapter: triton, url: "{triton}", model: intents}}
  large: {{adapter: openai, url: "{large}"}}
"""
POLICY = """
version: 1
routes:
  - name: intents
    match: {}
    route:
      light: light
      large: large
      escalate_above: 1
      rollout: {audit: 50%, per_hour: 100000, margin: 10%, agreement: 40%}
"""
Vocabulary = Mapping[str, tuple[str, ...]]
FIRST: Vocabulary = {
    "lost": ("card", "purse"),
    "price": ("cost", "fee"),
    "change": ("address", "name"),
    "close": ("cancel", "end"),
}
LATER: Vocabulary = {
    "lost": ("wallet", "key"),
    "price": ("charge", "tariff"),
    "change": ("phone", "email"),
    "close": ("quit", "stop"),
}
STARTS = ("my", "what of the", "about a", "please the", "now the", "one more", "again the", "why the")
ENDS = ("today", "please", "at once", "for me", "in May", "here", "then", "online")
LIMIT_S = 150.0  # for one change; it only ends a failed run


@dataclass
class Day:
    """The gateway and the traffic that it gets."""

    url: str
    admin: str
    config: Path
    options: Sequence[str]
    session: aiohttp.ClientSession
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    seen: int = 0
    asked: int = 0

    def question(self, *vocabularies: Vocabulary) -> str:
        words = [word for each in vocabularies for of in each.values() for word in of]
        self.asked += 1
        return f"{self.draw.choice(STARTS)} {self.draw.choice(words)} {self.draw.choice(ENDS)} {self.asked % 97}"

    async def ask(self, count: int, *vocabularies: Vocabulary) -> None:
        for _ in range(count):
            body = {"model": "m", "messages": [{"role": "user", "content": self.question(*vocabularies)}]}
            async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()

    async def nearhit(self, *words: str) -> None:
        """Run a command as a person types it."""
        print(f"$ nearhit light {' '.join(words)}", flush=True)
        line = [sys.executable, "-m", "gateway", "light", *words, "--route", ROUTE, "--config", str(self.config)]
        line += ["--admin", self.admin, *(self.options if not words or words[0] == "--distill" else ())]
        process = await asyncio.create_subprocess_exec(*line)
        assert await process.wait() == 0

    async def state(self) -> dict[str, Any]:
        async with self.session.get(f"{self.admin}/admin/light") as response:
            found: dict[str, Any] = (await response.json())["rollouts"][0]
        events = found["events"][::-1]
        for event in events[self.seen :]:
            print(f"  {event['change']:<11} version {event['version'] or '-'}: {event['why']}", flush=True)
        self.seen = len(events)
        return found

    async def until(self, change: str, version: str, *vocabularies: Vocabulary) -> None:
        """Send questions until a version has this change."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                newest = (await self.state())["events"][0]
                if (newest["change"], newest["version"]) == (change, version):
                    return
                await self.ask(10, *vocabularies)


async def play(day: Day) -> None:
    print("morning: the large model answers, and a first version learns from it", flush=True)
    await day.ask(300, FIRST)
    await day.nearhit()
    await day.until("promoted", "1", FIRST)
    print("noon: people use other words, and a better version learns them", flush=True)
    await day.ask(1200, FIRST, LATER)
    await day.nearhit()
    await day.until("promoted", "2", FIRST, LATER)
    print("afternoon: a training of a model that is too small makes a worse version", flush=True)
    await day.nearhit("--distill", "--width 1 --hidden 1")
    assert (await day.state())["events"][0]["change"] == "refused"
    print("evening: the first version is as good, as long as people use the old words", flush=True)
    await day.nearhit("start", "--version", "1")
    await day.until("promoted", "1", FIRST)
    print("night: they use the new words, so the first version drifts", flush=True)
    await day.until("rolled-back", "1", LATER)
    await day.nearhit("list")


async def answer(request: web.Request) -> web.Response:
    """Answer as the large model: with the class of the question."""
    body = await request.json()
    words = {*body["messages"][-1]["content"].split()}
    label = next(kind for each in (FIRST, LATER) for kind, of in each.items() if words & {*of})
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": label}}
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
    return web.json_response(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


async def run(given: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "models").mkdir()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        large = free_port()
        await web.TCPSite(runner, "127.0.0.1", large).start()
        environment = ensure_triton(given.triton_env, print)
        ports = TritonPorts(free_port(), free_port(), free_port())
        triton = await TritonServer.start(environment, home / "models", home, ports, control=True)
        stack.push_async_callback(triton.stop)
        served = gateway_of(CONFIG, POLICY, triton=triton.url, large=f"http://127.0.0.1:{large}/v1")
        gateway = await asyncio.to_thread(stack.enter_context, served)
        config = home / "config.yaml"
        backends = {"large": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}}
        config.write_text(json.dumps({"version": 1, "backends": backends}))
        admin = f"http://127.0.0.1:{gateway.admin}"
        print(f"dashboard: {admin}/dashboard#/light", flush=True)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        options = ["--repository", str(home / "models"), "--build-env", str(given.build_env)]
        await play(Day(f"http://127.0.0.1:{gateway.port}", admin, config, options, session))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-env", type=Path, default=Path(".venv-build"))
    parser.add_argument("--triton-env", type=Path, default=Path(".venv-triton"))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
