"""One call for a crowd that is spread over several gateways on one store: one of them killed, stopped or cut off in the
middle of its call. Those that are killed or stopped, and a large crowd's, are processes of their own: each start of one
takes more than a second of CPU time."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from gateway.features.replicas import store as replica_store
from gateway.features.replicas.cluster_leases import TTL_S
from gateway.routing import budget
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.processes import changed, served_by_process, write_config
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until

PATIENCE_S = 60.0  # ends a test that has failed; a busy machine takes its time
LONG_S = 600.0

Fleet = Callable[..., Any]
LEASED, STORED, SHARED = "nearhit:1:lease:*", "nearhit; fwd=miss; stored", "nearhit; fwd=miss; collapsed"


@pytest.fixture
async def fleet(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """Starts gateways on one store, the first `processes` of them as processes. Their leases end by time only where the
    test is about that, and then the first one's alone (`ttl_s`): else a machine that stands still would end them."""
    async with AsyncExitStack() as stack:

        async def start(
            store: OutsideServer,
            size: int = 3,
            limit: str = "20s",
            ttl_s: float = LONG_S,
            first_by: str | None = None,
            processes: int = 0,
        ) -> list[Served]:

            async def one(i: int) -> Served:
                folder = tmp_path / f"gateway-{i}"
                folder.mkdir()
                wired = first_by is not None and i == 0
                backends = {"main": {"adapter": "openai", "url": upstream.url}}
                shared = {"url": first_by if wired else store.url, "timeout": "5s" if wired else limit}
                replay_duration_s = ttl_s if i == 0 else LONG_S
                if i >= processes:
                    monkeypatch.setattr(replica_store, "TTL_S", replay_duration_s)
                    return await stack.enter_async_context(gateway_of(config_of(folder, backends, store=shared)))
                config = write_config(folder, backends, store=shared)
                program = changed({"gateway.features.replicas.store.TTL_S": replay_duration_s})
                return await stack.enter_async_context(served_by_process(config, program))

            before = lookups(store)
            first = [] if processes else [await one(0)]  # in this process they go by one constant
            started = [*first, *await asyncio.gather(*map(one, range(len(first), size)))]
            # Each reads what was learnt, by the command by which answers are looked up, soon after its start.
            await until(lambda: lookups(store) >= before + size)
            return started

        yield start


@pytest.fixture
def store(store_servers: Callable[..., OutsideServer]) -> OutsideServer:
    """One of the test's own: it is stopped and killed."""
    return store_servers()


async def asked(store: OutsideServer, served: Served, times: int = 1, **fields: Any) -> list[asyncio.Task[Answer]]:
    """Sends so many identical requests, every other one for a stream, and returns once all have been looked up."""
    before = lookups(store)
    tasks = [asyncio.create_task(served.chat("hi", stream=i % 2 == 1, **fields)) for i in range(times)]
    async with asyncio.timeout(PATIENCE_S):
        while lookups(store) < before + times:
            await asyncio.sleep(0.01)
    await outcomes(served)  # what the store has answered before that, the gateway has heard
    return tasks


def lookups(store: OutsideServer) -> int:
    """How many exact lookups the store has answered."""
    return int(store.client.info("commandstats").get("cmdstat_hget", {"calls": 0})["calls"])


async def outcomes(served: Served) -> Counter[str]:
    """`nearhit_crowds_total` of a gateway."""
    async with served.session.get(served.admin_url + "/metrics") as response:
        text = await response.text()
    prefix = 'nearhit_crowds_total{outcome="'
    rows = (line.removeprefix(prefix).split('"} ') for line in text.splitlines() if line.startswith(prefix))
    return Counter({name: int(float(value)) for name, value in rows})


async def waits(*gateways: Served) -> None:
    """Returns once every one of these gateways waits for another's flight."""
    async with asyncio.timeout(PATIENCE_S):
        for served in gateways:
            while (await outcomes(served))["waits"] == 0:
                await asyncio.sleep(0.01)


