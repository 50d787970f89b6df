"""Official clients and frameworks in environments of their own (`make clients`), unchanged but for their base URL.

What they read the second time comes from the cache, and is the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.environments import CLIENTS, HERE, LLAMA_INDEX, MODULES, node, output_of, python_of
from tests.clients.scripted import scripted
from tests.features.mcp.server import serving_tools
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.ollama_upstream import ollama
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: messages
    match: {path: "/v1/messages"}
    cache: {exact: {ttl: 1h}, admit: {tools: on}}
    route: {backend: claude}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, admit: {tools: on}}
    route: {backend: main}
"""
MCP = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 10m}, mcp: {tools: {search: {ttl: 5m, read_only: on, scope: public}}}}
    route: {backend: tools}
"""


@pytest.fixture
async def speaking(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """Yield a gateway in front of an endpoint that speaks both OpenAI's and Anthropic's protocol."""
    scripted(upstream)
    backends = {
        "main": {"adapter": "openai", "url": upstream.url},
        "claude": {"adapter": "anthropic", "url": upstream.url},
    }
    async with gateway_of(config_of(tmp_path, backends), POLICY) as served:
        yield served


def same_twice(out: str) -> dict[str, str]:
    """Return what a client printed, by kind. Each kind comes twice, the second time from the cache."""
    kinds: dict[str, list[str]] = {}
    for line in out.splitlines():
        kind, _, rest = line.partition(" ")
        if kind:
            kinds.setdefault(kind, []).append(rest)
    assert all(len(said) == 2 and said[0] == said[1] for said in kinds.values()), out
    return {kind: said[0] for kind, said in kinds.items()}


@pytest.mark.parametrize(
    ("script", "path", "calls"),
    [
        # one call for whole and stream, one with tools, a structured answer, a response, embeddings
        ("langchain_client.py", "/v1", 5),
        ("langchain_anthropic_client.py", "", 2),
        ("sdks_client.py", "", 6),
        # one call for whole and stream each, because the first one has an instruction; two around a function; a picture
        # and embeddings
        ("google_genai_client.py", "", 6),
        # a question, and two calls around a tool, by each protocol; a response
        ("pydantic_ai_client.py", "", 7),
    ],
)
async def test_clients_in_python_read_the_same_from_the_cache(
    speaking: Served, upstream: Upstream, script: str, path: str, calls: int
) -> None:
    out = await output_of([python_of(CLIENTS), HERE / script, speaking.url + path])
    assert " answers: Which ports?" in str(same_twice(out))
    assert len(upstream.calls) == calls, [call.path for call in upstream.calls]


async def test_cohere_ranks_from_the_cache_in_both_versions_of_its_api(speaking: Served, upstream: Upstream) -> None:
    out = await output_of([python_of(CLIENTS), HERE / "cohere_client.py", speaking.url])
    said = same_twice(out)
    assert said == {"v1": "[(1, 0.98)] 1.0", "v2": "[(1, 0.98)] 1.0", "v1-documents": "8080 and 9090"}
    assert [call.path for call in upstream.calls] == ["/v1/rerank", "/v2/rerank", "/v1/rerank"]


async def test_ollamas_client_reads_whole_answers_from_the_cache(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": ollama(upstream).url}})
    async with gateway_of(config, POLICY.replace("backend: claude", "backend: main")) as served:
        same_twice(await output_of([python_of(CLIENTS), HERE / "ollama_client.py", served.url]))
    assert [call.path for call in upstream.calls] == [
        *("/api/chat", "/api/chat", "/api/generate", "/api/embed"),
        "/api/chat",  # a stream passes through each time
    ]


async def test_llama_index_reads_the_same_from_the_cache(speaking: Served, upstream: Upstream) -> None:
    same_twice(await output_of([python_of(LLAMA_INDEX), HERE / "llama_index_client.py", f"{speaking.url}/v1"]))
    # chat, tools, one embedding, and of two the one that was missing
    assert len(upstream.calls) == 4, [call.path for call in upstream.calls]


@pytest.mark.parametrize(("script", "calls"), [("sdks.mjs", 6), ("ai.mjs", 8)])
async def test_clients_in_javascript_read_the_same_from_the_cache(
    speaking: Served, upstream: Upstream, script: str, calls: int
) -> None:
    same_twice(await output_of([node(), in_modules(script), speaking.url]))
    assert len(upstream.calls) == calls, [call.path for call in upstream.calls]


async def test_the_javascript_client_of_mcp_reads_results_from_the_cache(tmp_path: Path) -> None:
    async with serving_tools() as tools:
        config = config_of(tmp_path, {"tools": {"adapter": "mcp", "url": tools.url}})
        async with gateway_of(config, MCP) as served:
            said = same_twice(await output_of([node(), in_modules("mcp.mjs"), f"{served.url}/mcp"]))
        assert "search" in said["tools"]


def in_modules(script: str) -> Path:
    """Return a copy of a script beside its modules, where Node.js finds them."""
    copy = MODULES.parent / script
    copy.write_text((HERE / "js" / script).read_text())
    return copy
