"""MCP servers behind the gateway, with the official SDK on both sides: what is cached, and what passes untouched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.subscriptions import ToolsListChanged
from mcp_types import ElicitResult, ToolListChangedNotification

from tests.features.mcp.server import ToolServer, client_of, serving_tools
from tests.fixtures.gateways import Served, aboard, config_of, gateway_of
from tests.fixtures.waiting import until

CACHED = """
version: 1
routes:
  - name: tools
    match: {path: "*/mcp"}
    cache:
      exact: {ttl: 10m}
      share: global
      mcp:
        results: {prompts/get: {ttl: 5m}}
        tools:
          search: {ttl: 5m}
          weather: {ttl: 5m, read_only: on, scope: public}
          write: {ttl: 5m}
          fail: {ttl: 5m}
          count: {ttl: 5m}
          hold: {ttl: 5m, read_only: on}
    route: {backend: tools}
  - name: default
    match: {}
    route: {backend: tools}
"""
OLD = CACHED.replace("{prompts/get: {ttl: 5m}}", "{tools/list: {ttl: 5m}, prompts/list: {ttl: 5m, scope: public}}")
UNCACHED = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 10m}}
    route: {backend: tools}
"""
ALICE, BOB = {"Authorization": "Bearer alice"}, {"Authorization": "Bearer bob"}


@pytest.fixture
async def tools() -> AsyncIterator[ToolServer]:
    async with serving_tools() as server:
        yield server


def config(tools: ToolServer, tmp_path: Path) -> Any:
    return config_of(tmp_path, {"tools": {"adapter": "mcp", "url": tools.url}})


@pytest.fixture
async def cached(tools: ToolServer, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config(tools, tmp_path), CACHED) as served:
        yield served


@pytest.fixture
async def old(tools: ToolServer, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config(tools, tmp_path), OLD) as served:
        yield served