def words_of(answer: Answer) -> str:
    if not answer.headers["Content-Type"].startswith("text/event-stream"):
        return answer.text
    chunks = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def led_by_first(
    store: OutsideServer, gateways: list[Served], upstream: Upstream, per_request: int = 1
) -> list[list[asyncio.Task[Answer]]]:
    """The first gateway has the lease and its call is at the backend, the others wait."""
    first, *others = gateways
    upstream.gate.clear()
    tasks = [await asked(store, first, per_request)]
    await until(lambda: len(upstream.calls) == 1)
    tasks += [await asked(store, other, per_request) for other in others]
    await waits(*others)
    return tasks


async def test_a_crowd_over_three_gateways_makes_one_call(
    fleet: Fleet, store: OutsideServer, upstream: Upstream
) -> None:
    processes = await fleet(store, processes=3)
    upstream.gate.clear()
    crowds = [await asked(store, process, 20) for process in processes]
    await until(lambda: upstream.calls)
    async with asyncio.timeout(PATIENCE_S):
        while sum([(await outcomes(process))["waits"] for process in processes]) < 2:
            await asyncio.sleep(0.01)
    upstream.gate.set()
    answers = [await task for crowd in crowds for task in crowd]
    assert len(upstream.calls) == 1
    assert {words_of(answer) for answer in answers} == {"upstream answers: hi"}
    assert Counter(answer.cache_status for answer in answers) == {STORED: 1, SHARED: 59}
    assert {answer.headers["x-nearhit-backend"] for answer in answers} == {"main"}
    assert store.client.keys(LEASED) == [], "it ends with the answer"
    total = sum([await outcomes(process) for process in processes], Counter())
    assert total == {"led": 1, "waits": 2, "followed": 2}


