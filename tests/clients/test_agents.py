"""Coding agents in an environment of their own (`make clients`): Claude Code and Codex, each in a session with a tool.

The second session is served from the cache as far as the agent asks the same, and ends the same.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.clients.environments import MODULES, node, output_of
from tests.fixtures.anthropic_upstream import events_of as message_events
from tests.fixtures.anthropic_upstream import message, stream
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.responses import response_to, text_item
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.upstream import chunk as chat_chunk

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, admit: {tools: on}}
    route: {backend: main}
"""
QUESTION, NOTE = "What does note.txt say?", "the code is 4711"
COMMAND = {"command": "cat note.txt", "description": "Show the note"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which an agent works."""
    found = tmp_path / "work"
    found.mkdir()
    (found / "note.txt").write_text(f"{NOTE}\n")
    return found


@asynccontextmanager
async def serving(upstream: Upstream, tmp_path: Path, adapter: str) -> AsyncIterator[Served]:
    data = tmp_path / "data"
    data.mkdir()
    async with gateway_of(config_of(data, {"main": {"adapter": adapter, "url": upstream.url}}), POLICY) as served:
        yield served


# Claude Code, before an endpoint of either protocol


def reads(call: Mapping[str, Any]) -> bool:
    """Return whether the agent offers its tools, as in the main conversation."""
    return any((tool.get("name") or tool["function"]["name"]) == "Bash" for tool in call.get("tools", ()))


async def as_claude(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Answer in Anthropic's protocol: show the note, then say what it says."""
    if request.path != "/v1/messages":
        return web.json_response({"input_tokens": 14})
    last = call["messages"][-1]["content"]
    results = [block for block in last if isinstance(block, dict) and block["type"] == "tool_result"]
    content = [{"type": "text", "text": f"It says: {NOTE}" if NOTE in str(results) else "I look."}]
    if reads(call) and not results:
        content.append({"type": "tool_use", "id": "toolu_01", "name": "Bash", "input": COMMAND})
    whole = message(content, "end_turn" if len(content) == 1 else "tool_use", call["model"])
    return await stream(request, message_events(whole)) if call.get("stream") else web.json_response(whole)


async def as_openai(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Answer the same in OpenAI's protocol, with the arguments of the tool in pieces."""
    done = call["messages"][-1]["role"] == "tool"
    text = f"It says: {NOTE}" if NOTE in str(call["messages"][-1]["content"]) else "I look."
    arguments = json.dumps(COMMAND)
    function = {"name": "Bash", "arguments": ""}
    first = {"index": 0, "id": "call_01", "type": "function", "function": function}
    pieces = [{"index": 0, "function": {"arguments": each}} for each in (arguments[:9], arguments[9:])]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text}]
    tools = reads(call) and not done
    deltas += [{"tool_calls": [each]} for each in (first, *pieces)] if tools else []
    finish = "tool_calls" if tools else "stop"
    if not call.get("stream"):
        return web.json_response(completion(call, text, finish))
    frames = b"".join(chat_chunk(call, delta) for delta in deltas) + chat_chunk(call, {}, finish)
    return web.Response(body=frames + b"data: [DONE]\n\n", content_type="text/event-stream")


async def claude(served: Served, folder: Path, home: Path) -> dict[str, Any]:
    """Return the outcome of one session of Claude Code."""
    home.mkdir(exist_ok=True)  # its path is in what the agent tells the model
    quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER")
    environ = {"HOME": str(home), "ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_API_KEY": "sk-ant", "IS_SANDBOX": "1"}
    command = [MODULES / ".bin" / "claude", "-p", QUESTION, "--output-format", "json", "--allowedTools", "Bash(cat:*)"]
    out = await output_of(command, environ | dict.fromkeys(quiet, "1"), folder)
    outcome: dict[str, Any] = json.loads(out)
    return outcome


@pytest.mark.parametrize(("adapter", "scripted"), [("anthropic", as_claude), ("openai", as_openai)])
async def test_a_second_session_of_claude_code_makes_no_call(
    upstream: Upstream, tmp_path: Path, folder: Path, adapter: str, scripted: Any
) -> None:
    node()
    upstream.answer = scripted
    async with serving(upstream, tmp_path, adapter) as served:
        first = await claude(served, folder, tmp_path / "home")
        calls = len(upstream.calls)
        second = await claude(served, folder, tmp_path / "home")
        assert first["result"] == second["result"] == f"It says: {NOTE}", (first, second)
        assert not first["is_error"]
        assert calls >= 2
        assert len(upstream.calls) == calls


# Codex


async def as_codex_wants(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Answer in OpenAI's Responses protocol: run a command that prints the note, then say what it says."""
    if request.path != "/v1/responses":
        return web.json_response({"error": {"message": "no such path", "type": "invalid_request_error"}}, status=404)
    outputs = [item for item in call["input"] if item.get("type", "").endswith("_call_output")]
    if outputs:
        item = text_item(f"It says: {NOTE}" if NOTE in str(outputs) else "I cannot tell.")
    else:
        arguments = json.dumps({"cmd": "cat note.txt"})
        item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "exec_command"}
        item |= {"arguments": arguments, "status": "completed"}
    whole = response_to(call, item)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    frames = [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]
    return web.Response(body="".join(frames).encode(), content_type="text/event-stream")


PROVIDER = """
model = "gpt-5.5"
check_for_update_on_startup = false
{provider}
[analytics]
enabled = false
"""
OWN = """model_provider = "nearhit"
[model_providers.nearhit]
name = "nearhit"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
BUILT_IN = """openai_base_url = "{url}"
"""


async def codex(served: Served, folder: Path, home: Path, provider: str) -> list[dict[str, Any]]:
    """Return the events of one session of Codex."""
    home.mkdir(exist_ok=True)  # its path is in what the agent tells the model
    (home / "config.toml").write_text(PROVIDER.format(provider=provider.format(url=f"{served.url}/v1")))
    environ = {"HOME": str(home), "CODEX_HOME": str(home), "OPENAI_API_KEY": "sk", "CODEX_API_KEY": "sk"}
    program = MODULES / "@openai" / "codex" / "bin" / "codex.js"
    options = ["exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
    out = await output_of([node(), program, *options, QUESTION], environ, folder)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def said(events: list[dict[str, Any]]) -> str:
    return next(e["item"]["text"] for e in events if e.get("item", {}).get("type") == "agent_message")


@pytest.mark.parametrize("provider", [OWN, BUILT_IN], ids=["http", "websocket"])
async def test_a_second_session_of_codex_repeats_only_what_its_tools_say(
    upstream: Upstream, tmp_path: Path, folder: Path, provider: str
) -> None:
    node()
    upstream.answer = as_codex_wants
    async with serving(upstream, tmp_path, "openai") as served:
        first = await codex(served, folder, tmp_path / "home", provider)
        calls = len(upstream.calls)
        second = await codex(served, folder, tmp_path / "home", provider)
        assert said(first) == said(second) == f"It says: {NOTE}", (first, second)
        assert calls == 2
        # Codex puts a new id and the seconds of a command into what it sends of the command's output.
        assert len(upstream.calls) == calls + 1
        assert not [event for event in first + second if event["type"] == "error"]
