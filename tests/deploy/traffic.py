"""Two gateways and traffic of every kind: what `deploy/` asks Prometheus for is there afterwards."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.features.replicas.change_log import CHANGES_KEY
from tests.features.jobs.asking import over, submit
from tests.features.jobs.test_webhooks import Receiver, receiving
from tests.fixtures.entries import hexed
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.stores import OutsideServer, outside_server
from tests.fixtures.upstream import Upstream, completion, question_of, serving
from tests.fixtures.waiting import until

NAMES = ("main", "light", "large", "next", "first", "second", "bad")
PRICE = {"input_per_million": 1000.0, "output_per_million": 1000.0}
SECRET = {"HOOK": "whsec_" + base64.b64encode(bytes(32)).decode()}
STORED, ASKED = "alpha beta gamma delta epsilon", "alpha beta gamma delta zeta"
DIFFERS = "is told otherwise"
HARD = "Prove step by step why the algorithm terminates, and derive its complexity in detail with all constants."
EXACT = "exact: {ttl: 1h}"
TIERS = "light: light, large: large"
# Routes by the model that is asked for: cache, target, limits.
ROUTES = {
    "alike": (f"{EXACT}, semantic: {{ttl: 1h, min_similarity: 0.5, audit: 100%}}", "backend: main", ""),
    "promise": (f"{EXACT}, semantic: {{ttl: 1h, max_wrong_hits: 0.1%, audit: 100%}}", "backend: main", ""),
    "lenient": ("semantic: {ttl: 1h, max_wrong_hits: 50%, audit: 100%}", "backend: main", ""),
    "tiers": (EXACT, f"{TIERS}, escalate_above: 0.5, audit: 100%, shadow: {{backend: next, share: 100%}}", ""),
    "cascade": (EXACT, f"{TIERS}, escalate_above: 0.0, cascade: {{check: verifier, accept_above: 0.1}}", ""),
    "talk": (EXACT, f"{TIERS}, escalate_above: 0.5", "session: {by: [turns]}"),
    "limited": (EXACT, "backend: main", "limits: {requests: 2/h, cost: {per_day: 100 USD}}"),
    "pair": (EXACT, "backend: pair", ""),
    "bad": (EXACT, "backend: bad", ""),
    # Nothing is asked of these: they open features whose metrics are only known.
    "classified": (EXACT, f"{TIERS}, complexity: {{adapter: http, url: http://127.0.0.1:9/classify}}", ""),
    "guarded": (EXACT, "backend: main", 'guard: {request: "http://127.0.0.1:9/"}'),
    "billed": (EXACT, "backend: main", "spend: {metrics: on}"),
    "rolled": (EXACT, f"{TIERS}, rollout: on", ""),
    "private": (EXACT, "backend: main", "privacy: {pii: [email]}"),
    "trusting": (f"{EXACT}, semantic: {{ttl: 1h, min_similarity: 0.5}}, admit: {{trust: own}}", "backend: main", ""),
}


def policy() -> str:
    lines = ["version: 1", "routes:"]
    for name, (cache, target, more) in ROUTES.items():
        lines += [f"  - name: {name}", f"    match: {{model: {name}}}", f"    cache: {{{cache}}}", "    record: on"]
        lines += [f"    route: {{{target}}}", *([f"    {more}"] if more else [])]
    return "\n".join([*lines, "  - name: default", "    match: {}", "    route: {backend: main}", ""])


WORDS = [
    f"{first}{second}"
    for first in ("red", "old", "wet", "far", "big")
    for second in ("barn", "lake", "moss", "fern", "kiln")
]


@dataclass
class Scene:
    """`busy` has all routes; `small` has room for few, and its store is taken away by `outage`."""

    busy: Served
    small: Served
    upstreams: dict[str, Upstream]
    store: OutsideServer
    hook: Receiver

    async def round(self, number: int) -> None:
        """Everything once. Nothing of one round is a hit in the next one."""
        await self._cached(number)
        await self._routed(number)
        await self._jobs(number)
        await self._late(number)
        await self._hedged(number)
        await self._told(number)
        await self._crowded(number)
        for i in range(8):  # the last, so that its breaker is open when it is looked at
            await self._ask("bad", f"bad {number} {i}", number)

    async def _ask(self, model: str, question: str, number: int, **more: Any) -> Answer:
        return await self.busy.chat(question, model=model, seed=number, **more)

    async def _cached(self, number: int) -> None:
        for model in ("alike", "promise", "lenient"):
            for question in (STORED, STORED, ASKED):
                answer = await self._ask(model, f"{question} {number * 7919}", number)
            if answer.cache_status.endswith("detail=semantic"):
                said = {"request_id": answer.headers["x-request-id"], "verdict": "right"}
                assert (await self.busy.post("/v1/feedback", said)).status == 200
        for question in (f"{STORED} {DIFFERS}", f"{ASKED} {DIFFERS}"):  # an audit finds another answer
            await self._ask("lenient", f"{question} {number * 7919}", number)
        space = self.busy.gateway.parts.space
        for word in WORDS:  # an audit has a figure once the answers to other questions are known
            await self._ask("promise", f"{STORED} {word} {number * 7919}", number)
        await until(lambda: space.comparisons.idle)
        for spaces in range(2, 6):
            await self._ask("promise", f"{STORED}{' ' * spaces}{number * 7919}", number)
        await until(lambda: space.comparisons.idle and len(space.audits) == 0)
        async with self.busy.session.post(
            self.busy.admin_url + "/admin/cache/purge", json={"route": "alike"}
        ) as response:
            assert response.status == 200

    async def _routed(self, number: int) -> None:
        for question in ("Hello", HARD):
            for model in ("tiers", "cascade", "talk"):
                assert (await self._ask(model, f"{question} ({number})", number)).status == 200
        for i in range(4):
            await self._ask("limited", f"limited {number} {i}", number)

    async def _jobs(self, number: int) -> None:
        job = await submit(self.busy, f"later {number}", webhook=self.hook.url + "/hook")
        assert (await over(self.busy, job))["status"] == "completed"
        await until(lambda: len(self.hook.told) > number)

    async def _late(self, number: int) -> None:
        """A latency budget that is kept, and, of a backend that is known to be quick, one that is broken."""
        within = {"x-latency-budget-ms": "1000"}
        for i in range(12):
            await self.busy.chat(f"in time {number} {i}", headers=within)
        main, loop = self.upstreams["main"], asyncio.get_running_loop()
        main.gate.clear()
        begun = loop.time()
        asking = asyncio.create_task(self.busy.chat(f"late {number}", headers=within))
        await until(lambda: loop.time() > begun + 1.1)
        main.gate.set()
        assert (await asking).status == 200

    async def _hedged(self, number: int) -> None:
        """The first upstream of two is quick until it answers nothing; then the second one is asked, too."""
        first, second = self.upstreams["first"], self.upstreams["second"]
        for i in range(20):
            await self._ask("pair", f"known {number} {i}", number)
        first.gate.clear()
        second.arrived.clear()
        asking = asyncio.create_task(self._ask("pair", f"hedged {number}", number))
        await until(second.arrived.is_set)
        first.gate.set()
        assert (await asking).status == 200
        retries = self.busy.gateway.parts.telemetry.retries
        before = retries.total()
        for attempt in range(20):  # on a busy machine, a hedge can take the place of the retry
            for upstream in (first, second):
                upstream.answer = once(500)
            assert (await self._ask("pair", f"retried {number} {attempt}", number)).status in (200, 500, 502)
            if retries.total() > before:
                return
        raise AssertionError("no request was retried")

    async def _told(self, number: int) -> None:
        """Another gateway on the small one's store has written something."""
        changes = self.small.gateway.parts.telemetry.replication.changes
        before = changes.total()
        self.store.client.xadd(CHANGES_KEY, {"by": "another", "records": hexed(str(number))})
        await until(lambda: changes.total() > before)

    async def _crowded(self, number: int) -> None:
        """More at once than there may be, and more answers than there is room for."""
        for i in range(8):
            assert (await self.small.chat(f"question number {number} {i} about {i * 7919}")).status == 200
        main = self.upstreams["main"]
        main.gate.clear()
        tasks = [asyncio.create_task(self.small.chat(f"at once {number} {i}")) for i in range(4)]
        await until(lambda: any(task.done() for task in tasks))
        main.gate.set()
        assert 503 in [(await task).status for task in tasks]

    async def outage(self, number: int) -> None:
        """Without its store the small gateway goes on."""
        self.store.kill()
        for i in range(8):
            assert (await self.small.chat(f"alone {number} {i}")).status == 200

    async def still_out(self, number: int) -> None:
        for i in range(8):
            assert (await self.small.chat(f"still alone {number} {i}")).status == 200