async def test_the_followers_elsewhere_of_a_stream_get_it_when_it_is_complete(
    fleet: Fleet, store: OutsideServer, upstream: Upstream
) -> None:
    here, there = await fleet(store, 2)
    last = asyncio.Event()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        words = iter(range(10))

        async def between() -> None:
            if next(words) == 2:
                await last.wait()

        return await stream(request, call, "one two three", between=between)

    upstream.answer = answer
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with here.session.post(here.url + "/v1/chat/completions", json=body) as leader:
        seen = b""
        while b"two" not in seen:
            seen += await leader.content.readany()
        (follower,) = await asked(store, there)
        await waits(there)
        assert not follower.done()
        last.set()
        assert b"three" in await leader.content.read()
    assert (await follower).cache_status == SHARED
    assert words_of(await follower) == "one two three"
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("stopped_by", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_leader_that_dies_or_hangs_costs_one_more_call(
    fleet: Fleet, store: OutsideServer, upstream: Upstream, stopped_by: signal.Signals
) -> None:
    processes = await fleet(store, processes=1, ttl_s=TTL_S)
    crowds = await led_by_first(store, processes, upstream, per_request=5)
    processes[0].process.send_signal(stopped_by)
    await until(lambda: len(upstream.calls) == 2, timeout_s=PATIENCE_S)  # the lease has expired
    upstream.gate.set()
    answers = [await task for crowd in crowds[1:] for task in crowd]
    assert {words_of(answer) for answer in answers} == {"upstream answers: hi"}
    assert Counter(answer.cache_status for answer in answers) == {STORED: 1, SHARED: 9}
    assert len(upstream.calls) == 2
    if stopped_by == signal.SIGKILL:
        await asyncio.gather(*crowds[0], return_exceptions=True)
        return
    kept = store.client.hgetall(store.client.keys("nearhit:1:entry:*")[0])
    processes[0].process.send_signal(signal.SIGCONT)
    late = await asyncio.gather(*crowds[0])
    assert {words_of(answer) for answer in late} == {"upstream answers: hi"}, "its own clients get its own answer"
    assert store.client.hgetall(store.client.keys("nearhit:1:entry:*")[0]) == kept, "fenced off: it is the older one"
    said = await outcomes(processes[0])
    assert (said["superseded"], said["lost"] <= 1) == (1, True)
    assert len(upstream.calls) == 2


async def test_a_leader_whose_lease_was_taken_is_fenced_off(
    fleet: Fleet, store: OutsideServer, upstream: Upstream
) -> None:
    here, there = await fleet(store, 2)
    upstream.gate.clear()
    (late,) = await asked(store, here)
    await until(lambda: len(upstream.calls) == 1)
    store.client.delete(*store.client.keys(LEASED))  # as a store does that has lost its last writes
    upstream.answer = None
    first_gate, upstream.gate = upstream.gate, asyncio.Event()
    upstream.gate.set()
    newer = await there.chat("hi")
    assert newer.cache_status == STORED
    await until(lambda: store.client.keys("nearhit:1:entry:*"))
    kept = store.client.hgetall(store.client.keys("nearhit:1:entry:*")[0])
    first_gate.set()
    await late  # it does not wait for the store, which refuses it
    async with asyncio.timeout(PATIENCE_S):
        while (await outcomes(here))["superseded"] == 0:
            await asyncio.sleep(0.01)
    assert store.client.hgetall(store.client.keys("nearhit:1:entry:*")[0]) == kept
    assert (await here.chat("hi")).text == newer.text, "what the store refused is in memory no more"


@pytest.mark.parametrize("what", ["error", "cut-short", "no-store"])
async def test_an_answer_that_may_not_be_stored_hands_the_lease_to_one_that_waits(
    fleet: Fleet, store: OutsideServer, upstream: Upstream, what: str
) -> None:
    gateways = await fleet(store)
    failed: list[int] = []

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if failed:
            return web.json_response(completion(call, "fine"))
        failed.append(1)
        if what == "error":
            return web.json_response({"error": {"message": "busy"}}, status=500)
        if what == "cut-short":
            return web.json_response(completion(call, "half", finish="length"))
        return web.json_response(completion(call, "secret"), headers={"Cache-Control": "private, no-store"})

    upstream.answer = answer
    crowds = await led_by_first(store, gateways, upstream, per_request=50)
    upstream.gate.set()
    first = await asyncio.gather(*crowds[0])
    assert {answer.status for answer in first} == {500 if what == "error" else 200}, "shared by who had joined"
    answers = [await task for crowd in crowds[1:] for task in crowd]
    assert {words_of(answer) for answer in answers} == {"fine"}
    # Requests that joined a call make their own if its backend forbids to share the answer (RFC 9111, section 4).
    assert len(upstream.calls) == (2 if what != "no-store" else len(first) + 1)


async def test_whoever_waits_is_held_up_by_two_at_most(fleet: Fleet, store: OutsideServer, upstream: Upstream) -> None:
    """Where nothing can be stored, a line of gateways must not be served one after the other."""
    gateways = await fleet(store, 4)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "half", finish="length"))

    upstream.answer = answer
    crowds = await led_by_first(store, gateways, upstream)
    upstream.gate.set()
    answers = [await task for crowd in crowds for task in crowd]
    assert {words_of(answer) for answer in answers} == {"half"}
    assert len(upstream.calls) == 4


async def test_when_all_clients_of_the_leader_leave_another_gateway_calls(
    fleet: Fleet, store: OutsideServer, upstream: Upstream
) -> None:
    gateways = await fleet(store)
    crowds = await led_by_first(store, gateways, upstream, per_request=3)
    for task in crowds[0]:
        task.cancel()
    await until(lambda: upstream.cancelled == 1)
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert {words_of(await task) for crowd in crowds[1:] for task in crowd} == {"upstream answers: hi"}
    assert (len(upstream.calls), store.client.keys(LEASED)) == (2, [])


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(
    fleet: Fleet, store: OutsideServer, upstream: Upstream
) -> None:
    here, there = await fleet(store, 2)
    ours, theirs = await led_by_first(store, [here, there], upstream, per_request=2)
    theirs[0].cancel()
    upstream.gate.set()
    assert words_of(await theirs[1]) == words_of(await ours[0]) == "upstream answers: hi"
    assert (await there.chat("hi")).cache_status.startswith("nearhit; hit")
    assert len(upstream.calls) == 1


