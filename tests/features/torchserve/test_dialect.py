"""TorchServe's calls: bytes as they are, forms part by part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.errors import BadRequest
from gateway.features.torchserve.dialect import TorchServe

DIALECT = TorchServe()
PATH = "/predictions/resnet-18"


def form(boundary: str, *parts: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    pieces = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts]
    body = b"".join(pieces) + f"--{boundary}--\r\n".encode()
    return body, {"content-type": f"multipart/form-data; boundary={boundary}"}


FILE = 'Content-Disposition: form-data; name="data"; filename="kitten.jpg"\r\nContent-Type: image/jpeg'
FIELD = 'Content-Disposition: form-data; name="mode"'


def called(body: bytes, headers: dict[str, str] | None = None, path: str = PATH) -> Call:
    return DIALECT.parse(path, body, headers or {})


@pytest.mark.parametrize(
    ("method", "path", "claimed"),
    [
        ("POST", PATH, True),
        ("POST", f"{PATH}/2.0", True),
        ("POST", "/explanations/m", True),
        ("GET", PATH, False),
        ("GET", "/ping", False),
        ("POST", "/predictions", False),
        ("POST", "/predictions/m/1/x", False),
    ],
)
def test_inference_is_its_and_nothing_else(method: str, path: str, claimed: bool) -> None:
    assert DIALECT.claims(method, path) is claimed


def test_bytes_are_sent_as_they_came() -> None:
    call = called(b"\x00\xffbytes", {"content-type": "image/jpeg"}, f"{PATH}/2.0")
    sent = DIALECT.outgoing(f"{PATH}/2.0", call, model="big", kept=True)
    assert (sent.path, sent.body, sent.headers) == ("/predictions/big/2.0", b"\x00\xffbytes", ())


def test_a_form_is_the_same_whatever_parts_its_parts() -> None:
    one, other = form("aaa", (FILE, b"\xff\xd8"), (FIELD, b"top5")), form("b1", (FILE, b"\xff\xd8"), (FIELD, b"top5"))
    assert called(*one).canonical == called(*other).canonical


@pytest.mark.parametrize(
    "parts",
    [
        [(FILE, b"\xff\xd9"), (FIELD, b"top5")],
        [(FIELD, b"top5"), (FILE, b"\xff\xd8")],
        [(FILE, b"\xff\xd8")],
        [(FILE.replace("kitten", "puppy"), b"\xff\xd8"), (FIELD, b"top5")],
        [(FILE.replace("jpeg", "png"), b"\xff\xd8"), (FIELD, b"top5")],
    ],
)
def test_each_part_of_a_form_decides(parts: list[tuple[str, bytes]]) -> None:
    usual = called(*form("x", (FILE, b"\xff\xd8"), (FIELD, b"top5")))
    assert called(*form("x", *parts)).canonical != usual.canonical


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_a_form_that_is_sent_on_is_read_as_the_same(contents: list[bytes]) -> None:
    parts = [(FILE.replace("data", f"data{i}"), content) for i, content in enumerate(contents)]
    try:
        call = called(*form("q" * 40, *parts))
    except BadRequest:
        return  # a content that has the boundary in it
    sent = DIALECT.outgoing(PATH, call, model=None, kept=True)
    assert called(sent.body, {"content-type": dict(sent.headers)["Content-Type"]}).canonical == call.canonical


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data; boundary=x"),
        (b"--y--\r\n", "multipart/form-data; boundary=x"),
        (form("x", (FILE, b"1"))[0][:-4], "multipart/form-data; boundary=x"),
        (form("x", (FILE, b"1"))[0], "multipart/form-data"),
        (form("x", ("X: y", b"1"))[0], "multipart/form-data; boundary=x"),
        (b"junk" + form("x", (FILE, b"1"))[0], "multipart/form-data; boundary=x"),
        (form("x", *[(FIELD, b"1")] * 257)[0], "multipart/form-data; boundary=x"),
    ],
)
def test_a_form_that_can_be_read_in_two_ways_is_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(BadRequest, match="form"):
        called(body, {"content-type": content_type})


def test_text_is_what_complexity_is_judged_on() -> None:
    assert called(b"Bloomberg has decided", {"content-type": "text/plain"}).prompt == "Bloomberg has decided"
    assert called(b"\xff\xd8", {"content-type": "image/jpeg"}).prompt == ""
    assert called(b"\xff\xd8").prompt == ""
