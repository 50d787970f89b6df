"""How a request's place in its session is read, in each protocol, and whose sessions a client can reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.known import find_dialect
from gateway.features.sessions.rule import SessionName
from gateway.features.sessions.sessions import SessionTable, answer_id
from gateway.features.sessions.turns import SessionState, Turn, identities, read_turn

HARD = "Explain why this scheduler starves a thread, and prove that yours does not."
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def call(path: str, turns: Any, **fields: Any) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    key = "input" if path == RESPONSES else "messages"
    return dialect.parse(path, orjson.dumps({"model": "m", key: turns, **fields}), {})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


CALLS = said(None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}])
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
USES = said([{"type": "tool_use", "id": "t1", "name": "f", "input": {}}])  # type: ignore[arg-type]
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]}
REMINDED = {"role": "user", "content": [*USED["content"], {"type": "text", "text": "Keep to the plan above, please."}]}
CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}

TURNS = [
    (call(CHAT, [user(HARD)]), Turn(False, False, True, None)),
    (call(CHAT, [user("yes")]), Turn(False, False, True, None)),  # answers nothing
    (call(CHAT, [user(HARD), said("Shall I?"), user("yes")]), Turn(False, True, False, HARD)),
    (call(CHAT, [user(HARD), said("?"), user("yes"), said("?"), user("go on")]), Turn(False, True, False, HARD)),
    (call(CHAT, [user("hi"), said("Hello"), user(HARD)]), Turn(False, False, False, None, True)),  # "this scheduler"
    (call(CHAT, [user(HARD), said("."), user("Can you explain more on this topic?")]), Turn(False, True, False, HARD)),
    (
        call(CHAT, [user(HARD), said("."), user("Who won the last chess olympiad in Dresden?")]),
        Turn(False, False, False),
    ),
    (call(CHAT, [user("hi"), said("Hello"), user("yes")]), Turn(False, True, False, None)),
    (call(CHAT, [user(HARD), CALLS, RESULT]), Turn(True, True, False, HARD)),
    (call(CHAT, [user(HARD), CALLS, RESULT, RESULT]), Turn(True, True, False, HARD)),
    (call(CHAT, [user(HARD), CALLS, RESULT, user("go on")]), Turn(True, True, False, HARD)),
    (call(CHAT, [user(HARD), CALLS, RESULT, said("Done."), user("yes")]), Turn(False, True, False, HARD)),
    (
        call(CHAT, [user("这个调度器为什么会让线程挨饿，请逐步证明你的设计不会"), said("."), user("继续")]),
        Turn(False, True, False, "这个调度器为什么会让线程挨饿，请逐步证明你的设计不会"),
    ),
    (call(MESSAGES, [user(HARD), USES, USED], max_tokens=9), Turn(True, True, False, HARD)),
    (call(MESSAGES, [user(HARD), USES, REMINDED], max_tokens=9), Turn(True, False, False, HARD)),
    (call(MESSAGES, [user(HARD), said("?"), user("ok")], max_tokens=9), Turn(False, True, False, HARD)),
    (call(RESPONSES, HARD), Turn(False, False, True, None)),
    (call(RESPONSES, "yes", previous_response_id="r1"), Turn(False, True, False, None)),
    (call(RESPONSES, [OUTPUT], previous_response_id="r1"), Turn(True, True, False, None)),
    (call(RESPONSES, [user(HARD), CALLED, OUTPUT]), Turn(True, True, False, HARD)),
    (
        call(RESPONSES, [user(HARD), {"type": "reasoning", "summary": []}, CALLED, OUTPUT]),
        Turn(True, True, False, HARD),
    ),
]


@pytest.mark.parametrize(("request_", "turn"), TURNS)
def test_turns_are_read_alike_in_every_protocol(request_: Call, turn: Turn) -> None:
    assert read_turn(request_) == turn


def test_a_completion_has_no_turns() -> None:
    dialect = find_dialect("POST", "/v1/completions")
    assert dialect is not None
    completion = dialect.parse("/v1/completions", b'{"model": "m", "prompt": "yes"}', {})
    assert read_turn(completion) == Turn()
    assert list(identities(completion, {}, ("turns",), Turn())) == []


def first(request: Call, *by: SessionName, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return next(identities(request, named, by, read_turn(request)), None)


def test_the_first_name_that_a_request_has_counts() -> None:
    asked = call(CHAT, [user(HARD)], user="u", prompt_cache_key="p")
    assert first(asked, "x-session-id", "user", x_session_id="s") == ("x-session-id", (b"s",), (b"s",))
    assert first(asked, "x-session-id", "user") == ("user", (b"u",), (b"u",))
    assert first(asked, "prompt_cache_key", "user") == ("prompt_cache_key", (b"p",), (b"p",))
    assert first(asked, "x-session-id", x_session_id="s" * 5000) is None
    assert first(call(RESPONSES, "yes", previous_response_id="r"), "previous_response_id", "turns") == (
        "previous_response_id",
        (b"r",),
        (),
    )


def opening(*turns: dict[str, Any], path: str = CHAT, **fields: Any) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    _, find, keep = first(call(path, [*turns], **fields), "turns")
    return find, keep


def test_a_conversation_is_found_by_its_first_turns() -> None:
    (), begun = opening(user("hi"))
    second, third = opening(user("hi"), said("A"), user("x")), opening(user("hi"), said("A"), user("x"), said("B"))
    assert second[0][-1:] == begun and second == third, "the first answer finds where the conversation began"
    other = opening(user("hi"), said("B"), user("x"))
    assert other[1] != second[1], "another first answer is another conversation"
    assert (
        opening(user("hi"), {**CALLS}, RESULT)[1]
        != opening(user("hi"), {**CALLS, "tool_calls": [{"id": "c2"}]}, RESULT)[1]
    )


def test_marks_of_prompt_caches_do_not_make_another_conversation() -> None:
    block = {"type": "text", "text": HARD}
    marked = {"role": "user", "content": [{**block, "cache_control": {"type": "ephemeral"}}]}
    plain = {"role": "user", "content": [block]}
    (), begun = opening(marked, path=MESSAGES, max_tokens=9)
    assert opening(plain, said("A"), user("b"), path=MESSAGES, max_tokens=9)[0][-1:] == begun


def test_nobody_finds_the_session_of_somebody_else() -> None:
    table, state = SessionTable(), SessionState("big", None, 1, 0.0)
    owners = [
        ("acme", "acme", "default"),
        ("acme", "acme\0u1", "default"),
        ("beta", "beta", "default"),
        ("acme", "acme", "r"),
    ]
    keys = [table.key(owner, name, b"s") for owner in owners for name in ("x-session-id", "user")]
    table.keep(keys[:1], state)
    assert [table.find([key]) for key in keys] == [state, *[None] * 7]
    assert SessionTable().key(owners[0], "x-session-id", b"s") != keys[0], "no key can be computed outside a process"


def test_the_table_is_bounded_and_forgets_the_least_recently_used() -> None:
    table, state = SessionTable(max_sessions=2), SessionState("big", None, 1, 0.0)
    for key in (b"a", b"b", b"a", b"c"):
        table.keep([key], state)
    assert len(table) == 2 and table.find([b"b"]) is None and table.find([b"a"]) is state


KEYS = st.sampled_from(["role", "type", "content", "text", "tool_calls", "id", "call_id", "output"])
WORDS = st.sampled_from(["user", "assistant", "tool", "message", "function_call", "tool_result", "text", "yes", HARD])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@given(st.lists(VALUES, max_size=5), st.sampled_from(["messages", "input"]))
def test_no_body_breaks_the_reading(turns: list[Any], key: str) -> None:
    odd = replace(
        call(RESPONSES, "hi"), body={"model": "m", key: turns, "previous_response_id": turns, "system": turns}
    )
    turn = read_turn(odd)
    assert all(find or keep for _, find, keep in identities(odd, {}, get_args(SessionName), turn))
    assert not turn.first or turn.replies_to is None


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"id": "resp_1", "object": "response", "output": []}', b"resp_1"),
        (b'{"type": "response.created", "response": {"id": "resp_1"}}', b"resp_1"),
        (b'{"type": "response.output_text.delta", "delta": "x"}', None),
        (b'{"id": "item_1"}', None),
        (b"[DONE]", None),
        (b"[]", None),
    ],
)
def test_the_id_of_a_response_is_read_from_a_body_or_its_first_event(data: bytes, found: bytes | None) -> None:
    assert answer_id(data) == found
