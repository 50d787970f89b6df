"""`nearhit cache warm`: what is sent, at which rate, and what came of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.features.warming import warming
from tests.fixtures.cache_commands import Nearhit
from tests.fixtures.cache_commands import _nothing_takes_long as _nothing_takes_long  # fixtures
from tests.fixtures.cache_commands import nearhit as nearhit
from tests.fixtures.cache_commands import served as served
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until


async def test_warming_stores_what_is_asked_and_says_what_came_of_it(
    served: Served, nearhit: Nearhit, tmp_path: Path, upstream: Upstream
) -> None:
    async def sometimes(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        content = call["messages"][0]["content"]
        if content == "bad":
            return web.json_response({"error": {"message": "no"}}, status=400)
        return web.json_response(
            completion(call, "cut" if content == "cut" else "x", "length" if content == "cut" else "stop")
        )

    upstream.answer = sometimes
    body = {"model": "big", "stream": False, "messages": [{"role": "user", "content": "whole body"}]}
    prompts = ["alpha", "alpha", "bad", "cut", body]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, prompts)) + "\n\n")
    arguments = ("warm", file, "--rate", "500/s", "--url", served.url, "--concurrency", "1")
    code, out, err = await nearhit(*arguments, admin=served.admin_url)
    assert code == 1
    assert out == "2 stored, 1 hits, 1 not stored, 1 failed (first failure: status 400)\n"
    assert err == ""
    assert {call.json["model"] for call in upstream.chats} == {"default", "big"}
    assert (await served.chat("alpha", model="default")).cache_status.startswith("nearhit; hit; detail=exact")


async def test_warming_keeps_to_its_rate_and_to_its_bound(
    served: Served, tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(f"prompt {i}") for i in range(12)))
    waits: list[float] = []

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    # Its own clock and sleep, which stand still: what else runs in this process has those there are.
    monkeypatch.setattr(warming, "time", SimpleNamespace(monotonic=FakeClock().monotonic))
    monkeypatch.setattr(warming, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": noted}))
    upstream.gate.clear()
    plan = warming.WarmingPlan(file, served.url, "m", 2.0, 3, {})
    work = asyncio.create_task(warming.warm(plan, 12, lambda *_: None))
    await until(lambda: len(upstream.calls) == 3 and len(waits) == 4)
    upstream.gate.set()
    summary = await work
    assert summary.stored == 12
    assert waits == [i / 2.0 for i in range(12)]


async def test_prompts_that_are_none_are_named_before_anything_is_sent(
    served: Served, nearhit: Nearhit, tmp_path: Path, upstream: Upstream
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"fine"\n\n{"messages": "x"}\nplain text\n""\n')
    code, _, err = await nearhit("warm", file, "--url", served.url)
    assert code == 1
    assert [line.removeprefix("nearhit: ").partition(": ")[0] for line in err.splitlines()] == [
        f"{file}:{line}" for line in (3, 4, 5)
    ]
    assert upstream.calls == []
    file.write_text('"fine"')
    code, _, err = await nearhit("warm", file, "--url", "http://127.0.0.1:9")
    assert (code, "no gateway answers at http://127.0.0.1:9" in err) == (1, True)


@pytest.mark.parametrize("text", ["0", "5/d", "-1/s", "fast", "5 / s", ""])
def test_a_rate_has_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["cache", "warm", "x", "--rate", text])
    assert exit_.value.code == 2
    assert [warming.parse_rate(given) for given in ("5/s", "30/m", "5", "0.5/s")] == [5.0, 0.5, 5.0, 0.5]