async def test_who_has_a_deadline_waits_no_longer_than_its_share_of_it(
    fleet: Fleet, store: OutsideServer, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SHARE_OF_BUDGET", 0.01)  # the wait is to end, and the call after it has its time
    here, there = await fleet(store, 2)
    upstream.gate.clear()
    (leader,) = await asked(store, here)
    await until(lambda: len(upstream.calls) == 1)
    (hurried,) = await asked(store, there, headers={"x-latency-budget-ms": "200000"})
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert (await hurried).status == (await leader).status == 200
    assert (await outcomes(there))["in-vain"] == 1


def test_its_share_is_half_of_what_is_left() -> None:
    request: Any = SimpleNamespace(due=106.0)
    assert (budget.max_wait_s(request, 100.0), budget.max_wait_s(request, 105.0)) == (3.0, 0.5)


class Wire:
    """A way to the store that can be cut: what comes then is swallowed, and nobody is told."""

    def __init__(self, store: OutsideServer) -> None:
        self._store = urlsplit(store.url)
        self._accepted: list[asyncio.StreamWriter] = []
        self._passing: list[asyncio.Task[None]] = []
        self._ended = False
        self.cut = False

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ended:  # it was let in before the end, and comes after it
            writer.close()
            return
        self._accepted.append(writer)
        self._passing.append(asyncio.create_task(self._between(reader, writer)))

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            other, onward = await asyncio.open_connection(self._store.hostname, self._store.port)
            with closing(onward):
                await asyncio.gather(self._pass(reader, onward), self._pass(other, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if not self.cut:
                writer.write(piece)
        writer.close()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield self._store._replace(netloc=f":{self._store.password}@127.0.0.1:{port}").geturl()
        finally:
            self._ended = True
            server.close()
            for task in self._passing:
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)
            for writer in self._accepted:
                writer.close()


async def test_a_leader_that_is_cut_off_from_the_store_costs_one_more_call(
    fleet: Fleet, store: OutsideServer, upstream: Upstream
) -> None:
    wire = Wire(store)
    async with wire.served() as url:
        gateways = await fleet(store, ttl_s=TTL_S, first_by=url)
        crowds = await led_by_first(store, gateways, upstream, per_request=5)
        wire.cut = True
        await until(lambda: len(upstream.calls) == 2, timeout_s=PATIENCE_S)
        upstream.gate.set()
        answers = [await task for crowd in crowds for task in crowd]
        assert {words_of(answer) for answer in answers} == {"upstream answers: hi"}
        elsewhere = Counter([(await task).cache_status for crowd in crowds[1:] for task in crowd])
        assert elsewhere == {STORED: 1, SHARED: 9}
        assert len(upstream.calls) == 2


@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
async def test_without_the_store_every_gateway_calls_for_itself(
    fleet: Fleet, store: OutsideServer, upstream: Upstream, frozen: bool
) -> None:
    gateways = await fleet(store, limit="5s")
    crowds = await led_by_first(store, gateways, upstream, per_request=5)
    if frozen:
        store.freeze()
    else:
        store.kill()
    await until(lambda: len(upstream.calls) == 3, timeout_s=PATIENCE_S)  # nobody waits for what cannot be told
    upstream.gate.set()
    answers = [await task for crowd in crowds for task in crowd]
    assert {words_of(answer) for answer in answers} == {"upstream answers: hi"}
    assert len(upstream.calls) == 3
    assert words_of(await gateways[0].chat("ho")) == "upstream answers: ho"
