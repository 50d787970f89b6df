"""The gate before backends that are fast enough: clients that ask again as soon as they are answered are never refused,
as long as nobody waits for long, whatever the event loop does meanwhile. In simulated time, through the real gate."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.explanation import parse_request
from gateway.errors import BackendOverloaded
from gateway.upstream.concurrency_limiter import ConcurrencyLimiter
from gateway.upstream.wait_queue import TARGET_DELAY_S
from tests.fixtures.clock import FakeClock

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

CEILING = 64  # the default of `max_concurrency`
HALF = TARGET_DELAY_S / 2  # jitter has some wait twice as long as others
SETTLED = 6  # turns of the event loop, after which nobody runs who does not wait for time to pass


class Simulated:
    """Clients in a closed loop, a gate, and a backend that works on `workers` calls at once, the others queue. Each
    turn of a client costs the event loop `cost_s`; in a stall, from one second to another, nothing runs."""

    def __init__(
        self,
        workers: int,
        service_s: float,
        sigma: float,
        cost_s: float = 0.0,
        stalls: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.clock, self.rng = FakeClock(monotonic=0.0), random.Random(4)
        self.gate = ConcurrencyLimiter("main", CEILING, 60.0, self.clock, adaptive=True)
        self.refused, self.on_response = list[str](), 0
        self._free = [0.0] * workers
        self._service_s, self._sigma, self._cost_s, self._stalls = service_s, sigma, cost_s, stalls
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        request, call = parse_request({"model": "m", "messages": [{"role": "user", "content": "?"}]}, self.clock, "t")
        request.call, self._request = call, request

    def run(self, clients: int, answers: int) -> None:
        """Until there were so many answers."""
        asyncio.run(self._run(clients, answers))

    async def _run(self, clients: int, answers: int) -> None:
        tasks = [asyncio.create_task(self._client(answers)) for _ in range(clients)]
        while not all(task.done() for task in tasks):
            for _ in range(SETTLED):
                await asyncio.sleep(0)
            if self._due:
                self._pass(self._due[0][0] - self.clock.monotonic())
            while self._due and self._due[0][0] <= self.clock.monotonic():
                heapq.heappop(self._due)[2].set_result(None)
        await asyncio.gather(*tasks)

    def _pass(self, seconds: float) -> None:
        """Time passes; what ends within a stall is seen at its end."""
        now = self.clock.monotonic()
        later = now + max(0.0, seconds)
        self.clock.advance(max([later, *(end for start, end in self._stalls if start <= later < end)]) - now)

    async def _client(self, answers: int) -> None:
        while self.on_response < answers:
            self._pass(self._cost_s)
            try:
                place = await self.gate.acquire(self._request)
            except BackendOverloaded as error:
                self.refused.append(str(error))
                return
            self._pass(self._cost_s)
            await self._work()
            self._pass(self._cost_s)
            place.on_response(self._request, 200)
            place.release()
            self.on_response += 1

    async def _work(self) -> None:
        took = self.rng.lognormvariate(math.log(self._service_s) - self._sigma**2 / 2, self._sigma)
        ends = max(heapq.heappop(self._free), self.clock.monotonic()) + took
        heapq.heappush(self._free, ends)
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (ends, next(self._numbers), due))
        await due


def stalls_of(gaps: Sequence[float], stall_s: float) -> list[tuple[float, float]]:
    found, now = [], 0.0
    for gap in gaps:
        found.append((now + gap, now + gap + stall_s))
        now += gap + stall_s
    return found


services = st.floats(math.log(0.0002), math.log(2.0)).map(math.exp)
stalls = st.builds(stalls_of, st.lists(st.floats(0.3, 3.0), max_size=20), st.floats(0.001, 0.3))
sigmas = st.sampled_from([0.0, 0.3, 0.6])
costs = st.sampled_from([0.0, 0.00005, 0.0002, 0.0005])


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 256), service_s=services, sigma=sigmas, cost_s=costs, stalls=stalls)
def test_before_a_backend_that_copes_nobody_is_refused(
    clients: int, service_s: float, sigma: float, cost_s: float, stalls: list[tuple[float, float]]
) -> None:
    """It works on all at once. More clients than `max_concurrency`: where their wait for one of its places is short."""
    if clients > CEILING and (clients - CEILING) * service_s / CEILING > HALF:
        clients = CEILING
    simulated = Simulated(256, service_s, sigma, cost_s, stalls)
    simulated.run(clients, max(200, 3 * clients))
    assert not simulated.refused


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 256), workers=st.integers(1, 64), share=st.floats(0.01, 1.0), sigma=sigmas, cost_s=costs,
       stalls=stalls)  # fmt: skip
def test_nobody_is_refused_while_the_wait_is_not_noticed(
    clients: int, workers: int, share: float, sigma: float, cost_s: float, stalls: list[tuple[float, float]]
) -> None:
    """The backend works on some at once, and all have their turn within half of what is noticed."""
    service_s = max(0.0002, share * HALF * workers / clients)
    simulated = Simulated(workers, service_s, sigma, cost_s, stalls)
    simulated.run(clients, max(200, 3 * clients))
    assert not simulated.refused


def test_a_queue_that_is_noticed_is_bounded() -> None:
    """256 clients, and answers of a second of which the backend works on four: some are refused, and it goes on."""
    simulated = Simulated(4, 1.0, 0.3)
    simulated.run(256, 400)
    assert simulated.refused and simulated.on_response >= 400
    assert simulated.gate.occupancy.queued == 0
