"""The Model Context Protocol: which messages may be answered from the cache, and how results are read."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from gateway.calls import Call
from gateway.dialects.known import accepts, find_dialect
from gateway.features.mcp.dialect import MCP, VERSION_KEY, has_hints, with_id
from gateway.outcomes import Admission, Bypass

DIALECT = MCP()
META = {VERSION_KEY: "2026-07-28"}


def call_of(method: str, params: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Call:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {} if params is None else params, **fields}
    return DIALECT.parse("/mcp", orjson.dumps(message), CIMultiDict(headers or {}))


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/github/mcp", "/v1/mcp"])
def test_posts_to_a_path_that_ends_in_mcp_are_claimed(path: str) -> None:
    assert find_dialect("POST", path) is not None
    assert find_dialect("GET", path) is None
    assert find_dialect("DELETE", path) is None


@pytest.mark.parametrize("path", ["/mcp/tools", "/v1/chat", "/xmcp", "mcp", "/mcp//"])
def test_other_paths_are_not(path: str) -> None:
    assert not DIALECT.claims("POST", path)


def test_every_endpoint_may_have_an_mcp_path() -> None:
    assert accepts("openai", "mcp")
    assert not accepts("mcp", "openai")


@pytest.mark.parametrize(
    ("method", "params", "fields"),
    [
        ("initialize", {}, {}),
        ("notifications/initialized", {}, {}),
        ("logging/setLevel", {}, {}),
        ("subscriptions/listen", {}, {}),
        ("tools/list", {"requestState": "x"}, {}),
        ("tools/list", {"inputResponses": {}}, {}),
        ("tools/call", {"name": "a", "task": {}}, {}),
        ("tools/list", [], {}),
        ("tools/list", {"_meta": 1}, {}),
        ("tools/list", {}, {"id": None}),
        ("tools/list", {}, {"id": True}),
        ("tools/list", {}, {"id": 1.5}),
        ("tools/list", {}, {"jsonrpc": "1.0"}),
    ],
)
def test_other_messages_are_relayed(method: str, params: Any, fields: dict[str, Any]) -> None:
    call = call_of(method, params, **fields)
    assert call.uncached is Bypass.MESSAGE
    assert call.stateful, "it is never sent twice"
    assert call.body_bytes is not None


@pytest.mark.parametrize("headers", [{"accept": "text/event-stream"}, {"last-event-id": "7"}])
def test_a_client_that_takes_no_json_is_relayed(headers: dict[str, str]) -> None:
    assert call_of("tools/list", headers=headers).uncached is Bypass.MESSAGE


def test_a_tool_call_is_never_sent_twice_unless_a_policy_says_so() -> None:
    assert call_of("tools/call", {"name": "a"}).stateful
    assert not call_of("tools/list").stateful


@pytest.mark.parametrize(
    ("params", "headers", "path"),
    [
        ({"cursor": "2"}, {}, "/mcp"),
        ({"_meta": {VERSION_KEY: "x"}}, {}, "/mcp"),
        ({}, {"MCP-Protocol-Version": "2025-11-25"}, "/mcp"),
        ({}, {"Mcp-Param-Region": "eu"}, "/mcp"),
        ({}, {"Mcp-Session-Id": "1"}, "/mcp"),
        ({}, {"Accept": "application/json, text/event-stream"}, "/mcp"),
        ({}, {}, "/other/mcp"),
    ],
)
def test_what_decides_a_result_is_in_the_key(params: Any, headers: dict[str, str], path: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    call = DIALECT.parse(path, orjson.dumps(message), CIMultiDict(headers))
    assert call.canonical != call_of("tools/list").canonical


def test_what_addresses_or_traces_a_request_is_not() -> None:
    plain = call_of("tools/list", {"_meta": META})
    other = call_of("tools/list", {"_meta": META | {"progressToken": 9, "traceparent": "x"}}, id="b")
    assert other.canonical == plain.canonical
    one, two = ({"Mcp-Session-Id": name} for name in ("1", "2"))
    assert call_of("tools/list", headers=one).canonical == call_of("tools/list", headers=two).canonical


def response(result: Any = None, **fields: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, **({} if result is None else {"result": result}), **fields})


@pytest.mark.parametrize(
    ("payload", "admission"),
    [
        ([response({})], Admission.STORED),
        ([b"", response({"resultType": "complete"})], Admission.STORED),
        ([response({"resultType": "input_required"})], Admission.INCOMPLETE),
        ([response({"task": {}})], Admission.INCOMPLETE),
        ([response({"isError": True})], Admission.ERROR_STATUS),
        ([response(error={"code": -1, "message": ""})], Admission.ERROR_STATUS),
        ([response({}, id=2)], Admission.MALFORMED),
        ([response({}, method="sampling/createMessage")], Admission.MALFORMED),
        ([b"{"], Admission.MALFORMED),
        ([b"[]"], Admission.MALFORMED),
        ([], Admission.SIDE_MESSAGES),
        ([response(method="notifications/progress"), response({})], Admission.SIDE_MESSAGES),
    ],
)
def test_only_a_complete_result_alone_is_stored(payload: list[bytes], admission: Admission) -> None:
    assert DIALECT.inspect(call_of("tools/list"), payload, True).admission is admission


@pytest.mark.parametrize(
    ("result", "ttl_s", "public"),
    [
        ({}, None, None),
        ({"ttlMs": 1500, "cacheScope": "public"}, 1.5, True),
        ({"ttlMs": 0, "cacheScope": "private"}, 0.0, False),
        ({"ttlMs": -5, "cacheScope": "everyone"}, 0.0, False),
        ({"ttlMs": True}, 0.0, None),
        ({"ttlMs": "60000"}, 0.0, None),
        ({"ttlMs": 1e300}, 0.0, None),
    ],
)
def test_hints_are_read(result: dict[str, Any], ttl_s: float | None, public: bool | None) -> None:
    hints = DIALECT.inspect(call_of("tools/list", {"_meta": META}), [response(result)], False).hints
    assert (hints.ttl_s, hints.public) == (ttl_s, public)


def test_older_versions_have_no_hints() -> None:
    call = call_of("tools/list")
    assert not has_hints(call)
    assert DIALECT.inspect(call, [response({"ttlMs": 9, "cacheScope": "public"})], False).hints.ttl_s is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"id":1}}', b'{"jsonrpc":"2.0","id":"b","result":{"id":1}}'),
        (b' {"id" : "x", "result":{}}', b' {"id" : "b", "result":{}}'),
        (
            b'{"result":{"n":123456789012345678901234567890,"id":1},"jsonrpc":"2.0","id":-1 }\n',
            b'{"result":{"n":123456789012345678901234567890,"id":1},"jsonrpc":"2.0","id":"b" }\n',
        ),
        (b'{"result":{"id":1},"id":"a\\"b","x":1}', b'{"result":{"id":1},"id":"b","x":1}'),
        (b'{"result":{"x":",\\"id\\":1"},"id":2,"x":[]}', b'{"result":{"x":",\\"id\\":1"},"id":"b","x":[]}'),
        (b'{"method":"notifications/message"}', b'{"method":"notifications/message"}'),
        (b"", b""),
        (b"[1]", b"[1]"),
    ],
)
def test_a_response_is_addressed_to_another_request(data: bytes, expected: bytes) -> None:
    assert with_id("b", data) == expected
