"""An unexpected exception in a step, or in a part that steps use, costs the work of that step and never a request.

The table of steps is made from `gateway.pipeline`, so that a new step is in it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import pipeline
from gateway.config.policy.features import FEATURES
from gateway.context import Handler, RequestContext
from gateway.features.limits.rate_limiter import RateLimiter
from gateway.messages import Event, EventStream, Response
from gateway.pipeline import BuiltStep, Step
from gateway.streams import StreamObserver, with_observer
from tests.fixtures.gateways import Served, aboard, config_of, gateway_of
from tests.fixtures.several import counted
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

EVERY_STEP = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.5}, mcp: {results: {prompts/get: {ttl: 5m}}}}
    limits: [{per: tenant, requests: 100M/s, count_hits: on}]
    route: {light: light, large: large, escalate_above: 0.5}
"""
CORE = [step for step in (*pipeline.SHARED, *pipeline.PER_ROUTE) if isinstance(step, Step)]
OF_FEATURES = [step for feature in (FEATURES.load("cache.mcp"),) for step in feature.steps]
EVERY = [step.name for step in (*CORE, *OF_FEATURES)]
OPTIONAL = [step.name for step in (*CORE, *OF_FEATURES) if step.recovery is not None]
EARLY = ("before", "after")
LATE = ("first items", "later items", "complete", "close")


class Unforeseen(Exception):
    """An exception that no step expects."""


@dataclass
class Fault:
    """The place at which the next request meets an exception. `met` counts how often it did."""

    step: str = ""
    moment: str = ""
    met: int = 0

    def meet(self, step: str, moment: str) -> None:
        if (self.step, self.moment) == (step, moment):
            self.met += 1
            raise Unforeseen(f"{step}, {moment}")


def faulty(step: BuiltStep, fault: Fault) -> BuiltStep:
    """Return the step with a fault at each moment of a request."""

    def build(inner: Handler) -> Handler:
        handler = step.build(inner)

        def run(request: RequestContext) -> Response | Awaitable[Response]:
            fault.meet(step.name, "before")
            answer = handler(request)
            return finish(answer) if isinstance(answer, Response) else wait(answer)

        async def wait(answer: Awaitable[Response]) -> Response:
            return finish(await answer)

        def finish(answer: Response) -> Response:
            fault.meet(step.name, "after")
            body = answer.body
            if not isinstance(body, EventStream) or fault.step != step.name or fault.moment not in LATE:
                return answer
            return replace(answer, body=EventStream(with_observer(body.events, observer())))

        def observer() -> StreamObserver[Event]:
            batches = itertools.count()

            def on_items(items: Sequence[Event]) -> Sequence[Event]:
                fault.meet(step.name, "later items" if next(batches) else "first items")
                return items

            return StreamObserver(
                on_items, lambda: fault.meet(step.name, "complete"), on_close=lambda: fault.meet(step.name, "close")
            )

        return run

    return step._replace(build=build)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    found = Fault()
    compose = pipeline.compose

    def faulty_steps(steps: Sequence[BuiltStep], *rest: Any) -> Handler:
        return compose([faulty(step, found) for step in steps], *rest)

    monkeypatch.setattr(pipeline, "compose", faulty_steps)
    return found


@pytest.fixture
async def served(
    fault: Fault, light: Upstream, large: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> AsyncIterator[Served]:
    backends = {name: {"adapter": "openai", "url": each.url} for name, each in (("light", light), ("large", large))}
    async with gateway_of(config_of(tmp_path, backends, store={"url": outside_store.url}), EVERY_STEP) as gateway:
        gateway.awaits_vectors = False
        yield gateway


def questions() -> Iterator[str]:
    for number in itertools.count():
        yield f"w{number * 7919 % 10007}a q{number * 104729 % 100003}b z{number}c"


async def ask(served: Served, question: str, *, streams: bool) -> str:
    """Return the text of the answer, or what is wrong with it."""
    answer = await served.chat(question, stream=streams)
    if answer.status != 200:
        return f"status {answer.status}: {answer.body[:200]!r}"
    if not streams:
        return answer.text
    lines = [line.removeprefix(b"data: ") for line in answer.body.splitlines() if line.startswith(b"data: ")]
    if not lines or lines.pop() != b"[DONE]":
        return f"no end: {answer.body[-200:]!r}"
    chunks = [orjson.loads(line) for line in lines]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ()))


def right(text: str, question: str) -> bool:
    return text in (f"light answers: {question}", f"large answers: {question}")


async def test_every_step_of_the_pipeline_runs_on_the_route(served: Served, fault: Fault) -> None:
    missed, ask_next = [], questions()
    for step in EVERY:
        fault.step, fault.moment, fault.met = step, "before", 0
        await served.chat(next(ask_next))
        missed += [] if fault.met else [step]
    assert not missed


async def test_an_exception_in_an_optional_step_never_fails_a_miss(
    served: Served, fault: Fault, light: Upstream, large: Upstream
) -> None:
    wrong, ask_next = [], questions()
    for step, moment, streams in itertools.product(OPTIONAL, (*EARLY, *LATE), (False, True)):
        if moment in LATE and not streams:
            continue
        fault.step, fault.moment, fault.met = step, moment, 0
        question, calls = next(ask_next), len(light.calls) + len(large.calls)
        failures = counted(served, "step_failures").get(step, 0)
        text = await ask(served, question, streams=streams)
        fault.step = ""
        calls = len(light.calls) + len(large.calls) - calls
        met = f"{step}, {moment}, {'stream' if streams else 'whole'}"
        if not right(text, question):
            wrong.append(f"{met}: {text}")
        # The crowd reads the stream of a shared call, so that one who falls out of it has to call again.
        if calls != 1 + (met == "SingleFlight, after, stream"):
            wrong.append(f"{met}: {calls} calls")
        if fault.met and counted(served, "step_failures").get(step, 0) == failures:
            wrong.append(f"{met}: not counted")
    assert not wrong, "\n".join(wrong)