async def said(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    return answer.content[0].text  # type: ignore[union-attr]


async def test_results_come_from_the_cache_as_their_hints_say(cached: Served, tools: ToolServer) -> None:
    async with client_of(cached.url, headers=ALICE) as client:
        assert client.session.protocol_version == "2026-07-28"
        first = [await client.list_tools(), await client.read_resource("note://today")]
        assert [await client.list_tools(), await client.read_resource("note://today")] == first
        await client.list_prompts()
        await client.list_prompts()  # the server says that this list is stale at once
        prompt = await client.get_prompt("greet", {"name": "Ada"})
        assert await client.get_prompt("greet", {"name": "Ada"}) == prompt
        assert await client.get_prompt("greet", {"name": "Bob"}) != prompt
    assert tools.calls["tools/list"] == 1
    assert tools.calls["resources/read"] == 1
    assert tools.calls["prompts/list"] == 2
    assert tools.calls["prompts/get"] == 2


async def test_private_results_never_cross_an_authorisation(cached: Served, tools: ToolServer) -> None:
    async with client_of(cached.url, headers=ALICE) as alice, client_of(cached.url, headers=BOB) as bob:
        assert await alice.list_tools() == await bob.list_tools()
        assert await alice.read_resource("note://today") != await bob.read_resource("note://today")
        assert await said(alice, "weather", city="Rome") == await said(bob, "weather", city="Rome")  # public by policy
        assert await said(alice, "search", query="x") != await said(bob, "search", query="x")
    assert tools.calls["server/discover"] == 1
    assert tools.calls["tools/list"] == 1
    assert tools.calls["resources/read"] == 2
    assert tools.names == {"weather": 1, "search": 2}


async def test_private_results_serve_nobody_if_nothing_tells_the_clients_apart(
    cached: Served, tools: ToolServer
) -> None:
    async with client_of(cached.url) as one, client_of(cached.url) as other:
        assert await one.list_tools() == await other.list_tools()
        notes = [await client.read_resource("note://today") for client in (one, other, one)]
        assert len({note.contents[0].text for note in notes}) == 3  # type: ignore[union-attr]
        assert await said(one, "weather", city="Rome") == await said(other, "weather", city="Rome")
        assert await said(one, "search", query="x") != await said(other, "search", query="x")
        holding = [asyncio.create_task(said(client, "hold")) for client in (one, other)]
        await until(lambda: tools.names["hold"] == 2)  # neither waits for the other's call
        tools.gate.set()
        assert len(set(await asyncio.gather(*holding))) == 2
    assert tools.calls["tools/list"] == 1
    assert tools.calls["resources/read"] == 3
    refused = cached.gateway.parts.telemetry.admissions.values
    assert sum(count for labels, count in refused.items() if labels[-1] == "private") >= 5


async def test_two_keys_of_a_tenant_are_two_authorisations(tools: ToolServer, tmp_path: Path) -> None:
    hashes = [sha256(key).hexdigest() for key in (b"alice", b"bob")]
    keys = {"mode": "keys", "keys": {"acme": hashes}}
    both = config_of(tmp_path, {"tools": {"adapter": "mcp", "url": tools.url}}, auth=keys)
    async with (
        gateway_of(both, CACHED.replace("share: global", "share: tenant")) as served,
        client_of(served.url, headers=ALICE) as alice,
        client_of(served.url, headers=BOB) as bob,
    ):
        assert await alice.list_tools() == await bob.list_tools()
        assert await alice.read_resource("note://today") != await bob.read_resource("note://today")
    assert tools.calls["tools/list"] == 1
    assert tools.calls["resources/read"] == 2


async def test_tools_are_called_as_the_policy_says(cached: Served, tools: ToolServer) -> None:
    async with client_of(cached.url, headers=ALICE) as client:
        unlisted = await said(client, "search", query="a")  # the client then lists the tools, to check the result
        found = await said(client, "search", query="a")
        assert unlisted != found
        assert await said(client, "search", query="a") == found
        assert await said(client, "search", query="b") != found
        assert await said(client, "weather", city="Oslo") == await said(client, "weather", city="Oslo")
        assert await said(client, "write", text="x") != await said(client, "write", text="x")  # it does not only read
        assert await said(client, "fail") != await said(client, "fail")  # an error is never stored
        assert await said(client, "edit") == await said(client, "edit")  # not in the policy
    assert tools.names == {"search": 3, "weather": 1, "write": 2, "fail": 2, "edit": 2}


async def test_progress_reaches_the_client_and_its_stream_is_not_stored(cached: Served, tools: ToolServer) -> None:
    seen: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    async with client_of(cached.url, headers=ALICE) as client:
        await client.list_tools()
        for _ in range(2):
            await client.call_tool("count", {}, progress_callback=progress)
        assert seen == [1, 2, 1, 2]
        assert await said(client, "count") == await said(client, "count")  # nobody asks for progress: one message
    assert tools.names == {"count": 3}


async def test_a_session_passes_through(old: Served, tools: ToolServer) -> None:
    """A client of an older version: its session, the stream of the server, a question in the middle of a call."""

    async def approve(context: Any, params: Any) -> Any:
        return ElicitResult(action="accept", content={"ok": True})

    async with client_of(old.url, mode="legacy", elicitation_callback=approve) as client:
        assert client.session.protocol_version == "2025-11-25"
        await until(lambda: tools.calls["GET"] == 1)
        assert (await said(client, "ask")).startswith("accept")
        assert await client.list_tools() == await client.list_tools()
        assert await client.list_resources() == await client.list_resources()
    assert tools.calls["DELETE"] == 1
    assert tools.calls["tools/list"] == 1  # by the policy
    assert tools.calls["resources/list"] == 2  # no hint, no rule


async def test_results_of_a_session_stay_in_it(old: Served, tools: ToolServer) -> None:
    for _ in range(2):
        async with client_of(old.url, mode="legacy", headers=ALICE) as client:
            await client.list_tools()
            await client.list_prompts()
    assert tools.calls["initialize"] == 2
    assert tools.calls["tools/list"] == 2
    assert tools.calls["prompts/list"] == 1  # public by the policy


async def test_a_client_resumes_its_stream(old: Served, tools: ToolServer) -> None:
    async with client_of(old.url, mode="legacy") as client:
        assert (await said(client, "interrupt")).startswith("resumed")
    assert tools.events.replays == 1
    assert tools.names == {"interrupt": 1}


async def test_a_change_ends_the_list_of_a_session(old: Served, tools: ToolServer) -> None:
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    async with client_of(old.url, mode="legacy", message_handler=hear) as client:
        await until(lambda: tools.calls["GET"] == 1)
        before = await client.list_tools()
        await client.list_prompts()
        await client.call_tool("grow", {})
        await until(lambda: any(isinstance(message, ToolListChangedNotification) for message in heard))
        after = await client.list_tools()
        assert len(after.tools) == len(before.tools) + 1
        await client.list_prompts()
    assert tools.calls["tools/list"] == 2
    assert tools.calls["prompts/list"] == 1


async def test_a_change_ends_the_public_list(cached: Served, tools: ToolServer) -> None:
    async with client_of(cached.url, headers=ALICE) as alice, client_of(cached.url, headers=BOB) as bob:
        before = await bob.list_tools()
        async with asyncio.timeout(60), alice.listen(tools_list_changed=True) as changes:
            await bob.call_tool("grow", {})
            assert isinstance(await anext(aiter(changes)), ToolsListChanged)
        assert len((await bob.list_tools()).tools) == len(before.tools) + 1
    assert tools.calls["tools/list"] == 2


async def test_an_update_ends_one_resource(cached: Served, tools: ToolServer) -> None:
    async with client_of(cached.url, headers=ALICE) as alice:
        before = await alice.read_resource("note://today")
        async with asyncio.timeout(60), alice.listen(resource_subscriptions=["note://today"]) as changes:
            await alice.call_tool("edit", {})
            await anext(aiter(changes))
        assert await alice.read_resource("note://today") != before
        await alice.list_tools()
    assert tools.calls["resources/read"] == 2


async def test_without_mcp_in_the_policy_every_message_reaches_the_server(tools: ToolServer, tmp_path: Path) -> None:
    async with gateway_of(config(tools, tmp_path), UNCACHED) as served, client_of(served.url) as client:
        for _ in range(2):
            await client.list_tools()
            await client.read_resource("note://today")
            await client.get_prompt("greet", {"name": "Ada"})
            await said(client, "search", query="a")
    for method in ("tools/list", "resources/read", "prompts/get", "tools/call"):
        assert tools.calls[method] == 2


META = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}


