"""The Model Context Protocol over streamable HTTP (https://modelcontextprotocol.io/specification).

A client posts JSON-RPC messages to one path. Some requests only read, and their results may be stored (SEP-2549). The
gateway parses those alone: every other message is relayed byte for byte, as are all streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from gateway.calls import CacheHints, Call, Decisive, Inspection, Outgoing
from gateway.dialects.json_body import dump_json, read_object
from gateway.dialects.known import path_of
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission, Bypass

SESSION = "mcp-session-id"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"  # in `_meta` from 2026-07-28 on, the first version with hints

LIST_TOOLS, CALL_TOOL, READ_RESOURCE = "tools/list", "tools/call", "resources/read"
# The requests that only read. A tool may do anything, so its calls need more than that.
RESULTS = (
    "server/discover",
    LIST_TOOLS,
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    READ_RESOURCE,
)
# The notifications of a server, each with the requests whose results they make stale.
CHANGES: Mapping[str, tuple[str, ...]] = {
    "notifications/tools/list_changed": (LIST_TOOLS, CALL_TOOL),
    "notifications/prompts/list_changed": ("prompts/list", "prompts/get"),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/resources/updated": (READ_RESOURCE,),
}

# Parameters of a request whose result depends on earlier requests, or comes later.
STATEFUL_PARAMS = ("inputResponses", "requestState", "task")
# Parts of `_meta` that address or trace a request and decide nothing.
UNDECISIVE_META = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})

# The messages that an agent sends before and between its calls of tools.
_FREE_MESSAGES = re.compile(
    r"initialize|ping|notifications/.*|logging/setLevel|completion/complete|(?:tools|prompts|resources|resources/templates|tasks)/list"
    r"|prompts/get|resources/(?:un)?subscribe|tasks/(?:get|cancel|result)|server/discover"
)

_SCALAR = rb'(-?\d+|"[^"\\]*")'
# The id where servers write it: near the beginning, or last.
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*' + _SCALAR + rb"\s*,")
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*' + _SCALAR + rb"\s*\}\s*\Z")
_ID_TAIL = 600  # bytes in which the last id is searched; an id is shorter

INVALID_REQUEST, INTERNAL_ERROR = -32600, -32603  # codes of JSON-RPC 2.0, section 5.1


class MCP(Unstreamed):
    """`MCP` claims every POST to a path that ends in `/mcp`. The other methods of such a path pass through."""

    name = "mcp"
    relays = True
    reads_streams = False
    path = path_of("mcp")
    accepted_by = None  # many model servers have an MCP endpoint, too

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        """Return the call of any body. The server judges bodies that are not one valid request."""
        try:
            message = read_object(body)[0]
        except BadRequest:
            return self._relay_call(body, {}, "message")
        method, params = message.get("method"), message.get("params", {})
        operation = method if method in (*RESULTS, CALL_TOOL) else "message"
        if operation == "message" or not _is_repeatable(message, params, headers):
            return self._relay_call(body, message, operation)
        return Call(
            dialect=self,
            operation=operation,
            body=message,
            model="",
            stream=False,
            decisive_source=partial(_decisive, path, message, headers),
            prompt_source="",
            max_tokens=None,
            user=None,
            uncached=Bypass.TOOL if operation == CALL_TOOL else Bypass.POLICY,  # until a policy says otherwise
            own=partial(with_id, message["id"]),
        )

    def _relay_call(self, body: bytes, message: Mapping[str, Any], operation: str) -> Call:
        return Call(
            dialect=self,
            operation=operation,
            body=message,
            model="",
            stream=False,
            decisive_source=Decisive(b"", b"", None, Bypass.NO_TEXT),
            prompt_source="",
            max_tokens=None,
            user=None,
            uncached=Bypass.MESSAGE,
            body_bytes=body,
        )

    def is_free(self, call: Call) -> bool:
        method = call.body.get("method")
        return isinstance(method, str) and _FREE_MESSAGES.fullmatch(method) is not None

    def has_text(self, call: Call) -> bool:
        return True

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        return Outgoing(path, dump_json(call.body) if call.body_bytes is None else call.body_bytes)

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        try:
            message = _only_message(payload)
        except MalformedResponse:
            return Inspection(Admission.SIDE_MESSAGES, 0, 0)
        result = result_of(message)
        if result is None or message.get("id") != call.body.get("id"):
            return Inspection(Admission.ERROR_STATUS if "error" in message else Admission.MALFORMED, 0, 0)
        if result.get("isError") is True:
            return Inspection(Admission.ERROR_STATUS, 0, 0)
        if result.get("resultType", "complete") != "complete" or "task" in result:
            return Inspection(Admission.INCOMPLETE, 0, 0)
        return Inspection(Admission.STORED, 0, 0, hints=_hints(result) if has_hints(call) else CacheHints())

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        """Return the only message of a stream. Raise `MalformedResponse` if there are several."""
        _only_message(payload)
        return next(data for data in payload if data)

    def is_end(self, event: Event) -> bool:
        """Return whether an event is the response: the server ends the stream with it, and clients leave there."""
        message = read_message(event.data)
        return "id" in message and ("result" in message or "error" in message) and "method" not in message

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        code = INVALID_REQUEST if kind == "invalid_request_error" else INTERNAL_ERROR
        return orjson.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}})


def _is_repeatable(message: Mapping[str, Any], params: Any, headers: Mapping[str, str]) -> bool:
    """Return whether a result may be stored at all: the message is one plain request, and its client reads JSON."""
    identity = message.get("id")
    return (
        message.get("jsonrpc") == "2.0"
        and isinstance(identity, int | str)
        and not isinstance(identity, bool)
        and isinstance(params, dict)
        and isinstance(params.get("_meta", {}), dict)
        and not any(name in params for name in STATEFUL_PARAMS)
        and any(kind in headers.get("accept", "*/*") for kind in ("application/json", "application/*", "*/*"))
        and "last-event-id" not in headers
    )


def _decisive(path: str, message: Mapping[str, Any], headers: Mapping[str, str]) -> Decisive:
    """Return the part of a request that decides its result: all of it, but what addresses or traces it.

    The server compares some headers with the body and requires others, so a stored result answers only requests with
    the same ones. The session counts by its presence only, because `features.mcp.results` decides who shares a result.
    """
    params = dict(message.get("params", {}))
    meta = {name: value for name, value in params.pop("_meta", {}).items() if name not in UNDECISIVE_META}
    shown = sorted(
        [low, "" if low == SESSION else value]
        for name, value in headers.items()
        if (low := name.lower()).startswith("mcp-")
    )
    streams = "text/event-stream" in headers.get("accept", "")
    canonical = dump_json([path, message["method"], params, meta, shown, streams], canonical=True)
    return Decisive(canonical, canonical, None, Bypass.NO_TEXT)


def params_of(call: Call) -> Mapping[str, Any]:
    params = call.body.get("params", {})
    return params if isinstance(params, dict) else {}


def has_hints(call: Call) -> bool:
    """Return whether the call's version of the protocol knows `ttlMs` and `cacheScope`. In older versions these names
    may mean anything."""
    meta = params_of(call).get("_meta")
    return isinstance(meta, dict) and VERSION_KEY in meta


def _hints(result: Mapping[str, Any]) -> CacheHints:
    """Return the hints of a result. A lifetime that is no integer of at least 0 counts as 0."""
    ttl, scope = result.get("ttlMs"), result.get("cacheScope")
    is_valid = isinstance(ttl, int) and not isinstance(ttl, bool) and ttl > 0
    return CacheHints(
        None if ttl is None else (ttl / 1000 if is_valid else 0.0), None if scope is None else scope == "public"
    )


def result_of(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the result of a response, or None if the message has none."""
    result = message.get("result")
    return result if isinstance(result, dict) and "method" not in message else None


def read_message(data: bytes) -> Mapping[str, Any]:
    """Return a message of a server; an empty one if it is unreadable."""
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


def _only_message(payload: Sequence[bytes]) -> Mapping[str, Any]:
    """Return the message of a body, or of a stream with one message. Events without data only carry an id. Raise
    `MalformedResponse` if there are several."""
    messages = [data for data in payload if data]
    if len(messages) != 1:
        raise MalformedResponse(f"the stream has {len(messages)} messages: expected the result alone")
    return read_message(messages[0])


def with_id(identity: int | str, data: bytes) -> bytes:
    """Return a response that is addressed to another request. Everything but the id stays byte for byte where the id
    stands first or last."""
    own = orjson.dumps(identity)
    match = _ID_FIRST.match(data)
    if match is None:
        match = _ID_LAST.search(data, max(0, len(data) - _ID_TAIL))
    if match is not None:
        return data[: match.start(1)] + own + data[match.end(1) :]
    try:
        message = json.loads(data)  # keeps integers of any length
    except ValueError:
        return data
    if not isinstance(message, dict) or "id" not in message:
        return data
    return json.dumps({**message, "id": identity}, separators=(",", ":"), ensure_ascii=False).encode()
