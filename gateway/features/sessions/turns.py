"""Read the place of a request in its session: which session, which turn, and what it answers. Pure.

A session is a conversation that should keep to a backend. The bodies of all conversation protocols are read alike:
a turn is a message or an item of `messages` or `input`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.calls import Call
from gateway.entries import Vector
from gateway.features.sessions.follow_ups import Reference, reference_of
from gateway.features.sessions.rule import SessionName

# A reply of at most so many words and bytes of UTF-8 answers the turn before it: "yes", "go on", "the second one".
# The bytes bound languages without spaces, in which a whole sentence is one word.
SHORT_WORDS, SHORT_BYTES = 5, 40

MAX_FOLLOW_UPS = 20  # of the user's turns that are searched for the last full question

HEADER = "x-session-id"
MAX_NAME_BYTES = 4096  # of an identity; a longer one is no identity


@dataclass(frozen=True, slots=True)
class Turn:
    """The part of a conversation that a request adds."""

    delivers: bool = False  # it brings the result of a tool call to the model that made the call
    short: bool = False  # it asks no question of its own: it is too short, or names nothing at all
    first: bool = True  # the model has said nothing yet
    replies_to: str | None = None  # the last full question, if the request itself asks none
    refers: bool = False  # it is a question, but on the topic of the conversation: it names nothing new


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session after its last answer."""

    backend: str  # that answered last
    upstream: str | None  # the address that answered last; None: the backend has one, or it is not known
    rank: int  # the highest tier that answered since the session was new, idle or on another topic
    used: float  # seconds on the monotonic clock
    score: float | None = None  # complexity of the last question, in [0, 1]
    topic: Vector | None = None  # running mean of the questions' embeddings, of unit length


@dataclass(frozen=True, slots=True)
class Session:
    """A request's view of its session. The keys are where its state may be, and where it will be."""

    turn: Turn
    bound: bool = False  # only the backend that answered last can answer: it made the tool call, or has the response
    by: SessionName | None = None  # the identity that named the session; None: the request has none
    lookup_keys: tuple[bytes, ...] = ()
    store_keys: tuple[bytes, ...] = ()
    state: SessionState | None = None  # None: it is new here
    topic: Vector | None = None  # embedding of the question, if the route made one


@dataclass(frozen=True, slots=True)
class SessionEffect:
    """The effect of a session on a decision. `reason` is a word: see `session_hold`."""

    session: Session
    reason: str
    upstream: str | None = None  # the address to prefer


def read_turn(call: Call) -> Turn:
    """Return what the last turns of a call add."""
    turns = turns_of(call)
    begin = max((i + 1 for i, turn in enumerate(turns) if is_models(turn)), default=0)
    last = turns[begin:]
    delivers = any(is_tool_result(turn) for turn in last)
    own = "\n".join([text for turn in last if _is_users(turn) and (text := text_of(turn).strip())])
    first = begin == 0 and not delivers and call.dialect.continued(call) is None
    if first:
        return Turn(delivers, False, first)
    reference = reference_of(own, _texts_before(turns, begin))
    short = is_short(own) or reference is Reference.ALL
    refers = not short and reference is Reference.SUBJECT
    return Turn(delivers, short, first, _last_question(turns, begin) if delivers or short else None, refers)


def _texts_before(turns: Sequence[Mapping[str, Any]], end: int) -> Iterator[str]:
    """Yield the texts of the turns before `end`, newest first."""
    return (text_of(turn) for turn in reversed(turns[:end]))


def _last_question(turns: Sequence[Mapping[str, Any]], end: int) -> str | None:
    """Return the user's last text before `end` that is a question of its own."""
    users = [at for at in range(end) if _is_users(turns[at])]
    for at in reversed(users[-MAX_FOLLOW_UPS:]):
        text = text_of(turns[at]).strip()
        if not is_short(text) and (at == users[0] or reference_of(text, ()) is not Reference.ALL):
            return text
    return None


