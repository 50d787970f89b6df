"""Decide which results of MCP servers are stored, for how long, and for whom. Pure, but for what it remembers.

A result is private unless its server or the policy says otherwise: it serves one authorisation in one session. A
public one serves all clients that share answers by the route's `share`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from gateway.bounded_cache import BoundedCache
from gateway.calls import CacheHints, Call
from gateway.entries import CacheDirectives
from gateway.features.mcp.dialect import CALL_TOOL, CHANGES, READ_RESOURCE, has_hints, params_of
from gateway.features.mcp.rule import McpResultRule, McpRule, McpToolRule
from gateway.outcomes import Admission, Bypass

MAX_CHANGES = 10_000  # remembered changes; before the oldest one, all results count as changed
MAX_LISTS, MAX_TOOLS = 4_096, 2_000  # remembered lists of tools, and tools of one list
NEVER = float("-inf")


# Who may share a result.
def authorisation_of(tenant: str, key: str) -> str:
    """Return the owner of private results without a session. `key` names the API key; it is empty if there is none."""
    return f"{tenant}\0{key}\0"


# Whether a call is looked up.
def refusal_of(rule: McpRule, call: Call, only_reads: Callable[[str], bool]) -> Bypass | None:
    """Return why a call is not looked up, or None if it is. `only_reads` returns whether the server says so of a
    tool."""
    if call.operation != CALL_TOOL:
        return None if call.operation in rule.results or has_hints(call) else Bypass.POLICY
    tool = rule.tools.get(_tool_of(call))
    if tool is None or not (tool.read_only or only_reads(_tool_of(call))):
        return Bypass.TOOL
    return None


def rule_of(rule: McpRule, call: Call) -> McpResultRule | McpToolRule | None:
    """Return the rule for the results of a call, or None if the policy has none."""
    if call.operation == CALL_TOOL:
        return rule.tools.get(_tool_of(call))
    return next((each for method, each in rule.results.items() if method == call.operation), None)


def _tool_of(call: Call) -> str:
    name = params_of(call).get("name")
    return name if isinstance(name, str) else ""


# How long a result lives.
class ResultTerms(NamedTuple):
    """The decision about a complete result: whether it is stored, for how long, and whether all clients share it."""

    admission: Admission
    ttl_s: float = 0.0
    public: bool = False


def place_result(rule: McpRule, call: Call, hints: CacheHints, *, private: bool) -> ResultTerms:
    """Decide on a complete result. The server's words count before the policy's; of a tool, the shorter lifetime does.

    A result is `private` if an HTTP header of the answer says so. The route's `exact.ttl` bounds the lifetime besides.
    """
    own = rule_of(rule, call)
    stated = [ttl for ttl in (hints.ttl_s, None if own is None else own.ttl) if ttl is not None]
    ttl_s = 0.0 if not stated else min(stated) if call.operation == CALL_TOOL else stated[0]
    if ttl_s <= 0:
        return ResultTerms(Admission.NO_TTL)
    public = (own is not None and own.scope == "public") if hints.public is None else hints.public
    return ResultTerms(Admission.STORED, ttl_s, public and not private)


# Changes that servers announce, and the tools that only read.
def subject_of(call: Call) -> str:
    """Return the name of what a call reads, under which a change of it is announced."""
    uri = params_of(call).get("uri") if call.operation == READ_RESOURCE else None
    return call.operation if uri is None else f"{call.operation}\0{uri}"


def changed_subjects(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of what a notification makes stale; empty for any other message."""
    method = message.get("method")
    operations = CHANGES.get(method, ()) if isinstance(method, str) else ()
    if READ_RESOURCE not in operations:
        return operations
    params = message.get("params")
    return (f"{READ_RESOURCE}\0{params.get('uri')}",) if isinstance(params, dict) else ()


def read_only_tools(result: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the tools of a list that only read, by their annotation, or None if this is no list of tools."""
    tools = result.get("tools")
    if not isinstance(tools, list):
        return None
    return frozenset(tool["name"] for tool in tools[:MAX_TOOLS] if _only_reads(tool))


def _only_reads(tool: object) -> bool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return False
    annotations = tool.get("annotations")
    return isinstance(annotations, dict) and annotations.get("readOnlyHint") is True


class McpKnowledge:
    """`McpKnowledge` remembers what MCP servers announced. `publish` passes a change on to the other gateways."""

    def __init__(self, publish: Callable[..., None] = lambda _: None) -> None:
        self._publish = publish
        self._forgotten = NEVER  # the time of the latest change that was forgotten
        self._changes: BoundedCache[str, float] = BoundedCache(MAX_CHANGES, evicted=self._forget)
        self._tools: BoundedCache[str, frozenset[str]] = BoundedCache(MAX_LISTS)

    def record_change(self, route: str, owner: str, subject: str, now: float) -> None:
        """Remember that a subject changed for an owner at `now`, a wall-clock time."""
        name = _digest(route, owner, subject)
        self.apply_change(name, now)
        self._publish(name)

    def apply_change(self, name: str, now: float) -> None:
        self._changes.put(name, now)

    def changed_at(self, route: str, owner: str, subject: str) -> float:
        """Return a wall-clock time: results that were requested up to it may be stale."""
        changed = self._changes.peek(_digest(route, owner, subject))
        return self._forgotten if changed is None else max(changed, self._forgotten)

    def record_tools(self, route: str, owner: str, tools: frozenset[str], *, further_page: bool) -> bool:
        """Remember the tools that only read, by the last list or a further page of it. Return whether one of the former
        ones is gone."""
        name = _digest(route, owner)
        former = self._tools.peek(name) or frozenset()
        self._tools.put(name, former | tools if further_page else tools)
        return not further_page and not former <= tools

    def knows_tools(self, route: str, owner: str) -> bool:
        return _digest(route, owner) in self._tools

    def only_reads(self, route: str, owner: str, tool: str) -> bool:
        return tool in (self._tools.get(_digest(route, owner)) or ())

    def _forget(self, _: str, at: float) -> None:
        self._forgotten = max(self._forgotten, at)


def since_change(directives: CacheDirectives, changed_at: float, now: float) -> CacheDirectives:
    """Return the directives of a request that accepts no result from before a change. Times are wall-clock times."""
    if changed_at == NEVER:
        return directives
    bound = max(0.0, now - changed_at)
    accepted = bound if directives.max_age_s is None else min(bound, directives.max_age_s)
    return CacheDirectives(
        directives.no_store, directives.no_cache, directives.only_if_cached, accepted, directives.min_fresh_s
    )


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
