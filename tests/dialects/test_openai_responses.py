"""Responses taken apart into typed events and put together again, judged, and told apart by what decides them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.known import accepts, find_dialect
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission, Bypass
from tests.dialects.test_openai_answers import JSON, TEXTS, data_of, encoded

RESPONSES = OpenAIResponses()
USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 12,
}


def call_of(**fields: Any) -> Call:
    return RESPONSES.parse("/v1/responses", encoded({"model": "m", "input": "hi", **fields}), {})


def text_part(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **fields}


def message(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    said = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant"}
    return {**said, "content": list(parts), **fields}


def response(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "completed_at": 1700000002,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "metadata": {},
        "model": "m",
        "output": list(items),
        "store": True,
        "usage": USAGE,
        "user": None,
        **fields,
    }


FUNCTION_CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Paris"}',
}
REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "They greet."}],
    "content": [{"type": "reasoning_text", "text": "So do I."}],
    "encrypted_content": "gAAA",
}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}

# What the protocol names keeps its meaning; every other name may hold anything.
NAMES = {
    "id",
    "object",
    "type",
    "status",
    "error",
    "output",
    "content",
    "summary",
    "text",
    "refusal",
    "arguments",
    "input",
}
NAMES |= {"code", "annotations", "logprobs", "usage", "response", "user", "metadata"}
UNKNOWN = st.dictionaries(TEXTS.filter(lambda name: name not in NAMES), JSON, max_size=2)


def joined(known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda unknown, known: {**unknown, **known}, UNKNOWN, known)


LOGPROBS = st.lists(st.fixed_dictionaries({"token": TEXTS, "logprob": st.just(-0.5)}), max_size=3)
PARTS = joined(
    st.fixed_dictionaries(
        {"type": st.just("output_text"), "text": TEXTS},
        optional={"annotations": st.lists(JSON, max_size=2), "logprobs": st.none() | LOGPROBS},
    )
    | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": TEXTS})
    | st.fixed_dictionaries({"type": st.just("reasoning_text"), "text": TEXTS})
    | st.fixed_dictionaries({"type": st.just("of_the_vendor"), "text": JSON})
)
SUMMARIES = st.lists(
    joined(st.fixed_dictionaries({"type": st.just("summary_text")}, optional={"text": JSON})), max_size=2
)
STATUS = st.sampled_from(["completed", "incomplete", None])
KINDS = ["function_call", "custom_tool_call", "mcp_call", "code_interpreter_call", "web_search_call", "mcp_list_tools"]
KINDS += ["image_generation_call", "file_search_call", "of_the_vendor"]
ITEMS = joined(
    st.fixed_dictionaries(
        {"id": TEXTS, "type": st.just("message"), "role": st.just("assistant"), "content": st.lists(PARTS, max_size=3)},
        optional={"status": STATUS},
    )
    | st.fixed_dictionaries(
        {"id": TEXTS, "type": st.just("reasoning"), "summary": SUMMARIES},
        optional={"content": st.none() | st.lists(PARTS, max_size=2), "status": STATUS},
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(KINDS)},
        optional={
            "id": TEXTS,
            "arguments": TEXTS,
            "input": JSON,
            "code": st.none() | TEXTS,
            "status": STATUS,
            "error": JSON,
        },
    )
)
BODIES = joined(
    st.fixed_dictionaries(
        {
            "id": TEXTS,
            "object": st.just("response"),
            "status": st.sampled_from(["completed", "incomplete"]),
            "output": st.lists(ITEMS, max_size=4),
        },
        optional={"usage": st.none() | st.just(USAGE), "error": st.none(), "metadata": st.just({}), "user": TEXTS},
    )
)


@given(BODIES)
def test_a_response_with_unknown_fields_items_and_parts_survives_its_stream(body: dict[str, Any]) -> None:
    events = RESPONSES.events(call_of(), encoded(body))
    assert json.loads(RESPONSES.whole(call_of(), data_of(events))) == body


@given(BODIES)
def test_every_event_has_its_name_and_its_number(body: dict[str, Any]) -> None:
    events = RESPONSES.events(call_of(), encoded(body))
    said = [json.loads(event.data) for event in events]
    assert [event.name for event in events] == [each["type"] for each in said]
    assert [each["sequence_number"] for each in said] == list(range(len(said)))
    assert [RESPONSES.event(call_of(), event.data) for event in events] == list(events)


@given(BODIES)
def test_the_deltas_say_what_the_items_say(body: dict[str, Any]) -> None:
    """Who reads nothing but deltas has all of the text in the end."""
    said = [json.loads(event.data) for event in RESPONSES.events(call_of(), encoded(body))]
    for index, item in enumerate(body["output"]):
        own = [each for each in said if each.get("output_index") == index]
        assert (own[0]["type"], own[-1]["type"]) == ("response.output_item.added", "response.output_item.done")
        assert own[-1]["item"] == item
        parts = item.get("content") if item["type"] in ("message", "reasoning") else None
        for place, part in enumerate(parts or ()):
            deltas = [each for each in own if each.get("content_index") == place and each["type"].endswith(".delta")]
            text = part.get("refusal") if part["type"] == "refusal" else part.get("text")
            if part["type"] != "of_the_vendor":
                assert "".join(each["delta"] for each in deltas) == text
        if item["type"] == "function_call" and "arguments" in item:
            told = [e["delta"] for e in own if e["type"] == "response.function_call_arguments.delta"]
            assert "".join(told) == item["arguments"]


@given(BODIES)
def test_what_may_be_stored_can_be_served_in_both_forms(body: dict[str, Any]) -> None:
    judged = RESPONSES.inspect(call_of(), [encoded(body)], False)
    if judged.admission is not Admission.MALFORMED:
        assert RESPONSES.inspect(call_of(), data_of(RESPONSES.events(call_of(), encoded(body))), True) == judged


ODD = st.recursive(
    JSON,
    lambda inner: st.fixed_dictionaries(
        {
            "id": st.just("r"),
            "status": st.just("completed"),
            "output": st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["message", "reasoning", "function_call"]) | inner},
                    optional={"content": st.lists(inner) | inner, "text": inner, "summary": st.lists(inner)},
                )
            ),
        },
        optional={"usage": inner},
    ),
    max_leaves=8,
)


@given(ODD)
def test_no_oddity_is_stored_that_one_form_cannot_say(body: Any) -> None:
    if RESPONSES.inspect(call_of(), [encoded(body)], False).admission in (Admission.STORED, Admission.TOOLS):
        RESPONSES.whole(call_of(), data_of(RESPONSES.events(call_of(), encoded(body))))


@given(st.lists(st.binary(max_size=20) | JSON.map(encoded), max_size=3), st.booleans())
def test_whatever_comes_is_judged_and_never_raises(payload: list[bytes], streamed: bool) -> None:
    given_payload = payload or [b""]
    assert RESPONSES.inspect(call_of(), given_payload, streamed).admission is not Admission.STORED
    assert RESPONSES.answer_text(call_of(), given_payload, streamed) is None


def test_a_response_is_told_in_the_order_of_the_protocol() -> None:
    body = response(REASONING, SEARCH, message(text_part("Hello there")), FUNCTION_CALL)
    kinds = [event.name for event in RESPONSES.events(call_of(), encoded(body))]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_log_probabilities_come_with_their_tokens() -> None:
    told = [{"token": token, "logprob": -0.5} for token in ("He", "llo")]
    events = RESPONSES.events(call_of(), encoded(response(message(text_part("Hello", logprobs=told)))))
    deltas = [json.loads(event.data) for event in events if event.name == "response.output_text.delta"]
    assert [(each["delta"], each["logprobs"]) for each in deltas] == [("He", told[:1]), ("llo", told[1:])]


DONE_ITEM = {"type": "response.output_item.done", "output_index": 0, "item": message(text_part("Hi"))}


@pytest.mark.parametrize("left_out", [[], None])
def test_items_that_the_end_leaves_out_are_those_that_were_done(left_out: Any) -> None:
    body = response()
    payload = [encoded(DONE_ITEM), encoded({"type": "response.completed", "response": {**body, "output": left_out}})]
    assert json.loads(RESPONSES.whole(call_of(), payload)) == response(DONE_ITEM["item"])
    assert RESPONSES.inspect(call_of(), payload, True).admission is Admission.STORED


@pytest.mark.parametrize(
    ("body", "admission"),
    [
        (response(message(text_part("Hi"))), Admission.STORED),
        (response(REASONING, message(text_part("Hi"))), Admission.STORED),
        (response(message({"type": "refusal", "refusal": "No."})), Admission.REFUSED),
        (response(FUNCTION_CALL), Admission.TOOLS),
        (response(SEARCH, message(text_part("Hi"))), Admission.TOOLS),
        (response({"type": "of_the_vendor"}, message(text_part("Hi"))), Admission.TOOLS),
        (response(message(text_part("Hi")), status="incomplete"), Admission.INCOMPLETE),
        (response(message(text_part("Hi"), status="incomplete")), Admission.INCOMPLETE),
        (response(message(text_part("Hi")), status="in_progress"), Admission.INCOMPLETE),
        (response(status="queued"), Admission.INCOMPLETE),
        (response(), Admission.EMPTY),
        (response(REASONING), Admission.EMPTY),
        (response(status="failed", error={"code": "server_error", "message": "no"}), Admission.ERROR_STATUS),
        (response(status="cancelled"), Admission.ERROR_STATUS),
        ({"error": {"message": "no"}}, Admission.ERROR_STATUS),
        (response(message(text_part(None))), Admission.MALFORMED),  # type: ignore[arg-type]
        ([], Admission.MALFORMED),
    ],
)
def test_only_what_is_complete_and_used_no_tools_is_stored(body: Any, admission: Admission) -> None:
    assert RESPONSES.inspect(call_of(), [encoded(body)], False).admission is admission


def test_usage_is_counted() -> None:
    judged = RESPONSES.inspect(call_of(), [encoded(response(message(text_part("Hi"))))], False)
    assert (judged.input_tokens, judged.output_tokens) == (7, 5)


ERROR = encoded({"type": "error", "code": "server_error", "message": "out of memory", "param": None})


@pytest.mark.parametrize("error", [ERROR, encoded({"error": {"message": "out of memory"}})])
def test_an_error_in_a_stream_is_no_answer(error: bytes) -> None:
    payload = [encoded({"type": "response.created", "response": response()}), error]
    assert RESPONSES.inspect(call_of(), payload, True).admission is Admission.ERROR_STATUS
    with pytest.raises(MalformedResponse, match="out of memory"):
        RESPONSES.whole(call_of(), payload)


def test_a_stream_without_its_end_is_cut() -> None:
    events = data_of(RESPONSES.events(call_of(), encoded(response(message(text_part("Hi there"))))))
    for length in range(len(events)):
        assert RESPONSES.inspect(call_of(), events[:length], True).admission is Admission.CUT
    assert RESPONSES.inspect(call_of(), [*events, b"[DONE]"], True).admission is Admission.STORED


# What decides


def test_the_question_is_the_last_users_text_and_all_else_is_context() -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    asked = call_of(input=[*turns, {"role": "user", "content": "Which ports?"}])
    assert asked.question == "Which ports?"
    assert asked.context == call_of(input=[*turns, {"role": "user", "content": "What ports?"}]).context
    assert asked.context != call_of(input=[{"role": "user", "content": "Which ports?"}]).context
    assert call_of(input="Which ports?").question == "Which ports?"


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": "Be brief."},
        {"previous_response_id": "resp_0"},
        {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
        {"text": {"format": {"type": "json_object"}}},
        {"reasoning": {"effort": "low"}},
        {"include": ["message.output_text.logprobs"]},
        {"temperature": 0.5},
        {"store": False},
        {"of_the_vendor": 1},
    ],
)
def test_what_frames_a_question_parts_scope_and_key(fields: dict[str, Any]) -> None:
    assert call_of(**fields).context != call_of().context
    assert call_of(**fields).canonical != call_of().canonical
    assert call_of(**fields).question == "hi"


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True},
        {"stream_options": {"include_obfuscation": False}},
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"safety_identifier": "s"},
        {"prompt_cache_key": "k"},
        {"client_metadata": {"session_id": "s"}},
    ],
)
def test_framing_and_who_asks_part_nothing(fields: dict[str, Any]) -> None:
    assert (call_of(**fields).context, call_of(**fields).canonical) == (call_of().context, call_of().canonical)


@pytest.mark.parametrize(
    ("item", "counts"),
    [
        ({"type": "message", "role": "user", "content": "hi"}, False),
        ({"role": "user", "content": "hi"}, False),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, False),
        ({"type": "function_call_output", "call_id": "c", "output": "1"}, False),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "1"}, False),
        ({"type": "item_reference"}, True),
        ({"type": "reasoning", "summary": []}, True),
        ({"type": "mcp_approval_response", "approve": True}, True),
    ],
)
def test_the_id_of_an_item_counts_where_the_item_is_nothing_without_it(item: dict[str, Any], counts: bool) -> None:
    named = [{**item, "id": n, "internal_chat_message_metadata_passthrough": {"turn_id": n}} for n in ("a", "b")]
    first, second = (call_of(input=[each]) for each in named)
    assert (first.canonical != second.canonical) is counts


def seen(url: str, text: str = "What is this?") -> Call:
    parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
    return call_of(input=[{"role": "user", "content": parts}])


def test_images_are_matched_only_when_they_are_equal() -> None:
    assert seen("data:1").context != seen("data:2").context
    assert seen("data:1").context == seen("data:1", "What do you see?").context
    assert seen("data:1").question == "What is this?"


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": "Yes?"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:1"}]},
        {"type": "item_reference", "id": "msg_1"},
    ],
)
def test_without_a_text_of_the_user_at_the_end_nothing_is_matched(last: dict[str, Any]) -> None:
    asked = call_of(input=[{"role": "user", "content": "Hi"}, last])
    assert (asked.question, asked.no_question) == (None, Bypass.NO_TEXT)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"background": True}, Bypass.BACKGROUND), ({"conversation": "conv_1"}, Bypass.CONVERSATION)],
)
def test_what_changes_something_upstream_goes_by_the_caches(fields: dict[str, Any], reason: Bypass) -> None:
    asked = call_of(**fields)
    assert (asked.uncached, asked.question, asked.no_question) == (reason, None, reason)
    assert call_of(background=False, conversation=None).uncached is None


def test_a_transcript_is_judged_and_sent_to_backends_of_text() -> None:
    assert call_of(input="Hi").prompt == "Hi"
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "reasoning", "summary": []}]
    assert call_of(input=turns, instructions="Be brief.").prompt == "system: Be brief.\n\nuser: Hi"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": "", "input": "hi"}, "model"),
        ({"model": 1, "input": "hi"}, "model"),
        ({"model": "m", "input": 1}, "input"),
        ({"model": "m", "input": ["hi"]}, r"input\[0\]"),
        ({"model": "m", "input": [{"role": 1}]}, r"input\[0\].role"),
        ({"model": "m", "input": [{"role": "user", "content": 1}]}, r"input\[0\].content"),
        ({"model": "m", "input": [{"role": "user", "content": ["a"]}]}, r"input\[0\].content\[0\]"),
        ({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text"}]}]}, r"content\[0\].text"),
        ({"model": "m", "input": "hi", "stream": 1}, "stream"),
        ({"model": "m", "input": "hi", "background": "yes"}, "background"),
        ({"model": "m", "input": "hi", "max_output_tokens": 0.5}, "max_output_tokens"),
        ({"model": "m", "input": "hi", "temperature": "warm"}, "temperature"),
        ({"model": "m", "input": "hi", "metadata": "x"}, "metadata"),
    ],
)
def test_what_the_gateway_relies_on_is_checked(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        RESPONSES.parse("/v1/responses", encoded(body), {})


def test_with_a_prompt_that_lies_upstream_nothing_else_is_needed() -> None:
    asked = RESPONSES.parse("/v1/responses", encoded({"prompt": {"id": "pmpt_1"}}), {})
    assert (asked.model, asked.no_question) == ("", Bypass.NO_TEXT)
    assert json.loads(RESPONSES.outgoing("/v1/responses", asked, model=None, kept=True).body) == asked.body


# Whose answer it is


def test_what_an_answer_repeats_of_a_request_is_the_askers_own() -> None:
    body = response(message(text_part("Hi")), user="ann", metadata={"order": "1"}, safety_identifier=None)
    whole = encoded(body)
    mine = call_of(user="bob", metadata={"order": "2"}, prompt_cache_key="k")
    assert mine.own is not None
    expected = {**body, "user": "bob", "metadata": {"order": "2"}}  # no key is added that was not repeated
    assert json.loads(mine.own(whole)) == expected
    events = [mine.own(event.data) for event in RESPONSES.events(mine, whole)]
    assert json.loads(RESPONSES.whole(mine, events)) == expected
    assert not any(b'"ann"' in data for data in events)
    nobody = call_of().own
    assert nobody is not None
    assert json.loads(nobody(whole)) == {**body, "user": None, "metadata": {}}


@given(st.binary(max_size=30) | JSON.map(encoded))
def test_what_repeats_nothing_stays_as_it_is(data: bytes) -> None:
    own = call_of(user="bob").own
    assert own is not None
    if b'"output"' not in data:
        assert own(data) == data


def test_an_answer_that_was_asked_for_alike_stays_byte_for_byte() -> None:
    spaced = json.dumps(response(message(text_part("Hi")), user="ann"), indent=2).encode()
    own = call_of(user="ann").own
    assert own is not None
    assert own(spaced) == spaced


@pytest.mark.parametrize(
    ("asked", "said", "renewed"),
    [
        ({}, {"store": True}, False),
        ({}, {}, False),  # stored unless somebody says otherwise
        ({"store": False}, {}, True),
        ({"store": False}, {"store": False}, True),
        ({}, {"store": False}, True),
    ],
)
def test_only_what_is_not_stored_upstream_gets_another_id(
    asked: dict[str, Any], said: dict[str, Any], renewed: bool
) -> None:
    body = response(message(text_part("Hi")))
    del body["store"]
    body |= said
    anew = RESPONSES.renew(call_of(**asked), encoded(body), answer_id="new", created=1800000000)
    times = {"created_at": 1800000000, "completed_at": 1800000000}
    assert json.loads(anew) == ({**body, "id": "resp_new", **times} if renewed else body)
    if not renewed:
        assert anew == encoded(body)
    delta = b'{"type": "response.output_text.delta", "item_id": "msg_1", "delta": "a"}'
    assert RESPONSES.renew(call_of(**asked), delta, answer_id="new", created=1) == delta


# Words of our own


@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_a_backend_of_text_answers_in_typed_events(reason: str, status: str) -> None:
    asked = call_of(instructions="Be brief.", metadata={"a": "b"})
    answer = RESPONSES.text_answer(asked, answer_id="1", created=1700000000, model="m")
    events: list[Event] = [*answer.start(), answer.delta("Hello "), answer.delta("there")]
    events += answer.finish(reason, 7, 5)
    said = [json.loads(event.data) for event in events]
    assert [each["sequence_number"] for each in said] == list(range(len(said)))
    body = json.loads(RESPONSES.whole(asked, data_of(tuple(events))))
    assert (body["status"], body["instructions"], body["metadata"]) == (status, "Be brief.", {"a": "b"})
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["store"]) == (7, 5, False)
    assert RESPONSES.answer_text(asked, data_of(tuple(events)), True) == "Hello there"
    again = [json.loads(e.data)["type"] for e in RESPONSES.events(asked, encoded(body))]
    assert [kind for kind in again if "delta" not in kind] == [e["type"] for e in said if "delta" not in e["type"]]


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt"])
def test_a_backend_of_text_has_nothing_stored(field: str) -> None:
    value = "resp_0" if field == "previous_response_id" else {"id": "x"}
    with pytest.raises(BadRequest, match=field):
        RESPONSES.text_answer(call_of(**{field: value}), answer_id="1", created=1, model="m")


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([REASONING, message(text_part("a"), text_part("b"))], "ab"),
        ([message(text_part("a")), FUNCTION_CALL], None),
        ([message({"type": "refusal", "refusal": "No."})], None),
        ([message(text_part(""))], None),
    ],
)
def test_an_answer_that_is_text_is_known_as_text(items: list[dict[str, Any]], text: str | None) -> None:
    assert RESPONSES.answer_text(call_of(), [encoded(response(*items))], False) == text


def test_errors_have_openais_shape_and_end_a_stream_in_both_of_its_forms() -> None:
    assert json.loads(RESPONSES.error("upstream_error", "no"))["error"]["message"] == "no"
    (event,) = RESPONSES.error_events("upstream_error", "no")
    said = json.loads(event.data)
    assert event.name == said["type"] == "error"
    assert (said["code"], said["message"], said["error"]["message"]) == ("upstream_error", "no", "no")


def test_backends_of_openai_understand_responses_and_others_do_not() -> None:
    assert find_dialect("POST", "/v1/responses") == find_dialect("POST", "/v1/responses")
    assert find_dialect("POST", "/v1/responses/resp_1/cancel") is None
    assert find_dialect("POST", "/v1/responses/compact") is None
    assert accepts("openai", RESPONSES.name)
    assert accepts("openai", OpenAI().name)
    assert not accepts("tfserving", RESPONSES.name)
