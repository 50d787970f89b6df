"""Calls that are hedged, over real sockets: who wins, what becomes of the other, and when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.explanation import parse_request
from gateway.context import RequestContext
from gateway.messages import Event, EventStream, Response
from gateway.streams import BufferedStream
from gateway.upstream.hedging import HedgeAttempt as Heard
from gateway.upstream.hedging import HedgeRules, Hedging
from gateway.upstream.latency import CallFeatures
from gateway.upstream.upstream import Upstream as GatewayUpstream
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, chunk, completion, serving
from tests.fixtures.waiting import until

TOOK_S = 0.15  # on the clock of the gateway; hedges wait for about as long in fact


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Upstream, Upstream]]:
    """The calls go to the first one, as it is the cheaper one by far; hedges go to the second one."""
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(serving(Upstream(name))) for name in "ab"]
        yield first, second


def main(pair: tuple[Upstream, ...], **keys: Any) -> dict[str, Any]:
    first, *others = [upstream.url for upstream in pair]
    listed = [{"url": first, "weight": 1000}, *others]
    return {"main": {"adapter": "openai", "upstreams": listed, "hedge": {"budget": 0.2}, **keys}}


@contextmanager
def patient() -> Iterator[list[bool]]:
    """Meanwhile who is asked first has all the time that a busy machine takes. -> whether each time nobody had answered
    or failed when it was no longer waited for."""
    ended: list[bool] = []

    async def pause(race: Any, seconds: float) -> None:
        await asyncio.wait(race._endpoints, return_when=asyncio.FIRST_COMPLETED)
        ended.append(race.is_open)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upstream.hedging._Race.pause", pause)
        yield ended


@contextmanager
def delayed_until(holds: Callable[[], object]) -> Iterator[None]:
    """Meanwhile hedges are due then, however long a busy machine takes to get there."""

    async def pause(race: Any, seconds: float) -> None:
        await until(holds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upstream.hedging._Race.pause", pause)
        yield


async def known(served: Served, pair: tuple[Upstream, ...], clock: FakeClock, calls: int = 20) -> None:
    """What the first one takes is known, and the budget has so many calls. Then it holds its answers back."""
    pair[0].answer = taking(clock, TOOK_S, "a answers")
    with patient():
        for i in range(calls):
            assert (await served.chat(f"known {i}")).text == "a answers"
    assert len(pair[1].calls) == 0
    pair[0].answer = None
    pair[0].gate.clear()


@asynccontextmanager
async def hedging(
    pair: tuple[Upstream, ...], folder: Path, clock: FakeClock, calls: int = 20, **keys: Any
) -> AsyncIterator[Served]:
    """A gateway before the two, `known`. `keys`: of the backend."""
    async with gateway_of(config_of(folder, main(pair, **keys)), NO_CACHE, clock=clock) as served:
        await known(served, pair, clock, calls)
        yield served


def hedges(served: Served) -> dict[str, float]:
    return {outcome: count for (outcome,), count in served.gateway.parts.telemetry.hedges.values.items()}


def endpoints(served: Served) -> tuple[GatewayUpstream, ...]:
    return served.gateway.parts.pools["main"].endpoints


def inflight(served: Served) -> list[tuple[int, int]]:
    return [(endpoint.load, endpoint.backend.occupancy.inflight) for endpoint in endpoints(served)]


def taking(clock: FakeClock, seconds: float, text: str) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(seconds)
        return web.json_response(completion(call, text))

    return answer


def answering(status: int) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    return answer


async def test_the_second_upstream_answers_and_the_first_call_is_cancelled(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        answer = await served.chat("slow")
        assert answer.text == "b answers: slow"
        assert hedges(served) == {"won": 1}
        assert inflight(served) == [(0, 0), (0, 0)], "the place of who lost is free"
        await until(pair[0].left.is_set)
        assert pair[0].cancelled == 1
        assert pair[1].calls[0].json == pair[0].calls[-1].json


async def test_both_calls_share_one_total(pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock) -> None:
    async with hedging(pair, tmp_path, clock, timeouts={"total": "3s", "first_byte": "60s"}) as served:
        pair[1].gate.clear()
        answer = await served.chat("slow")
        assert answer.status == 504
        assert len(pair[1].calls) == 1, "the second call was made"
        await until(lambda: inflight(served) == [(0, 0), (0, 0)])


async def test_what_the_cancelled_call_had_taken_counts_as_the_least_that_it_takes(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        pair[1].answer = taking(clock, 1.0, "b answers")
        endpoint = endpoints(served)[0]
        before = endpoint.predict(CallFeatures(route="default"), clock.monotonic(), 0.95)
        await served.chat("slow")
        after = endpoint.predict(CallFeatures(route="default"), clock.monotonic(), 0.95)
        assert before is not None
        assert after is not None
        assert after.total_s > 1.5 * before.total_s
        assert endpoint.slowest_s() == pytest.approx(1.0)


async def test_the_first_upstream_may_answer_after_all(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        pair[1].gate.clear()
        asking = asyncio.create_task(served.chat("slow"))
        await until(pair[1].arrived.is_set)
        pair[0].gate.set()
        assert (await asking).text == "a answers: slow"
        assert hedges(served) == {"lost": 1}
        assert inflight(served) == [(0, 0), (0, 0)]
        await until(pair[1].left.is_set)


async def test_a_stream_is_hedged_before_its_first_byte_and_never_after_it(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    paused, go_on = asyncio.Event(), asyncio.Event()

    async def in_two_parts(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(call, {"content": "one"}))
        paused.set()
        await go_on.wait()
        await response.write(chunk(call, {"content": " two"}, "stop") + b"data: [DONE]\n\n")
        return response

    async with hedging(pair, tmp_path, clock) as served:
        pair[1].answer = in_two_parts
        asking = asyncio.create_task(served.chat("slow", stream=True))
        await until(paused.is_set)
        await until(pair[0].left.is_set)
        assert hedges(served) == {"won": 1}

        pair[0].gate.set()
        pair[0].answer, pair[1].answer = in_two_parts, None
        paused.clear()
        with patient() as ended:
            other = asyncio.create_task(served.chat("slow after its first byte", stream=True))
            await until(paused.is_set)
            await until(lambda: ended == [False])  # by the first byte: the rest has not come
        await asyncio.wait({other}, timeout=4 * TOOK_S)  # many times the delay: nothing must come of it
        go_on.set()
        assert [b"one" in (await each).body for each in (asking, other)] == [True, True]
        assert hedges(served) == {"won": 1}
        assert inflight(served) == [(0, 0), (0, 0)]


async def test_a_client_that_leaves_cancels_both(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        pair[1].gate.clear()
        asking = asyncio.create_task(served.chat("slow"))
        await until(pair[1].arrived.is_set)
        asking.cancel()
        await until(pair[0].left.is_set)
        await until(pair[1].left.is_set)
        await until(lambda: inflight(served) == [(0, 0), (0, 0)])
        assert hedges(served) == {"cancelled": 1}


async def test_a_client_that_leaves_before_the_hedge_cancels_the_one_call(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock, calls=3) as served:  # no budget yet: the call waits on
        asking = asyncio.create_task(served.chat("slow"))
        await until(lambda: pair[0].calls[-1].json["messages"][0]["content"] == "slow")
        asking.cancel()
        await until(pair[0].left.is_set)
        await until(lambda: inflight(served) == [(0, 0), (0, 0)])


class SlowToEnd:
    """What asks `endpoint` is never answered, and once it is cancelled it ends when `stuck` is set: a library in the
    middle of a connection's end may take its time. Whoever asks another one has `answer` at once."""

    def __init__(self, endpoint: GatewayUpstream, answer: EventStream) -> None:
        self.given_up, self.stuck, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._endpoint = endpoint
        self._answer = answer

    async def ask(self, endpoint: GatewayUpstream, _: RequestContext) -> Response:
        if endpoint is not self._endpoint:
            return Response(200, (), self._answer)
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.given_up.set()
            await self.stuck.wait()
            self.ended.set()
            raise


