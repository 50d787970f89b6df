"""Plays the scenes of this folder. A failure names the file and the line, and shows what came instead."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.fixtures.gateways import Answer
from tests.scenes.scene import HERE, Located, Sent, Step, read
from tests.scenes.stage import Stage, stage

FILES = sorted(HERE.glob("*.yaml"))
SCENES = [scene for path in FILES for scene in read(path)]

Stages = Callable[[Located], Awaitable[Stage]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stages]:
    """Yield a function that returns the stage of a scene. Another stage that runs ends first."""
    running: dict[str, Stage] = {}
    async with AsyncExitStack() as stack:

        async def stage_of(place: Located) -> Stage:
            name = place.id if place.scene.fresh else place.file
            if name not in running:
                running.clear()
                await stack.aclose()
                folder = tmp_path_factory.mktemp("stage")
                running[name] = await stack.enter_async_context(stage(folder, place.house, place.takes_time))
            return running[name]

        yield stage_of


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("place", SCENES, ids=lambda place: place.id)
async def test_scene(place: Located, stages: Stages) -> None:
    await played(await stages(place), place)


async def played(on: Stage, place: Located) -> None:
    """Play a scene. Fail with all differences of the first request that has some."""
    scene = place.scene
    await on.clear(scene.policy, scene.upstream)
    answers: list[Answer] = []
    for line, step in zip(place.lines, scene.requests, strict=True):
        for _ in range(step.times):
            if step.advance is not None:
                on.clock.advance(step.advance)
                continue
            steps = step.together or [step]
            came = await on.send_together(steps) if step.together else [await on.send(step)]
            answers += came
            for each, answer in zip(steps, came, strict=True):
                _complain(place, line, [*differences(each, answer, answers, on.sent), *_of_calls(each, on)], answer, on)
            if step.together:
                _complain(place, line, list(_of_calls(step, on)), came[-1], on)
    faults = [*_of_metrics(on, scene.metrics), *([] if scene.sent is None else _of_sent(scene.sent, on.calls()))]
    if scene.stored is not None and (entries := await on.entries()) != scene.stored:
        faults.append(f"stored: expected {scene.stored} entries, came {entries}")
    _complain(place, place.line, faults, answers[-1] if answers else None, on)


def _complain(place: Located, line: int, faults: list[str], answer: Answer | None, on: Stage) -> None:
    if faults:
        shown = "" if answer is None else f"\n  came: {answer.status} {dict(answer.headers)}\n  {answer.body[:600]!r}"
        calls = "".join(f"\n  call: {call.method} {call.path} {call.body[:200]!r}" for call in on.calls())
        text = f"tests/scenes/{place.file}:{line}: {place.scene.claim}\n  " + "\n  ".join(faults) + shown + calls
        pytest.fail(text, pytrace=False)


def differences(step: Step, answer: Answer, answers: list[Answer], sent: bytes = b"") -> Iterator[str]:
    if answer.status != step.status:
        yield f"status: expected {step.status}, came {answer.status}"
    if step.cache is not None and not is_verdict(step.cache, answer.headers.get("Cache-Status")):
        yield f"cache: expected {step.cache!r}, came {answer.headers.get('Cache-Status')!r}"
    if step.answer is not None and (text := text_of(answer)) != step.answer:
        yield f"answer: expected {step.answer!r}, came {text!r}"
    if step.json_ is not None:
        yield from parts(step.json_, _json(answer.body), "json")
    body = answer.body.decode(errors="replace")
    yield from (f"has: {part!r} is not in the body" for part in step.has if part not in body)
    yield from (f"lacks: {part!r} is in the body" for part in step.lacks if part in body)
    yield from _of_headers(step.answer_headers, answer.headers, "answer_headers")
    if step.unchanged and answer.body.replace(b"\r\n", b"\n") != sent:
        yield f"unchanged: the upstream sent {sent[:300]!r}"
    if step.same_as is not None and answer.body != answers[step.same_as - 1].body:
        yield f"same_as: the body of request {step.same_as} is {answers[step.same_as - 1].body[:300]!r}"


def is_verdict(expected: str, header: str | None) -> bool:
    """Return whether the header has that verdict. `ttl` counts only if it is expected; `hit` and `not hit` are of any
    kind."""
    name, _, verdict = (header or "").partition("; ")
    if name != "nearhit":
        return False
    if expected in ("hit", "not hit"):
        return (verdict.partition(";")[0] == "hit") is (expected == "hit")
    members = [each for each in verdict.split("; ") if "ttl=" in expected or not each.startswith("ttl=")]
    return "; ".join(members) == expected


def text_of(answer: Answer) -> str:
    """Return the text of a chat answer, whole or as a stream."""
    if not answer.headers["Content-Type"].startswith("text/event-stream"):
        return answer.text
    events = [line[6:] for line in answer.body.splitlines() if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in json.loads(event)["choices"])


def parts(expected: Any, came: Any, place: str) -> Iterator[str]:
    """Yield where `came` lacks something of `expected`. A list must be whole; null: the key is absent or null."""
    if isinstance(expected, dict) and isinstance(came, dict):
        for key, value in expected.items():
            yield from parts(value, came.get(key), f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(came, list) and len(expected) == len(came):
        for i, (value, other) in enumerate(zip(expected, came, strict=True)):
            yield from parts(value, other, f"{place}.{i}")
    elif expected != came:
        yield f"{place}: expected {expected!r}, came {came!r}"


def _of_headers(expected: dict[str, str | None], came: Any, place: str) -> Iterator[str]:
    values = {name.lower(): value for name, value in came.items()}
    for name, value in expected.items():
        if values.get(name.lower()) != value:
            yield f"{place}.{name}: expected {value!r}, came {values.get(name.lower())!r}"


def _of_calls(step: Step, on: Stage) -> Iterator[str]:
    if step.calls is not None and len(on.order) != step.calls:
        yield f"calls: expected {step.calls}, came {len(on.order)}"
    if step.backend is not None and on.order[-1:] != [step.backend]:
        yield f"backend: expected {step.backend}, came {on.order[-1:]}"


def _of_metrics(on: Stage, expected: dict[str, dict[str, float]]) -> Iterator[str]:
    counted = on.counted()
    for name, values in expected.items():
        if counted.get(name, {}) != values:
            yield f"metrics.{name}: expected {values}, came {counted.get(name, {})}"


def _of_sent(expected: list[Sent], calls: list[Any]) -> Iterator[str]:
    if len(expected) != len(calls):
        yield f"sent: expected {len(expected)} calls, came {len(calls)}"
    for i, (sent, call) in enumerate(zip(expected, calls, strict=False), 1):
        for name in ("method", "path"):
            if getattr(sent, name) not in (None, getattr(call, name)):
                yield f"sent {i}: expected {getattr(sent, name)}, came {getattr(call, name)}"
        yield from _of_headers(sent.headers, call.headers, f"sent {i}: headers")
        whole = f"{call.path} {call.headers} {call.body!r}"
        yield from (f"sent {i}: {text!r} is in the call" for text in sent.lacks if text in whole)
        if sent.json_ is not None:
            yield from parts(sent.json_, _json(call.body), f"sent {i}: json")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
