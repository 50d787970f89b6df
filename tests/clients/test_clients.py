"""LangChain and LlamaIndex, unchanged but for their base URL, in an environment of their own (`make clients`): what
they read the second time comes from the cache, and is the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.gateways import Served
from tests.fixtures.responses import answering
from tests.fixtures.upstream import Upstream
from tests.http_server.test_openai_chat_features import CALLS
from tests.http_server.test_openai_chat_features import answering as chatting

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-clients" / "bin" / "python"
responding = answering()


async def scripted(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    if request.path == "/v1/responses":
        return await responding(request, call)
    if request.path == "/v1/chat/completions":
        if call.get("response_format"):
            return await chatting('{"city": "Paris", "celsius": 21}')(request, call)
        return await (chatting(None, "tool_calls", tool_calls=CALLS) if call.get("tools") else chatting())(
            request, call
        )
    return await Upstream()._default(request, json.dumps(call).encode())


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        # chat, tools twice (calls of tools are not stored), a structured answer, a response, embeddings
        ("langchain_client.py", ["chat/completions"] * 4 + ["responses", "embeddings"]),
        # chat, tools twice, one embedding, and of two the one that was missing
        ("llama_index_client.py", ["chat/completions"] * 3 + ["embeddings"] * 2),
    ],
)
async def test_frameworks_read_the_same_from_the_cache(
    served: Served, upstream: Upstream, script: str, calls: list[str]
) -> None:
    if not PYTHON.exists():
        pytest.skip("LangChain and LlamaIndex are not installed: `make clients` does it (some 350 MB, a minute)")
    upstream.answer = scripted
    process = await asyncio.create_subprocess_exec(
        PYTHON, HERE / script, f"{served.url}/v1", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(300):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    lines = out.decode().splitlines()
    for kind in {line.split(" ")[0] for line in lines if line}:
        said = [line for line in lines if line.startswith(f"{kind} ")]
        assert said[0] == said[1], said
    assert any("upstream answers: Which ports?" in line for line in lines)
    assert sorted(call.path for call in upstream.calls) == sorted(f"/v1/{each}" for each in calls)