def once(status: int) -> Any:
    """Refuses one call, and answers the others."""
    calls = 0

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return web.json_response(completion(call, "done"), status=status if calls == 1 else 200)

    return answer


async def differing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    question = question_of(call)
    other = "nothing of the kind, and whatever else comes to mind" if f"zeta {DIFFERS}" in question else question
    return web.json_response(completion(call, f"main answers: {other}"))


async def refusing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no"}}, status=500)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        upstreams = {name: await stack.enter_async_context(serving(Upstream(name))) for name in NAMES}
        upstreams["bad"].answer, upstreams["main"].answer = refusing, differing
        backends: dict[str, Any] = {
            name: {"adapter": "openai", "url": upstream.url, "model": name, "price": PRICE}
            for name, upstream in upstreams.items()
            if name not in ("first", "second")
        }
        listed = [{"url": upstreams["first"].url, "weight": 1000}, upstreams["second"].url]
        backends["pair"] = {"adapter": "openai", "upstreams": listed, "hedge": {"budget": "20%"}}
        hook, store = await stack.enter_async_context(receiving()), stack.enter_context(outside_server(tmp_path))
        jobs = {"webhook_secret_env": "HOOK", "webhook_hosts": [hook.url.removeprefix("http://")]}
        config = config_of(tmp_path / "busy", backends, jobs=jobs)
        busy = await stack.enter_async_context(gateway_of(config, policy(), SECRET))
        config = config_of(
            tmp_path / "small",
            {"main": backends["main"]},
            server={"max_inflight": 2},
            store={"url": store.url, "timeout": "200ms", "max_entries": 5, "front_size": "1kB"},
        )
        limits = "version: 1\nroutes:\n  - name: default\n    match: {}\n    cache: {exact: {ttl: 1h}}\n"
        limits += "    route: {backend: main}\n    limits: {requests: 1M/h}\n"
        small = await stack.enter_async_context(gateway_of(config, limits))
        for served in (busy, small):
            await recovered(served)
        yield Scene(busy, small, upstreams, store, hook)