async def test_an_exception_in_an_optional_step_never_fails_a_hit(served: Served, fault: Fault) -> None:
    wrong, ask_next = [], questions()
    for step, moment, stored, streams in itertools.product(OPTIONAL, EARLY, (False, True), (False, True)):
        question = next(ask_next)
        assert right(await ask(served, question, streams=stored), question)
        fault.step, fault.moment, fault.met = step, moment, 0
        for again in (question, question.upper()):  # an exact hit, and one by meaning
            text = await ask(served, again, streams=streams)
            if not right(text.lower(), question):
                wrong.append(f"{step}, {moment}, stored {stored}, asked {streams}: {text}")
        fault.step = ""
    assert not wrong, "\n".join(wrong)


async def test_an_exception_in_an_optional_step_never_fails_a_follower(
    served: Served, fault: Fault, light: Upstream, large: Upstream
) -> None:
    wrong, ask_next = [], questions()
    for step, moment, leads, follows in itertools.product(OPTIONAL, (*EARLY, *LATE), (False, True), (False, True)):
        question = next(ask_next)
        for upstream in (light, large):
            upstream.gate.clear()
            upstream.arrived.clear()
        leader = asyncio.create_task(ask(served, question, streams=leads))
        await until(lambda: light.arrived.is_set() or large.arrived.is_set())
        fault.step, fault.moment, fault.met = step, moment, 0
        follower = asyncio.create_task(ask(served, question, streams=follows))
        if moment == "before":
            await until(lambda: fault.met > 0 or aboard(served) > 1)
        light.gate.set()
        large.gate.set()
        texts = await asyncio.gather(leader, follower)
        met = f"{step}, {moment}, leader {leads}, follower {follows}"
        wrong += [f"{met}: {text}" for text in texts if not right(text, question)]
        fault.step = ""
    assert not wrong, "\n".join(wrong)


async def test_an_exception_in_an_optional_step_sends_no_input_twice(
    served: Served, fault: Fault, light: Upstream, large: Upstream
) -> None:
    """The inputs of one call are answered one by one, and sent together."""
    wrong, ask_next = [], questions()
    for step, moment, stored in itertools.product(OPTIONAL, EARLY, (False, True)):
        first, *others = [next(ask_next) + "x" * length for length in range(3)]
        if stored:
            await served.post("/v1/embeddings", {"model": "m", "input": first})
        light.calls.clear()
        large.calls.clear()
        fault.step, fault.moment, fault.met = step, moment, 0
        given = [first, *others, first]
        answer = await served.post("/v1/embeddings", {"model": "m", "input": given})
        fault.step = ""
        met = f"{step}, {moment}, {'stored' if stored else 'new'}"
        if answer.status != 200 or [each["embedding"][1] * 8 for each in answer.json["data"]] != [*map(len, given)]:
            wrong.append(f"{met}: {answer.status} {answer.body[:200]!r}")
        inputs = [each.json["input"] for each in (*light.calls, *large.calls)]
        sent = [text for each in inputs for text in ([each] if isinstance(each, str) else each)]
        if any(sent.count(text) > 1 for text in others):
            wrong.append(f"{met}: sent {inputs}")
    assert not wrong, "\n".join(wrong)


# Parts that requests can't go on without, or that are no port of a step.
ESSENTIAL = {
    "clock": "the time",
    "pools": "the backends",
    "telemetry": "counts failures itself",
    "flights": "a dictionary",
}
LIMITS = {"take", "take_in_turn", "has_queue", "member"}  # without them a limit would not hold


def ports_of(part: Any, path: str, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the objects of the gateway that steps are built with, by their path."""
    if not type(part).__module__.startswith("gateway.") or inspect.isfunction(part):
        return
    yield path, part
    if depth and is_dataclass(part):
        for each in fields(part):
            if each.name not in ESSENTIAL:
                yield from ports_of(getattr(part, each.name), f"{path}.{each.name}", depth - 1)


def methods_of(part: Any) -> Iterator[str]:
    for name, method in inspect.getmembers(type(part), inspect.isfunction):
        essential = isinstance(part, RateLimiter) and name in LIMITS
        if not name.startswith("_") and method.__module__.startswith("gateway.") and not essential:
            yield name


@pytest.mark.slow  # some hundred methods with four requests each
async def test_an_exception_at_any_port_never_fails_a_request(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, ask_next, tried = [], questions(), 0

    def broken(*_: Any, **__: Any) -> Any:
        raise Unforeseen

    parts = served.gateway.parts
    for path, part in itertools.chain(ports_of(parts, "parts"), ports_of(parts.space, "parts.space")):
        for name in methods_of(part):
            first, stored = next(ask_next), next(ask_next)
            await ask(served, stored, streams=False)
            with monkeypatch.context() as patch:
                patch.setattr(type(part), name, broken)
                tried += 1
                for question, streams in ((first, False), (first, True), (stored, True), (stored.upper(), False)):
                    text = await ask(served, question, streams=streams)
                    if not right(text.lower(), question.lower()):
                        wrong.append(f"{path}.{name}: {text[:100]}")
                text = await ask(served, next(ask_next), streams=True)
                if " answers: " not in text:
                    wrong.append(f"{path}.{name}, streamed miss: {text[:100]}")
    assert not wrong, "\n".join(wrong)
    assert tried > 100
