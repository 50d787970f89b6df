"""Bursts of calls against limits of tokens and cost must not spend more than the limit and one call, on any path."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import ONE_REQUEST_S, target
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.processes import Process
from tests.fixtures.upstream import listening

CAP = 10  # calls that a limit leaves room for
TOKENS = 12  # of a call
DOLLARS = 0.012  # of a call: by its tokens, its picture, its characters or its minute
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "input_tokens": 7, "output_tokens": 5, "total_tokens": TOKENS}
PRICE = {
    "input_per_million": 1000.0, "output_per_million": 1000.0, "per_million_characters": 12_000.0, "per_second": 0.012,
    "per_call": {"/v1/ocr": DOLLARS, "/api/*": DOLLARS},
}  # fmt: skip
EMBEDDINGS = "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "q"}]


@dataclass(frozen=True, slots=True)
class Spender:
    """A call that costs `DOLLARS`. `tokens`: whether its tokens can be counted."""

    path: str
    body: Mapping[str, Any]
    tokens: bool = True


SPENDERS = (
    Spender("/v1/chat/completions", {"model": "m", "messages": MESSAGES}),
    Spender("/v1/chat/completions", {"model": "m", "messages": MESSAGES, "max_tokens": 5}),
    Spender("/v1/chat/completions", {"model": "m", "messages": MESSAGES, "stream": True}),
    Spender("/v1/responses", {"model": "m", "input": "q"}),
    Spender("/v1/messages", {"model": "m", "messages": MESSAGES, "max_tokens": 5}),
    Spender(EMBEDDINGS, {"model": "m", "input": "q"}),
    Spender("/v1/images/generations", {"model": "m", "prompt": "a cat"}),
    Spender("/v1/responses/compact", {"model": "m", "input": "q"}),
    Spender("/v1/rerank", {"model": "m", "query": "q", "documents": ["a"]}),
    Spender("/v1/moderations", {"model": "m", "input": "q"}),
    Spender("/v1/audio/speech", {"model": "m", "input": "x"}, tokens=False),
    Spender("/v1/videos", {"model": "m", "prompt": "a cat", "seconds": "1"}, tokens=False),
    Spender("/v1/ocr", {"model": "m"}, tokens=False),
)
UNMETERED = ("/v1/batches", "/v1/fine_tuning/jobs", "/v1/realtime/client_secrets", "/v1/threads/runs", "/unknown")


@dataclass
class Provider:
    """Bills each call, and counts them by path."""

    calls: Counter[str] = field(default_factory=Counter)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.calls[request.path] += 1
        if request.path in ("/v1/audio/speech", "/v1/ocr"):
            return web.Response(body=b"no usage")
        if body.get("stream"):
            return await self._stream(request)
        usage = USAGE | {"prompt_tokens": TOKENS, "completion_tokens": 0} if request.path == EMBEDDINGS else USAGE
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
        return web.json_response(
            {
                "id": "x", "type": "message", "role": "assistant", "status": "completed", "stop_reason": "end_turn",
                "choices": [choice], "output": [item], "content": [{"type": "text", "text": "yes"}], "usage": usage,
                "data": [{"url": "x", "index": 0, "embedding": [0.5]}],
            }
        )  # fmt: skip

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        await out.write(b'data: {"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}\n\n')
        await out.write(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\ndata: [DONE]\n\n')
        return out


def policy(limit: str) -> str:
    return f"{NO_CACHE}    limits: {limit}\n"


async def ask(it: Process, path: str, body: Mapping[str, Any], tenant: str) -> int:
    headers = {"Authorization": f"Bearer {tenant}"}
    async with asyncio.timeout(4 * ONE_REQUEST_S):
        async with it.session.post(it.url + path, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status


async def burst(it: Process, spender: Spender, size: int, tenant: str) -> Counter[int]:
    """Return the statuses of that many calls at once, none of which equals another one."""
    bodies = ({**spender.body, "user": f"{tenant} {number}"} for number in range(size))
    return Counter(await asyncio.gather(*(ask(it, spender.path, body, tenant) for body in bodies)))


async def attack(quick: bool) -> Finding:
    """Let tenants burst on each path, against a limit of tokens and one of cost."""
    sizes: Sequence[int] = (50,) if quick else (50, 500)
    over, under, wrong, asked = list[str](), list[str](), list[str](), 0
    limits = {"tokens": f"{{tokens: {CAP * TOKENS}/day}}", "cost": f"{{cost: {{per_day: {CAP * DOLLARS:.3f} USD}}}}"}
    for kind, limit in limits.items():
        paid = Provider()
        async with listening(paid.answer) as url, target(url, policy(limit), backend={"price": PRICE}) as it:
            for size in sizes:
                for number, spender in enumerate(SPENDERS):
                    if kind == "tokens" and not spender.tokens:
                        continue
                    before = paid.calls.total()  # some calls are translated for another path
                    statuses = await burst(it, spender, size, f"{kind}-{size}-{number}")
                    made, asked = paid.calls.total() - before, asked + size
                    what = f"{kind}: {spender.path} made {made} of {CAP}"
                    if made > CAP + 1 and spender.path != "/v1/moderations":
                        over.append(what)
                    if made < CAP - 1:
                        under.append(what)
                    if set(statuses) - {200, 429}:
                        wrong.append(f"{what}: {dict(statuses)}")
            for path in UNMETERED:
                before = paid.calls[path]
                status = await ask(it, path, {}, "anybody")
                asked += 1
                if status != 403 or paid.calls[path] != before:
                    wrong.append(f"{kind}: {path} got {status}")
    bursts = " and ".join(map(str, sizes))
    return verdict_of(
        f"{asked} calls in bursts of {bursts}, {len(over)} limits passed, {len(under)} not used up",
        {
            f"a limit was passed by more than a call: {'; '.join(over)}": not over,
            f"a limit was not used up: {'; '.join(under)}": not under,
            f"a status was wrong: {'; '.join(wrong)}": not wrong,
        },
    )


PART = Part(
    "spending",
    "no burst passes a limit of tokens or cost by more than a call, on any path; what nothing meters gets 403",
    attack,
)
