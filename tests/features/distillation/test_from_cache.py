"""From questions that the large model has answered to a light model that answers them: the walk of docs/distill.md."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.__main__ import main
from tests.fixtures.build_environment import BUILD_ENV
from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.processes import Process, served_by_process, write_config
from tests.fixtures.upstream import Upstream, completion, question_of

WORDS = {"lost": ("card", "purse", "key"), "price": ("cost", "fee", "charge")}
FRAMES = ("my {} please", "what of the {}", "about a {} today", "the {}", "one {} more", "any {} now")
ROUTED = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: 1h}}}}
    route: {{light: intents, large: main, escalate_above: 0, cascade: {{check: logprobs, accept_above: {sure}}}}}
"""


async def label(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    question = question_of(call)
    kind = next((kind for kind, words in WORDS.items() if any(word in question for word in words)), "other")
    return web.json_response(completion(call, kind))


async def nearhit(*words: object) -> None:
    """A command of a person's, beside the servers of this loop."""
    assert await asyncio.to_thread(main, [*map(str, words)]) == 0


async def answers(gateway: Process, questions: list[str]) -> list[tuple[str, str]]:
    """(text, the backend that wrote it now)"""
    found = []
    for question in questions:
        answer = await gateway.chat(question)
        assert answer.status == 200
        text = answer.json["choices"][0]["message"]["content"]
        found.append((text, answer.headers.get("x-nearhit-backend", "cache")))
    return found


async def test_what_the_large_model_answered_is_exported_learnt_and_answered_by_the_light_one(
    python: Path, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.answer = label
    backends: dict[str, Any] = {"main": {"adapter": "openai", "url": upstream.url}}
    asked = [frame.format(word) for words in WORDS.values() for word in words for frame in FRAMES[:-1]]
    async with served_by_process(write_config(tmp_path, backends, EXACT_CACHE)) as before:
        assert {backend for _, backend in await answers(before, asked)} == {"main"}
        await nearhit("cache", "export", "--admin", before.admin_url, "--format", "chat", "--out", tmp_path / "a.jsonl")
    exported = [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert sorted(question["content"] for question, _ in exported) == sorted(asked)

    where = ("--repository", tmp_path / "models", "--work", tmp_path / "work", "--build-env", BUILD_ENV)
    given = ("--name", "intents", "--epochs", "6", "--hold-out", "0.3", "--json")
    await nearhit("distill", tmp_path / "a.jsonl", *where, *given)
    entry = tmp_path / "models" / "intents" / "1"
    report = json.loads((entry / "report.json").read_text())
    assert report["rows"] + report["held_out"] == len(asked)
    assert (entry.parent / "config.pbtxt").is_file()

    backends["intents"] = {"adapter": "onnx", "path": str(entry), "task": "classify"}
    routed = ROUTED.format(sure=report["accept_above"])
    called, new = len(upstream.chats), [FRAMES[-1].format(word) for words in WORDS.values() for word in words]
    async with served_by_process(write_config(tmp_path, backends, routed)) as after:
        found = dict(zip(new, await answers(after, new), strict=True))
        by_light = [question for question, (_, backend) in found.items() if backend == "intents"]
        assert len(by_light) >= 4, found
        assert len(upstream.chats) - called == len(new) - len(by_light), "who is not sure asks the large one, once"
        kinds = {question: kind for kind, words in WORDS.items() for question in new if question.split()[1] in words}
        right = [text == kinds[question] for question, (text, _) in found.items()]
        assert sum(right) >= 5, found
        assert {backend for _, backend in await answers(after, asked)} == {"cache"}
        assert len(upstream.chats) - called == len(new) - len(by_light)
