"""The port of the rule on stored answers that call tools. Without a rule, none is stored or served. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.calls import Call
from gateway.dialect_traits import ToolCall
from gateway.entries import Entry
from gateway.outcomes import Admission

_MARKS = (b"tool", b"_call")  # one of them is in the JSON of every answer that calls a tool


class ToolCallRule:
    """The tool calls of stored answers that a route allows: here none. The rule of the feature allows some."""

    __slots__ = ()

    def refuse(self, call: Call, tool_calls: Sequence[ToolCall]) -> Admission | None:
        """Return why an answer with these tool calls is neither stored for a request nor served to it, or None if it
        may be."""
        return Admission.TOOLS


NO_TOOLS = ToolCallRule()


def refuse_tool_calls(
    rule: ToolCallRule | None, call: Call, payload: Sequence[bytes], streamed: bool
) -> Admission | None:
    """Return why an answer with tool calls is neither stored nor served, or None if it may be, or calls no tool."""
    if not any(mark in data for data in payload for mark in _MARKS):
        return None
    answer = call.dialect.answer_parts(call, payload, streamed)
    if answer is None:
        return Admission.MALFORMED
    return (rule or NO_TOOLS).refuse(call, answer.tool_calls) if answer.tool_calls else None


def may_serve(rule: ToolCallRule | None, call: Call, entry: Entry) -> bool:
    """Return whether the policy in force lets an entry answer this request, as far as its tool calls matter."""
    return refuse_tool_calls(rule, call, entry.payload, entry.streamed) is None
