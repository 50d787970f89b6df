"""Ollama's native calls pass through to its server; whole answers are cached exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.features.exact_calls.ollama import Ollama
from gateway.outcomes import Admission
from tests.fixtures.gateways import EXACT_CACHE, config_of, gateway_of
from tests.fixtures.ollama_upstream import ENDED, ollama
from tests.fixtures.upstream import Upstream

OLLAMA = Ollama()
CHAT: dict[str, Any] = {
    "model": "llama3:8b", "messages": [{"role": "user", "content": "Which ports?"}], "stream": False
}  # fmt: skip


async def test_whole_answers_are_cached_and_everything_else_passes(upstream: Upstream, tmp_path: Path) -> None:
    """ollama/ollama-python #31: `keep_alive` says how long the model stays in memory, and nothing about the answer."""
    generate = {"model": "llama3:8b", "prompt": "Which ports?", "stream": False, "images": ["iVBORw0KGgo="]}
    embed = {"model": "llama3:8b", "input": ["a"], "keep_alive": "5m"}
    streamed = {key: value for key, value in CHAT.items() if key != "stream"}  # by default the server streams
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": ollama(upstream).url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        for path, body, other, hits in (
            ("/api/chat", CHAT, {**CHAT, "keep_alive": -1, "options": {}, "tools": None}, True),
            ("/api/chat", CHAT, {**CHAT, "options": {"num_ctx": 8192}}, False),
            ("/api/chat", CHAT, {**CHAT, "think": True}, False),
            ("/api/generate", generate, generate, True),
            ("/api/generate", generate, {**generate, "images": ["iVBORw0KGgp="]}, False),
            ("/api/embed", embed, {"model": "llama3:8b", "input": ["a"]}, True),
            ("/api/chat", streamed, streamed, False),
            ("/api/generate", {"model": "m", "keep_alive": 0}, {"model": "m", "keep_alive": 0}, False),
        ):
            first = await served.post(path, body)
            again = await served.post(path, other)
            assert ("; hit" in again.headers["Cache-Status"]) is hits, (path, other)
            assert (first.status, again.status) == (200, 200)
        lines = (await served.post("/api/chat", streamed)).body.splitlines()
        version = await served.get("/api/version")
    assert [json.loads(line)["done"] for line in lines] == [False, True]
    assert version.json == {"version": "0.13.0"}
    assert upstream.calls[0].path == "/api/chat"
    assert upstream.calls[0].json == CHAT


@pytest.mark.parametrize(
    ("answer", "admission"),
    [
        ({"message": {"content": "x"}, **ENDED}, Admission.STORED),
        ({"message": {"content": "x"}, "done": True}, Admission.STORED),
        ({"response": "x", **ENDED}, Admission.STORED),
        ({"message": {"content": "x"}, **ENDED, "done_reason": "length"}, Admission.INCOMPLETE),
        ({"response": "", "done": True, "done_reason": "load"}, Admission.INCOMPLETE),
        ({"message": {"content": "x"}, "done": False}, Admission.INCOMPLETE),
        ({"message": {"content": "", "thinking": "hm"}, **ENDED}, Admission.EMPTY),
        ({"message": {"content": "", "tool_calls": [{"function": {"name": "f"}}]}, **ENDED}, Admission.TOOLS),
        ({"embeddings": [[0.5]]}, Admission.STORED),
        ({"embeddings": [[]]}, Admission.INCOMPLETE),
        ({"embedding": []}, Admission.INCOMPLETE),
        ({"error": "model not found"}, Admission.ERROR_STATUS),
        ([], Admission.MALFORMED),
    ],
)
def test_only_a_complete_answer_is_admitted(answer: Any, admission: Admission) -> None:
    call = OLLAMA.parse("/api/chat", json.dumps(CHAT).encode(), {})
    inspection = OLLAMA.inspect(call, [json.dumps(answer).encode()], False)
    assert inspection.admission is admission
    if isinstance(answer, dict) and "eval_count" in answer:
        assert (inspection.input_tokens, inspection.output_tokens) == (7, 5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"model": "m", "messages": [], "stream": False}),
        ("/api/chat", {**CHAT, "stream": True}),
        ("/api/generate", {"model": "m", "prompt": "", "stream": False}),
        ("/api/embed", {"model": "m", "input": []}),
        ("/api/chat", {**CHAT, "options": [1]}),
    ],
)
def test_what_streams_or_loads_a_model_is_not_read(path: str, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        OLLAMA.parse(path, json.dumps(body).encode(), {})


def test_an_error_has_ollamas_form() -> None:
    assert json.loads(OLLAMA.error("rate_limit_error", "slow down")) == {"error": "slow down"}
