"""Personal data is found with its checksum, and never in numbers that only look like it."""

from __future__ import annotations

import re
import string
from itertools import pairwise
from re import _parser  # type: ignore[attr-defined]
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.known import find_dialect
from gateway.features.privacy import personal_data, plain_text
from gateway.features.privacy.personal_data import MAX_READ, Kind, find, redact, values_digest
from gateway.features.privacy.rule import PrivacyRule
from gateway.outcomes import Bypass
from tests.features.answer_schemas.test_validator import CHAT, MESSAGES, RESPONSES, call_of

ALL = frozenset(get_args(Kind))


HELLO = {"role": "user", "content": "Hello"}


def rule(action: str, *kinds: str) -> PrivacyRule:
    return PrivacyRule.model_validate({"pii": list(kinds) or sorted(ALL), "action": action})


def call(question: str, *before: str):  # type: ignore[no-untyped-def]
    messages = [{"role": "user", "content": text} for text in before]
    return call_of(CHAT, messages=[*messages, {"role": "user", "content": question}])


def parsed(path: str, body: dict[str, Any]) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    return dialect.parse(path, orjson.dumps({"model": "m", "max_tokens": 9, "messages": [HELLO], **body}), {})


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("write to Ann.B+x@Example.org, please", "write to <email>, please"),
        ("'ann@example.org', ann@example.org-and ann@xn--bcher-kva.example", "'<email>', <email>-and <email>"),
        ("ann\uff20example\uff0eorg jose\u0301@example.org", "<email> <email>"),
        ("j\u00f6rg@stra\u00dfe.example or <bob@x.co.uk>.", "<email> or <<email>>."),
        ("is 4111 1111 1111 1111 blocked?", "is <card> blocked?"),
        ("card 5500-0000-0000-0004.", "card <card>."),
        ("4111 1111 1111 1111 12/27 123, then 5500 0000 0000 0004", "<card> 12/27 123, then <card>"),
        ("pay 50 4111\u00a01111\u00a01111\u00a01111 5500-0000-0000-0004", "pay 50 <card> <card>"),
        ("amex 3782 822463 10005", "amex <card>"),
        ("DE89 3704 0044 0532 0130 00 please", "<iban> please"),
        ("from DE89 3704 0044 0532 0130 00 to GB82-WEST-1234-5698-7654-32", "from <iban> to <iban>"),
        ("AB12 DE89 3704 0044 0532 0130 00", "AB12 <iban>"),
        ("to gb82west12345698765432!", "to <iban>!"),
        ("my SSN: 078-05-1120", "my SSN: <ssn>"),
        ("social security number is 078051120", "social security number is <ssn>"),
        ("ssn no. 078051120", "ssn no. <ssn>"),
        ("call +49 30 1234567 or 00441632960961", "call <phone> or <phone>"),
        ("(415) 555-2671, 1-800-555-0199", "<phone>, <phone>"),
        ("030 12345678 und 0171/1234567", "<phone> und <phone>"),
        ("020 7946 0958, (11) 96123-4567, 612 34 56 78", "<phone>, <phone>, <phone>"),
        ("081234 56789, 131 2345 6789, 222 123 4567", "<phone>, <phone>, <phone>"),
        ("+49 30 1234567 +49 30 7654321 or (415) 555-2671 (415) 555-2672", "<phone> <phone> or <phone> <phone>"),
    ],
)
def test_personal_data_is_replaced_by_its_kind(text: str, redacted: str) -> None:
    assert redact(text, find(text, ALL)) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of France?",
        "order 1234567890123456",  # no card: its check digit is wrong
        "0.4111111111111111 x4111111111111111 4111111111111111x",
        "3000 12 12 12 12 12, 4111 11 1111 1111 11",
        "4111 1111 1111 1112",
        "DE89 3704 0044 0532 0130 01",
        "XX89 3704 0044 0532 0130 00",  # no country
        "000-12-3456, 666-12-3456, 900-12-3456, 123-00-4567",
        "078051120",  # nine digits alone may be anything
        "between 01-02-2024 and 2024-11-24T03:04:05",
        "Python 3.11.7 at 10.0.0.1:8080, pi is 3.14159265358979",
        "ISBN 978-3-16-148410-0, 1,234,567,890 people, timestamp 1700000000",
        "user@localhost, a@b, @here, 00:11:22:33:44:55",
    ],
)
def test_other_numbers_and_words_are_left_alone(text: str) -> None:
    assert find(text, ALL) == ()


def test_each_repetition_of_the_patterns_is_bounded() -> None:
    """So each place of a text takes a bounded number of steps, and the time grows with the length only."""
    names = {**vars(personal_data), **vars(plain_text)}
    patterns = {name: value.pattern for name, value in names.items() if isinstance(value, re.Pattern)}
    assert set(patterns) >= {"_EMAIL", "_PHONE", "_SSN", "_IBAN_START", "_IBAN_REST"}
    of_one_class = {"_DIGITS", "_BASE64"}  # they try no place twice
    for name, text in patterns.items():
        assert name in of_one_class or most_repetitions(_parser.parse(text)) <= 64, name


