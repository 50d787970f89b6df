"""The stage of a scene file: one gateway before scripted upstreams, cleared between two scenes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from gateway.config import Config
from gateway.config.policy.load import policy_from_text
from gateway.observability.metrics import Counter
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, frame, question_of, serving, stream
from tests.fixtures.waiting import until
from tests.scenes.scene import ALL, Reply, Sent, Step


class Stage:
    def __init__(
        self, served: Served, config: Config, policy: dict[str, Any], upstreams: Mapping[str, Upstream], clock: Any
    ) -> None:
        self.served = served
        self.upstreams = upstreams
        self.order: list[str] = []  # the upstream of each call
        self.sent = b""  # the last whole body of an upstream
        self.clock = clock
        self._config, self._policy = config, policy
        self._before: dict[tuple[str, tuple[str, ...]], float] = {}

    async def clear(self, policy: dict[str, Any] | None, script: Mapping[str, Sequence[Reply]]) -> None:
        """Forget what was stored and called, and put the policy and the script of a scene in force."""
        gateway = self.served.gateway
        text = yaml.safe_dump({"version": 1, **(policy or self._policy)})
        gateway.apply(policy_from_text(text, "policy.yaml", self._config))
        async with self.served.session.post(self.served.admin_url + "/admin/cache/purge", json={"all": True}) as answer:
            assert answer.status == 200, await answer.text()
        if isinstance(self.clock, FakeClock):
            self.clock.advance(1)  # what is stored now is younger than the purge
        self.order.clear()
        for name, upstream in self.upstreams.items():
            upstream.calls.clear()
            upstream.gate.set()
            upstream.answer = self._player(name, script.get(name, script.get(ALL, ())))
        self._before = self._counts()

    def _player(self, name: str, replies: Sequence[Reply]) -> Any:
        """Return a handler that gives one reply after another, and the last one again and again."""
        rest = list(replies)

        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            self.order.append(name)
            if not rest:
                return await self.upstreams[name]._default(request, await request.read())
            response = await play(rest.pop(0) if len(rest) > 1 else rest[0], name, request, call)
            self.sent = (
                response.body if isinstance(response, web.Response) and isinstance(response.body, bytes) else b""
            )
            return response

        return answer

    async def entries(self) -> int:
        """Return the number of stored entries: the largest one of the store, the memory and the index."""
        parts = self.served.gateway.parts
        return max((await parts.store.stats()).entries, len(parts.store), parts.space.index.size)

    async def send(self, step: Step) -> Answer:
        path, body = step.path or "/v1/chat/completions", step.body
        if step.ask is not None:
            body = {"model": "m", "messages": [{"role": "user", "content": step.ask}]}
        if isinstance(body, dict):
            body = {**body, **step.fields, **({"stream": True} if step.stream else {})}
        given: dict[str, Any] = {} if body is None else {"json": body}
        if step.raw is not None:
            given = {"data": step.raw.encode(), "headers": {"Content-Type": "application/json"}}
        headers = [*dict(given.pop("headers", {})).items(), *dict_items(step.headers)]
        url = self.served.url + path
        async with self.served.session.request(step.method, url, headers=headers, **given) as response:
            answer = Answer(response.status, response.headers.copy(), await response.read())
        await self.served.settle()
        return answer

    async def send_together(self, steps: Sequence[Step]) -> list[Answer]:
        """Send requests so that each finds the ones before it in flight."""
        for upstream in self.upstreams.values():
            upstream.gate.clear()
        tasks: list[asyncio.Task[Answer]] = []
        for step in steps:
            tasks.append(asyncio.create_task(self.send(step)))
            await until(lambda: self._on_their_way() + sum(task.done() for task in tasks) >= len(tasks))
        for upstream in self.upstreams.values():
            upstream.gate.set()
        return list(await asyncio.gather(*tasks))

    def _on_their_way(self) -> int:
        """Return the number of requests that wait for the upstreams. A single one may have no flight."""
        return max(
            aboard(self.served), sum(len(upstream.calls) for upstream in self.upstreams.values()) - len(self.order)
        )

    def calls(self) -> list[Sent]:
        """Return the calls in order."""
        positions = dict.fromkeys(self.upstreams, 0)
        calls = []
        for name in self.order:
            call = self.upstreams[name].calls[positions[name]]
            positions[name] += 1
            calls.append(call)
        return calls

    def counted(self) -> dict[str, dict[str, float]]:
        """Return what the counters counted in this scene: the metric, then its labels but the route."""
        counts: dict[str, dict[str, float]] = {}
        for (name, labels), value in self._counts().items():
            if more := value - self._before.get((name, labels), 0.0):
                counts.setdefault(name, {})[" ".join(labels)] = more
        return counts

    def _counts(self) -> dict[tuple[str, tuple[str, ...]], float]:
        counters = [each for each in vars(self.served.gateway.parts.telemetry).values() if isinstance(each, Counter)]
        counts: dict[tuple[str, tuple[str, ...]], float] = {}
        for counter in counters:
            for labels, value in counter.values.items():
                shown = tuple(v for name, v in zip(counter.labels, labels, strict=True) if name != "route")
                counts[counter.name, shown] = counts.get((counter.name, shown), 0.0) + value
        return counts


def dict_items(headers: dict[str, str] | list[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(headers.items()) if isinstance(headers, dict) else headers


async def play(reply: Reply, name: str, request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    if reply.drop:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    if reply.json_ is not None:
        return web.json_response(reply.json_, status=reply.status, headers=reply.headers)
    if reply.body is not None:
        return web.Response(text=reply.body, status=reply.status, headers=reply.headers)
    if reply.events is not None:
        frames = b"".join(
            f"data: {each}\n\n".encode() if isinstance(each, str) else frame(each) for each in reply.events
        )
        return web.Response(body=frames, content_type="text/event-stream", headers=reply.headers)
    text = f"{name} answers: {question_of(call)}" if reply.text is None else reply.text.format_map(request.headers)
    if call.get("stream"):
        options: Any = {"finish": reply.finish, "done": reply.done, "cut": reply.cut, "headers": reply.headers}
        return await stream(request, call, text, **options)
    body = completion(call, text, reply.finish, **reply.message)
    return web.json_response(body, status=reply.status, headers=reply.headers)


@asynccontextmanager
async def stage(folder: Path, house: Mapping[str, Any], takes_time: bool) -> AsyncIterator[Stage]:
    """Start the gateway of a scene file."""
    sections = dict(house["config"])
    backends = sections.pop("backends", {"main": {}})
    async with AsyncExitStack() as stack:
        upstreams = {name: await stack.enter_async_context(serving(Upstream(name))) for name in backends}
        told = {name: {"adapter": "openai", "url": upstreams[name].url, **own} for name, own in backends.items()}
        config = config_of(folder, told, **sections)
        clock = FakeClock() if takes_time else None
        policy = policy_from_text(yaml.safe_dump({"version": 1, **house["policy"]}), "policy.yaml", config)
        served = await stack.enter_async_context(gateway_of(config, policy, clock=clock))
        yield Stage(served, config, house["policy"], upstreams, clock)