def message(method: str, identity: object = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params | META}


async def test_a_hit_is_addressed_to_its_request(cached: Served, tools: ToolServer) -> None:
    headers = HEADERS | {"Mcp-Method": "tools/list"}
    first = await cached.post("/mcp", message("tools/list", 1), headers)
    assert first.headers["Cache-Status"] == "nearhit; fwd=miss; stored"
    for identity in ("seven", 7, '\u00e9"'):
        answer = await cached.post("/mcp", message("tools/list", identity), headers)
        assert answer.headers["Cache-Status"].startswith("nearhit; hit; detail=exact; ttl=")
        assert answer.json == first.json | {"id": identity}
        ttl = int(answer.headers["Cache-Status"].rpartition("=")[2])
        assert 0 < ttl <= 600, "the policy's TTL bounds the server's"
    assert tools.calls["tools/list"] == 1


async def test_what_a_server_refuses_is_not_served(cached: Served, tools: ToolServer) -> None:
    """A request whose headers the server would refuse gets no result that was stored for another one."""
    await cached.post("/mcp", message("tools/list"), HEADERS | {"Mcp-Method": "tools/list"})
    for headers in (HEADERS, HEADERS | {"Mcp-Method": "prompts/list"}):
        assert (await cached.post("/mcp", message("tools/list"), headers)).status == 400
    assert tools.calls["tools/list"] == 3


