"""Frames of AWS's event streams, in chunks of any size, damaged, too long and cut."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamStreamError
from gateway.features.bedrock.frames import FrameParser
from gateway.messages import Event
from tests.fixtures.aws import LACKING
from tests.fixtures.bedrock import event, exception, frame, text_stream

LIMIT = 10_000


def parsed(chunks: list[bytes], limit: int = LIMIT) -> list[Event]:
    parser = FrameParser(limit)
    return [each for chunk in chunks for each in parser.feed(chunk)] + parser.close()


@given(st.lists(st.integers(0, 900), max_size=20))
def test_events_are_the_same_however_the_stream_is_cut_into_chunks(cuts: list[int]) -> None:
    stream = b"".join([*text_stream("Grüße, ", "世界"), exception("throttlingException", "slow")])
    ends = sorted({min(cut, len(stream)) for cut in cuts})
    chunks = [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]
    assert parsed(chunks) == parsed([stream])


def test_an_event_has_its_type_as_its_name_and_in_its_data() -> None:
    events = parsed(text_stream("a"))
    assert [each.name for each in events] == [
        "messageStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata",
    ]  # fmt: skip
    assert json.loads(events[1].data)["type"] == "contentBlockDelta"


ERRORS = {
    "an exception": (exception("throttlingException", "slow"), "throttlingException", "slow"),
    "an error in headers": (
        frame(b"", message_type="error", error_code="InternalError", error_message="broken"),
        "InternalError",
        "broken",
    ),
    "an exception without JSON": (
        frame(b"<html>", message_type="exception", exception_type="internalServerException"),
        "internalServerException",
        "internalServerException",
    ),
    "an error without a name": (frame(b"", message_type="error"), "unknownException", "unknownException"),
}


@pytest.mark.parametrize(("message", "kind", "words"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_an_event_with_its_kind_and_its_words(message: bytes, kind: str, words: str) -> None:
    (error,) = parsed([message])
    assert error.name == "exception"
    assert json.loads(error.data) == {"type": "exception", "kind": kind, "message": words}


GOOD = event("messageStop", stopReason="end_turn")
FAULTS = {
    "a damaged length": (b"\x00\x01" + GOOD[2:], "no event stream of AWS"),
    "JSON": (b'{"message": "The model is unknown."}', "no event stream of AWS"),  # LiteLLM 28551
    "a page": (b"<html><body>Bad gateway</body></html>", "no event stream of AWS"),
    "a damaged payload": (GOOD[:-8] + b"x" + GOOD[-7:], "damaged event"),
    "a list": (frame(b"[]", event_type="metadata"), "no JSON object"),
    "too long": (event("contentBlockDelta", delta={"text": "x" * LIMIT}), f"longer than {LIMIT} bytes"),
}


@pytest.mark.parametrize(("data", "words"), FAULTS.values(), ids=FAULTS)
def test_what_is_no_event_stream_says_so(data: bytes, words: str) -> None:
    with pytest.raises(UpstreamStreamError, match=words):
        parsed([data])


@pytest.mark.parametrize("payload", [b"", b"{}", b"{ }", b'{"a": 1}', b'{ "a": 1 }'])
def test_a_type_is_added_to_any_object(payload: bytes) -> None:
    (event_of,) = parsed([frame(payload, event_type="metadata")])
    assert json.loads(event_of.data) == {"type": "metadata", **json.loads(payload or b"{}")}


def test_a_message_without_a_type_is_no_event() -> None:
    assert parsed([frame({}), frame({}, event_type='a"b'), GOOD]) == parsed([GOOD])


def test_half_a_message_is_no_event() -> None:
    assert parsed([GOOD, GOOD[:-1]]) == parsed([GOOD])


def test_other_types_of_headers_are_passed_over() -> None:
    values = [(0, b""), (1, b""), (2, b"x"), (3, b"xx"), (4, b"xxxx"), (5, b"x" * 8), (8, b"x" * 8), (9, b"x" * 16)]
    lines = b"".join(b"\x01a" + bytes([kind]) + value for kind, value in values) + b"\x01b\x06\x00\x02yy"
    plain = frame({}, event_type="metadata")
    import_header = b"\x0b:event-type\x07\x00\x08metadata"
    assert import_header in plain
    assert parsed([_with_headers(lines + import_header)])[0].name == "metadata"
    with pytest.raises(UpstreamStreamError, match="cannot be read"):
        parsed([_with_headers(b"\x01a\x63")])


def _with_headers(lines: bytes) -> bytes:
    struct, zlib = import_module("struct"), import_module("zlib")
    prelude = struct.pack(">II", 16 + len(lines), len(lines))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + lines
    return bytes(message + struct.pack(">I", zlib.crc32(message)))


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_botocore_reads_the_same_frames() -> None:
    buffer = import_module("botocore.eventstream").EventStreamBuffer()
    buffer.add_data(b"".join([*text_stream("a"), exception("throttlingException", "slow")]))
    theirs = [message.headers.get(":event-type", "exception") for message in buffer]
    assert theirs == [each.name for each in parsed([*text_stream("a"), exception("throttlingException", "slow")])]