def raced(served: Served, clock: FakeClock, loser: SlowToEnd) -> tuple[Hedging, asyncio.Task[list[Heard]]]:
    """A request whose hedge is sent at once."""
    request, call = parse_request({"model": "m", "messages": [{"role": "user", "content": "?"}]}, clock, "t")
    request.call, (first, second) = call, endpoints(served)
    race = Hedging(HedgeRules(budget=1.0), (first, second), clock, served.gateway.parts.telemetry)
    race.delay_s(first, request)  # the call brings its token
    return race, asyncio.create_task(race.send_hedged(loser.ask, first, request, 0.0, lambda others: others[0]))


async def test_a_client_that_leaves_while_who_lost_is_ended_leaves_no_answer_behind(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    closed = asyncio.Event()
    async with gateway_of(config_of(tmp_path, main(pair)), NO_CACHE, clock=clock) as served:
        loser = SlowToEnd(endpoints(served)[0], EventStream(BufferedStream((), closed.set)))
        _, task = raced(served, clock, loser)
        await loser.given_up.wait()
        task.cancel()
        await asyncio.sleep(0)
        loser.stuck.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert closed.is_set()


async def test_a_call_that_is_cancelled_twice_leaves_nothing_on_its_way(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    """As its client leaves and the gateway stops: the second time while what had won is let go."""
    closing, closed = asyncio.Event(), asyncio.Event()

    class Answer:
        """An answer that takes its time to be closed."""

        def __aiter__(self) -> AsyncIterator[Event]:
            raise AssertionError("nobody reads it")

        __anext__: Any = None

        async def aclose(self) -> None:
            closing.set()
            await loser.stuck.wait()
            closed.set()

    async with gateway_of(config_of(tmp_path, main(pair)), NO_CACHE, clock=clock) as served:
        loser = SlowToEnd(endpoints(served)[0], EventStream(Answer()))
        race, task = raced(served, clock, loser)
        await loser.given_up.wait()
        task.cancel()
        await closing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not closed.is_set(), "who is cancelled twice does not wait"
        loser.stuck.set()
        await until(lambda: closed.is_set() and loser.ended.is_set() and not race._cleanup_tasks)


async def test_no_more_than_the_budget_is_hedged(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock, calls=39, hedge={"after": "p90", "budget": "5%"}) as served:
        assert (await served.chat("slow")).text == "b answers: slow"
        assert (await served.chat("slow too")).text == "b answers: slow too"
        asking = asyncio.create_task(served.chat("slow again"))
        await until(lambda: hedges(served).get("budget"))
        pair[0].gate.set()
        assert (await asking).text == "a answers: slow again"
        assert hedges(served) == {"won": 2, "budget": 1}


async def test_nothing_is_hedged_while_somebody_waits_for_a_place(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock, max_concurrency=1, adaptive="off") as served:
        with delayed_until(lambda: endpoints(served)[0].backend.occupancy.queued):
            asking = [asyncio.create_task(served.chat(f"slow {i}")) for i in range(2)]
            await until(lambda: hedges(served).get("overloaded") == 2)
        assert len(pair[1].calls) == 0
        pair[0].gate.set()
        assert {(await each).status for each in asking} == {200}


async def test_while_the_first_one_fails_the_second_one_decides(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        pair[0].answer = answering(503)
        pair[1].gate.clear()
        asking = asyncio.create_task(served.chat("slow"))
        await until(pair[1].arrived.is_set)
        pair[0].gate.set()
        await until(lambda: endpoints(served)[0].load == 0)
        pair[1].gate.set()
        assert (await asking).text == "b answers: slow"
        assert hedges(served) == {"won": 1}
        assert len(pair[0].calls) == 21, "no retry: there was an answer"
        assert inflight(served) == [(0, 0), (0, 0)]


async def test_where_both_fail_the_retries_decide_as_ever(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        pair[0].answer = pair[1].answer = answering(503)
        pair[1].gate.clear()
        asking = asyncio.create_task(served.chat("slow"))
        await until(pair[1].arrived.is_set)
        pair[0].gate.set()
        await until(lambda: endpoints(served)[0].load == 0)
        pair[1].gate.set()
        assert (await asking).status == 503
        assert hedges(served) == {"failed": 1}
        assert len(pair[0].calls) - 20 + len(pair[1].calls) == 3, "two at once, and one retry"


@pytest.mark.parametrize("keys", [{"hedge": "off"}, {"hedge": None}])
async def test_without_a_hedge_the_first_one_is_waited_for(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock, keys: dict[str, Any]
) -> None:
    async with hedging(pair, tmp_path, clock, **keys) as served:
        asking = asyncio.create_task(served.chat("slow"))
        await asyncio.wait({asking}, timeout=4 * TOOK_S)
        pair[0].gate.set()
        assert (await asking).text == "a answers: slow"
        assert (hedges(served), len(pair[1].calls)) == ({}, 0)


@pytest.mark.parametrize("ask", ["store", "upload", "deadline"])
async def test_what_may_not_be_sent_twice_or_could_not_help_is_not(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock, ask: str
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        if ask == "store":
            asked: Any = served.chat("slow", store=True)
        elif ask == "upload":
            asked = served.post("/v1/files", b"x" * 100)
        else:
            asked = served.chat("slow", headers={"x-slo-ttft-ms": str(1e3 * TOOK_S / 2)})
        asking = asyncio.create_task(asked)
        await until(lambda: sum(endpoint.load for endpoint in endpoints(served)) == 1)
        await asyncio.wait({asking}, timeout=4 * TOOK_S)
        pair[0].gate.set()
        assert (await asking).status == 200
        assert hedges(served) == {}


async def test_the_upstreams_time_is_counted_once(
    pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        pair[1].answer = taking(clock, 2.0, "b answers")
        answer = await served.chat("slow")
        timing = dict(part.split(";dur=") for part in answer.headers["Server-Timing"].split(", "))
        assert float(timing["upstream"]) == pytest.approx(2000, abs=1)


async def test_the_metric_and_the_page_tell(pair: tuple[Upstream, Upstream], tmp_path: Path, clock: FakeClock) -> None:
    async with hedging(pair, tmp_path, clock) as served:
        await served.chat("slow")
        async with aiohttp.ClientSession() as session, session.get(served.admin_url + "/metrics") as response:
            assert 'nearhit_hedges_total{outcome="won"} 1.0' in await response.text()
