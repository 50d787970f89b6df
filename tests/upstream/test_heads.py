"""Heads of requests, and what is read of those of answers. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.http1.errors import MalformedAnswer
from gateway.upstream.http1.headers import (
    MAX_NAMES,
    HeaderNames,
    Origin,
    check_coding,
    framing_lines,
    keep_alive_s,
    request_head,
)


def test_a_head_is_one_line_a_header_in_order() -> None:
    head = request_head("POST", "/v1/x?a=b", "h:1", [("A", "1"), ("a", "2")], b"Content-Length: 3\r\n")
    assert head == b"POST /v1/x?a=b HTTP/1.1\r\nHost: h:1\r\nA: 1\r\na: 2\r\nContent-Length: 3\r\n\r\n"


def test_bytes_that_are_no_utf_8_go_out_as_they_came() -> None:
    value = b"\xe9\xff".decode("utf-8", "surrogateescape")
    assert b"A: \xe9\xff\r\n" in request_head("GET", "/", "h", [("A", value)], b"")


@pytest.mark.parametrize(
    ("method", "target", "name", "value"),
    [
        ("GET", "/a b", "A", "1"),
        ("GET", "/a\r\nX: 1", "A", "1"),
        ("GET", "/\x7f", "A", "1"),
        ("GET", "", "A", "1"),
        ("G T", "/", "A", "1"),
        ("", "/", "A", "1"),
        ("GET", "/", "A", "1\r\nX: 2"),
        ("GET", "/", "A", "1\n"),
        ("GET", "/", "A", "1\r"),
        ("GET", "/", "A\r\nB", "1"),
        ("GET", "/", "A", "\0"),
    ],
)
def test_nothing_can_end_its_line_early(method: str, target: str, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"^the request's method, target or headers") as raised:
        request_head(method, target, "h", [(name, value)], b"")
    assert "X: 2" not in str(raised.value)  # what it holds may be a secret


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=8)), max_size=4))
def test_a_head_has_as_many_lines_as_headers_or_there_is_none(headers: list[tuple[str, str]]) -> None:
    try:
        head = request_head("GET", "/", "h", headers, b"")
    except (ValueError, UnicodeEncodeError):
        return
    assert len(head.split(b"\r\n")) == len(headers) + 4
    assert head.count(b"\r") == head.count(b"\n")


@pytest.mark.parametrize(
    ("method", "length", "framing"),
    [
        ("GET", 0, b""),
        ("POST", 0, b"Content-Length: 0\r\n"),
        ("DELETE", 0, b"Content-Length: 0\r\n"),
        ("GET", 5, b"Content-Length: 5\r\n"),
        ("PUT", None, b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_a_body_says_how_long_it_is(method: str, length: int | None, framing: bytes) -> None:
    assert framing_lines(method, length) == framing


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "chunked, gzip", "identity", "gzip", "chunked, chunked", "xchunked"]
)
def test_no_coding_but_chunked_is_read(coding: str) -> None:
    with pytest.raises(MalformedAnswer):
        check_coding(coding)


def test_chunked_is_read_however_it_is_written() -> None:
    check_coding("Chunked")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (None, 15.0),
        ("timeout=5", 4.0),
        ("Timeout=5, max=100", 4.0),
        ('max=3, timeout="7"', 6.0),
        ("timeout=75", 15.0),
        ("timeout=1", 0.0),
        ("timeout=0", 0.0),
        ("timeout=-1", 15.0),
        ("timeout=²", 15.0),
        ("timeout=" + "9" * 400, 15.0),
        ("timeout", 15.0),
        ("", 15.0),
    ],
)
def test_a_connection_is_kept_a_second_less_than_its_server_keeps_it(said: str | None, kept: float) -> None:
    assert keep_alive_s(said, 15.0) == kept


def test_names_are_remembered_and_no_more_of_them_than_allowed() -> None:
    names = HeaderNames()
    assert names[b"Content-Type"] == ("Content-Type", "content-type")
    assert names[b"X-Other"] == ("X-Other", None)
    for i in range(3 * MAX_NAMES):
        assert names[b"X-%d" % i] == (f"X-{i}", None)
        assert len(names) <= MAX_NAMES


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://h/v1", Origin("h", 80, False, "h")),
        ("https://H.example:443", Origin("h.example", 443, True, "h.example")),
        ("https://h:8443/x", Origin("h", 8443, True, "h:8443")),
        ("http://[::1]:81", Origin("::1", 81, False, "[::1]:81")),
        ("http://127.0.0.1:80", Origin("127.0.0.1", 80, False, "127.0.0.1")),
        ("https://bücher.example", Origin("xn--bcher-kva.example", 443, True, "xn--bcher-kva.example")),
        ("http://h.example./", Origin("h.example", 80, False, "h.example")),
    ],
)
def test_an_origin_is_where_to_connect_and_what_to_call_it(url: str, origin: Origin) -> None:
    assert Origin.of(url) == origin


@pytest.mark.parametrize("url", ["/path", "ftp://h", "http://", "h:80"])
def test_what_is_no_url_of_http_is_no_origin(url: str) -> None:
    with pytest.raises(ValueError):
        Origin.of(url)