def is_short(text: str) -> bool:
    """Return whether a text is too short to be a question of its own."""
    return (
        len(text) <= SHORT_BYTES
        and len(text.encode("utf-8", "replace")) <= SHORT_BYTES
        and (len(text.split()) <= SHORT_WORDS)
    )


def identities(
    call: Call, headers: Mapping[str, str], by: Sequence[SessionName], turn: Turn
) -> Iterator[tuple[SessionName, tuple[bytes, ...], tuple[bytes, ...]]]:
    """Yield the identities that a request has, in the order of `by`: name, where to find the state, where to keep it.

    A response that the backend stores has a new id each time, so its state is kept once that id is known.
    """
    for name in by:
        if name == "turns":
            keys = _opening(call, turn)
            if keys is not None:
                yield name, *keys
            continue
        value = (
            headers.get(HEADER)
            if name == HEADER
            else call.dialect.continued(call)
            if name == "previous_response_id"
            else (call.user if name == "user" else call.body.get(name))
        )
        if not isinstance(value, str) or not value:
            continue
        key = value.encode("utf-8", "surrogatepass")
        if len(key) <= MAX_NAME_BYTES:
            yield name, (key,), () if name == "previous_response_id" else (key,)


def _opening(call: Call, turn: Turn) -> tuple[tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Return where a conversation's state is found and kept, by its first turns, or None if it is no
    conversation.

    Conversations with the same opening differ from the model's first turn on, which may have ids of tool calls. A
    request before that turn begins a conversation, so it finds nothing.
    """
    turns = turns_of(call)
    first = next((i for i, each in enumerate(turns) if _is_users(each)), None)
    if first is None or call.dialect.continued(call) is not None:
        return None
    system = [_text_in(call.body.get(key)) for key in ("system", "instructions")]
    opening = orjson.dumps([system, [_gist(each) for each in turns[: first + 1]]])
    if turn.first:
        return (), (opening,)
    reply = next((each for each in turns[first + 1 :] if is_models(each)), None)
    if reply is None:
        return None
    longer = opening + orjson.dumps(_gist(reply))
    return (longer, opening), (longer,)


def _gist(turn: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a turn that every later request repeats. Marks for prompt caches move between requests."""
    parts = turn.get("content")
    blocks = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    calls = turn.get("tool_calls")
    tools = [*blocks, *([each for each in calls if isinstance(each, Mapping)] if isinstance(calls, list) else [])]
    ids = [value for each in (turn, *tools) for key in ("id", "call_id") if isinstance(value := each.get(key), str)]
    return [str(turn.get("role") or turn.get("type")), text_of(turn), ids]


# The turns of the protocols


def turns_of(call: Call) -> Sequence[Mapping[str, Any]]:
    """Return the turns of a call; none if it is no conversation."""
    for key in ("messages", "input"):
        turns = call.body.get(key)
        if isinstance(turns, list):
            return [turn for turn in turns if isinstance(turn, Mapping)]
        if isinstance(turns, str):
            return ({"role": "user", "content": turns},)
    return ()


def is_models(turn: Mapping[str, Any]) -> bool:
    """Return whether the model said it. In the Responses API calls and reasoning are items without a role."""
    role = turn.get("role")
    return role == "assistant" or (role is None and "type" in turn and not is_tool_result(turn) and not _is_users(turn))


def is_tool_result(turn: Mapping[str, Any]) -> bool:
    """Return whether a turn brings the result of a tool call: OpenAI's two protocols, and Anthropic's."""
    if turn.get("role") in ("tool", "function"):
        return True
    kind, content = turn.get("type"), turn.get("content")
    if isinstance(kind, str) and (kind.endswith("_call_output") or kind == "mcp_approval_response"):
        return True
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == "tool_result" for part in content
    )


def _is_users(turn: Mapping[str, Any]) -> bool:
    role = turn.get("role")
    return role == "user" or (role is None and turn.get("type", "message") == "message")


def text_of(turn: Mapping[str, Any]) -> str:
    """Return the text of a turn; results of tools, images and files have none."""
    return _text_in(turn.get("content"))


def _text_in(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join([part for part in parts if isinstance(part, str)])