def most_repetitions(parsed: Any) -> int:
    """Return the longest repetition of a parsed pattern, with those inside it."""
    most = 0
    for kind, argument in parsed:
        if str(kind).endswith("_REPEAT"):
            most = max(most, argument[1], most_repetitions(argument[2]))
        elif str(kind) == "BRANCH":
            most = max(most, *map(most_repetitions, argument[1]))
        elif str(kind) in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            most = max(most, most_repetitions(argument[-1]))
    return most


@pytest.mark.parametrize(
    "piece",
    [
        "@",
        "a@",
        "a@a.",
        "a." * 31 + "b@",
        "4111 ",
        "41111-",
        "1",
        "1 ",
        "+1",
        "(01) ",
        "01 2222/",
        "DE89 ",
        "ssn ",
        "078-05-",
    ],
)
def test_a_text_made_to_be_slow_is_read_to_its_end(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    end = " ann@example.org, 4111 1111 1111 1111"
    assert [found.kind for found in find(text + "\n" + end, ALL)][-2:] == ["email", "card"]


def test_only_the_kinds_of_the_policy_are_looked_for() -> None:
    text = "ann@example.org, 4111 1111 1111 1111"
    assert [found.kind for found in find(text, {"card"})] == ["card"]


def test_separators_do_not_change_a_value_and_digits_do() -> None:
    digests = [values_digest(find(text, ALL)) for text in ("+49 30 1234567", "+49-30/1234567", "+49 30 1234568")]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.quick
@given(st.text(alphabet=string.digits + " -.+()/@aD\u00e9x", max_size=400))
def test_findings_are_in_order_and_never_overlap(text: str) -> None:
    found = find(text, ALL)
    assert all(a.end <= b.start for a, b in pairwise(found))
    kept = "".join(text[a:b] for a, b in pairwise([0, *(at for f in found for at in (f.start, f.end)), len(text)]))
    assert kept == text
    for each in found:
        assert text[each.start : each.end].strip() == text[each.start : each.end] != ""


def test_a_redacted_question_keeps_its_exact_key_and_changes_its_scope() -> None:
    plain = call("Send the invoice to ann@example.org")
    seen, kinds = rule("redact-key").read(plain)
    other, _ = rule("redact-key").read(call("Send the invoice to bob@example.org"))
    assert kinds == ("email",)
    assert (seen.focus, seen.question) == ("Send the invoice to <email>",) * 2
    assert seen.canonical == plain.canonical
    assert len({plain.context, seen.context, other.context}) == 3
    assert seen.body == plain.body  # the backend gets what the client wrote


def test_a_bypass_reads_earlier_turns_and_a_redaction_the_question_alone() -> None:
    asked = call("And my order?", "I am ann@example.org")
    assert rule("bypass").read(asked)[0].uncached is Bypass.PERSONAL_DATA
    assert rule("redact-key").read(asked) == (asked, ())
    assert rule("store").read(asked) == (asked, ("email",))


TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "mail", "arguments": '{"to": "ann@example.org"}'}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}]}),
        (CHAT, {"messages": [{"role": "system", "content": "You help ann@example.org"}]}),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "ann@example.org"}]}]},
        ),
        (MESSAGES, {"system": "You help ann@example.org"}),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": "ann@example.org"}]}),
        (RESPONSES, {"instructions": "You help ann@example.org"}),
        ("/v1/completions", {"prompt": "Mail", "suffix": "to ann@example.org"}),
        ("/v1/embeddings", {"input": ["Mail", "to ann@example.org"]}),
    ],
)
def test_a_bypass_reads_each_text_of_the_call(path: str, body: dict[str, Any]) -> None:
    given = parsed(path, body)
    assert rule("bypass").read(given)[0].uncached is Bypass.PERSONAL_DATA


def test_the_name_of_the_client_the_definitions_and_images_are_not_read() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 4_000}}
    turn = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
    tool = {"type": "function", "function": {"name": "mail", "description": "such as ann@example.org"}}
    asked = call_of(CHAT, messages=[turn], user="ann@example.org", metadata={"by": "ann@example.org"}, tools=[tool])
    assert rule("bypass").read(asked) == (asked, ())


def test_a_bypass_keeps_the_data_from_the_log_and_the_reason_that_was_there() -> None:
    seen, _ = rule("bypass").read(call("Send it to ann@example.org"))
    assert (seen.question, seen.focus) == ("Send it to <email>",) * 2
    polled = call_of(RESPONSES, input="Send it to ann@example.org", background=True)
    assert rule("bypass").read(polled)[0].uncached is Bypass.BACKGROUND


def test_a_text_too_long_to_read_counts_as_personal() -> None:
    long = call("word " * (MAX_READ // 5 + 1))
    assert rule("bypass").read(long)[0].uncached is Bypass.PERSONAL_DATA
    redacted, _ = rule("redact-key").read(long)
    assert (redacted.focus, redacted.no_question) == (None, Bypass.TOO_LONG)


def test_nothing_found_changes_nothing() -> None:
    asked = call("What is a cache?")
    for action in ("bypass", "redact-key", "store"):
        assert rule(action).read(asked) == (asked, ())