OTHER_MESSAGES = (
    b"",
    b"{",
    b"[]",
    b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "tools/list"}',
    b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]',
    b'{"jsonrpc": "2.0", "method": "notifications/initialized"}',
    b'{"jsonrpc": "2.0", "id": null, "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "nothing/known"}',
)


async def test_the_server_judges_every_other_message(cached: Served, tools: ToolServer) -> None:
    headers = HEADERS | {"Content-Type": "application/json"}
    for body in OTHER_MESSAGES:
        async with cached.session.post(f"{tools.url}/mcp", data=body, headers=headers) as direct:
            expected = direct.status, await direct.read()
        for _ in range(2):
            answer = await cached.post("/mcp", body, headers)
            assert (answer.status, answer.body) == expected, body
            assert "detail=message" in answer.headers["Cache-Status"]


def calling(tool: str, identity: object) -> dict[str, Any]:
    return message("tools/call", identity, name=tool, arguments={})


async def test_identical_calls_share_one_and_keep_their_addresses(cached: Served, tools: ToolServer) -> None:
    headers = HEADERS | ALICE | {"Mcp-Method": "tools/call", "Mcp-Name": "hold"}
    async with asyncio.TaskGroup() as group:
        posted = [group.create_task(cached.post("/mcp", calling("hold", name), headers)) for name in ("a", 2, "c")]
        await until(lambda: tools.names["hold"] and aboard(cached) == 3)
        tools.gate.set()
    answers = [task.result().json for task in posted]
    assert [answer["id"] for answer in answers] == ["a", 2, "c"]
    assert len({answer["result"]["content"][0]["text"] for answer in answers}) == 1
    assert tools.names == {"hold": 1}


async def test_streams_of_identical_calls_are_not_shared(old: Served, tools: ToolServer) -> None:
    """A stream is addressed to the client that asked, from its first byte."""
    async with client_of(old.url, mode="legacy") as client, asyncio.timeout(60), asyncio.TaskGroup() as group:
        called = [group.create_task(said(client, "hold")) for _ in range(3)]
        await until(lambda: tools.names["hold"] == 3)
        tools.gate.set()
    assert all(task.result().startswith("held") for task in called)


async def test_nobody_joins_a_call_from_before_a_change(cached: Served, tools: ToolServer) -> None:
    headers = HEADERS | ALICE | {"Mcp-Method": "tools/call", "Mcp-Name": "hold"}
    async with client_of(cached.url, headers=ALICE) as client, asyncio.TaskGroup() as group:
        early = group.create_task(cached.post("/mcp", calling("hold", 1), headers))
        await until(lambda: tools.names["hold"] == 1)
        async with asyncio.timeout(60), client.listen(tools_list_changed=True) as changes:
            await client.call_tool("grow", {})
            await anext(aiter(changes))
        late = group.create_task(cached.post("/mcp", calling("hold", 2), headers))
        await until(lambda: tools.names["hold"] == 2)
        tools.gate.set()
    assert early.result().json["result"]["content"] != late.result().json["result"]["content"]
    assert "stored" not in early.result().headers["Cache-Status"]
    assert late.result().headers["Cache-Status"] == "nearhit; fwd=miss; stored"


async def test_a_server_that_is_gone_is_an_error_at_once(tmp_path: Path) -> None:
    async with serving_tools() as tools:
        gone = config(tools, tmp_path)
    async with gateway_of(gone, CACHED) as served:
        answer = await served.post("/mcp", message("tools/list"), HEADERS)
    assert answer.status == 502
    assert answer.json["error"]["code"] == -32603
