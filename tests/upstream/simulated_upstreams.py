"""A simulation of one backend with several upstreams: the real pool, in simulated time, before upstreams with faults.

Calls arrive at random and overlap. A seed decides everything.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.context import Load, RequestContext
from gateway.dialects.known import DIALECTS
from gateway.errors import BackendError, UpstreamStreamError
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.observability.telemetry import Telemetry
from gateway.priority import Priority
from gateway.streams import BufferedBody, drain
from gateway.upstream.backend import BackendRules, UpstreamPool
from gateway.upstream.upstream import Upstream, UpstreamConfig
from tests.fixtures.clock import FakeClock

JSON = (("Content-Type", "application/json"),)
CHAT = DIALECTS["openai"]
PATH = "/v1/chat/completions"
TEXT = {"id": "c", "object": "chat.completion", "model": "m"}


def choice(content: str | None, finish: str = "stop") -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}


def whole(value: object, status: int = 200) -> Response:
    return Response(status, JSON, FullBody(value if isinstance(value, bytes) else orjson.dumps(value)))


def events(texts: Sequence[str], *, cut: bool = False) -> Response:
    async def items() -> AsyncIterator[Event]:
        for text in texts:
            yield Event(orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}))
        if cut:
            raise UpstreamStreamError("it broke off")
        yield Event(orjson.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        yield Event(b"[DONE]")

    return Response(200, (("Content-Type", "text/event-stream"),), EventStream(items()))


def error(code: str, message: str = "no") -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


def good(stream: bool) -> Response:
    if stream:
        return events(["one ", "two ", "three"])
    return whole({**TEXT, "choices": [choice("a good answer")]})


def broken(_: bool) -> Response:
    raise BackendError("the connection broke")


Fault = Callable[[bool], Response]
FAULTS: dict[str, Fault] = {
    "401": lambda _: whole(error("invalid_api_key"), 401),
    "402": lambda _: whole(error("insufficient_credits"), 402),
    "403": lambda _: whole(error("permission_denied"), 403),
    "404 model": lambda _: whole(error("model_not_found", "The model `m` does not exist"), 404),
    "404 page": lambda _: whole(b"404 page not found", 404),
    "404 else": lambda _: whole(error("not_found"), 404),
    "400": lambda _: whole(error("unknown_field"), 400),
    "302": lambda _: Response(302, (("Location", "/login"),), FullBody(b"")),
    "429": lambda _: whole(error("rate_limit_exceeded"), 429),
    "429 quota": lambda _: whole(error("insufficient_quota"), 429),
    "429 wait": lambda _: Response(429, (*JSON, ("Retry-After", "1")), FullBody(b"{}")),
    "500": lambda _: whole(error("internal"), 500),
    "529": lambda _: whole(error("overloaded"), 529),
    "cached 503": lambda _: Response(503, (*JSON, ("Age", "60")), FullBody(b"{}")),
    "broken": broken,
    "empty body": lambda _: whole(b""),
    "empty answer": lambda stream: events([]) if stream else whole({**TEXT, "choices": [choice("")]}),
    "null answer": lambda stream: events([""]) if stream else whole({**TEXT, "choices": [choice(None)]}),
    "error in a 200": lambda _: whole(error("server_error")),
    "page in a 200": lambda _: whole(b"<!doctype html><title>Welcome to nginx!</title>" * 60),
    "cut": lambda stream: events(["one "], cut=True) if stream else broken(stream),
}


@dataclass
class Server:
    """One simulated upstream. `seconds` is its mean time to answer well; a fault takes a millisecond."""

    name: str
    seconds: float = 0.1
    fault: Fault | None = None
    fault_share: float = 1.0  # of the answers, while there is a fault
    calls: list[int] = field(default_factory=list)  # the number of each call that it got


class SimulatedBackend:
    """Implements `Backend` in simulated time."""

    http, speaks = True, "openai"

    def __init__(self, server: Server, world: World) -> None:
        self.name = "main"
        self._server, self._world = server, world

    @property
    def occupancy(self) -> Load:
        return Load(0, 1000, 0)

    def wait_s(self, priority: Priority) -> float:
        return 0.0

    async def send(self, request: RequestContext) -> Response:
        server, world = self._server, self._world
        server.calls.append(world.number)
        fault = server.fault if world.chance.random() < server.fault_share else None
        seconds = 0.001 if fault is not None else server.seconds * world.chance.lognormvariate(-0.02, 0.2)
        await world.pass_time(seconds)
        assert request.call is not None
        return (fault or good)(request.call.stream)

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        return []

    async def ready(self) -> bool:
        return True

    async def close(self) -> None: ...


class World:
    """The simulated time, with the calls on their way."""

    def __init__(self, servers: Sequence[Server], seed: int, rate: float, *, streamed: bool = False) -> None:
        self.clock = FakeClock(wall=0.0)
        self.chance = random.Random(seed)
        self.number = 0  # of the calls of clients so far
        self.rate = rate
        self._streamed = streamed
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()
        telemetry = Telemetry()
        self.endpoints = [
            Upstream(UpstreamConfig(SimulatedBackend(server, self), server.name), self.clock, telemetry)
            for server in servers
        ]
        self.pool = UpstreamPool(
            "main", self.endpoints, self.clock, telemetry, BackendRules(), random.Random(seed + 1).random
        )
        self.statuses: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def pass_time(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (self.clock.monotonic() + seconds, next(self._order), future))
        await future

    async def run(self, calls: int) -> None:
        """Let so many calls arrive, and end."""
        for _ in range(calls):
            await self._until(self.clock.monotonic() + self.chance.expovariate(self.rate))
            self.number += 1
            task = asyncio.create_task(self._call())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await self._settle()
        while self._due:
            await self._until(self._due[0][0])
        assert not self._tasks

    async def _until(self, at: float) -> None:
        while self._due and self._due[0][0] <= at:
            due, _, future = heapq.heappop(self._due)
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
            future.set_result(None)
            await self._settle()
        self.clock.advance(at - self.clock.monotonic())

    async def _settle(self) -> None:
        """Let the tasks run until all of them wait for the simulated time."""
        for _ in range(16):
            if len(self._due) == len(self._tasks):
                return
            await asyncio.sleep(0)

    async def _call(self) -> None:
        body = {"model": "m", "stream": self._streamed, "messages": [{"role": "user", "content": "hi"}]}
        data = orjson.dumps(body)
        request = RequestContext(
            request_id="r",
            method="POST",
            path=PATH,
            query="",
            headers=CIMultiDict[str](),
            body_source=BufferedBody(data),
            clock=self.clock,
        )
        request.call = CHAT.parse(PATH, data, request.headers)
        try:
            response = await self.pool.call(request)
            self.statuses.append(response.status)
            await drain(response.body)
        except BackendError as failure:
            self.statuses.append(failure.status)
        except UpstreamStreamError:
            pass


def share(server: Server, first: int, last: int) -> float:
    """Return the calls to a server while the client's calls `first` to `last` came, as a share of these."""
    return sum(first < number <= last for number in server.calls) / (last - first)
