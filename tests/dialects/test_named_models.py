"""Which model a request names on a path that no dialect claims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.dialects.named_models import ModelReader, content_type_of, model_in_body, models_named, uses_only_named
from gateway.errors import BadRequest

JSON, FORM, LINES = "application/json", "application/x-www-form-urlencoded", "application/x-ndjson"
MULTIPART = "multipart/form-data; boundary=b"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="\xe9.wav"\r\n\r\n\x00\r\n--c\r\n'


def part(value: bytes, name: bytes = b'name="model"') -> bytes:
    return b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (name, value)


END = b"--b--\r\n"


@pytest.mark.parametrize(
    ("content_type", "body", "model"),
    [
        (JSON, b'{"model": "m", "input": "x"}', "m"),
        (JSON, b'\xef\xbb\xbf\n {"input": "x", "model": "m"}', "m"),
        ("application/json; charset=utf-8", b'{"mod\\u0065l": "\\u006d"}', "m"),
        ("application/vnd.api+json", b'{"model": "m"}', "m"),
        ("", b'{"model": "m"}', "m"),
        (FORM, b'{"model": "m"}', "m"),
        ("text/plain", b'{"model": "m", "x": NaN}', "m"),
        (JSON, b'{"session": {"model": "m"}}', "m"),
        (JSON, b'{"model": "m", "session": {"model": "n"}}', "m"),
        (JSON, b'{"model": null}', None),
        (JSON, b'{"model": ""}', None),
        (JSON, b'{"model": ["m"]}', None),
        (JSON, b'[{"model": "m"}]', None),
        (JSON, b"", None),
        ("", b"RIFF....", None),
        ("application/octet-stream", b"{not json", None),
        (LINES, b'{"model": "m"}\n{"model": "n"}\n', None),
        (FORM, b"a=b&model=m%2F1", "m/1"),
        (FORM, b"a=b", None),
        (MULTIPART, part(b"m") + FILE + END, "m"),
        (MULTIPART, FILE + part(b"m") + END, "m"),
        ('Multipart/Form-Data; charset=x; boundary="b"', part(b"m", b"name=model") + END, "m"),
        (MULTIPART, part(b"m", b'name="model"; filename="a"') + END, "m"),
        (MULTIPART, FILE + END, None),
        (MULTIPART, part(b"") + END, None),
    ],
)
def test_the_model_that_a_body_names(content_type: str, body: bytes, model: str | None) -> None:
    assert model_in_body(body, content_type) == model


@pytest.mark.parametrize(
    ("content_type", "body", "why"),
    [
        (JSON, b'{"model": "a", "model": "b"}', "occurs twice"),
        (JSON, b'{"model": "a"', "not valid JSON"),
        (JSON, '{"model": "a"}'.encode("utf-16"), "not valid JSON"),
        (FORM, b"model=a&model=b", "occurs twice"),
        (MULTIPART, part(b"a") + FILE + part(b"b") + END, "occurs twice"),
        (MULTIPART, part(b"a" * 600) + END, "at most 512 bytes"),
        (MULTIPART, part(b"a"), "malformed"),
        (MULTIPART, b'{"model": "a"}', "malformed"),
        ("multipart/form-data", part(b"a") + END, "boundary"),
        ("multipart/form-data; boundary=a; boundary=b", part(b"a") + END, "boundary"),
    ],
)
def test_a_body_that_two_servers_may_read_differently_is_refused(content_type: str, body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        model_in_body(body, content_type)


def test_two_content_types_are_refused() -> None:
    assert content_type_of(CIMultiDict({"content-TYPE": JSON})) == JSON
    assert content_type_of(CIMultiDict()) == ""
    with pytest.raises(BadRequest, match="Content-Type occurs twice"):
        content_type_of(CIMultiDict([("Content-Type", JSON), ("content-type", FORM)]))


@pytest.mark.parametrize(
    ("method", "path", "query", "in_body", "models"),
    [
        ("POST", "/v1/images/generations", "", "m", ("m",)),
        ("POST", "/v1/images/generations", "", None, ()),
        ("GET", "/v1/realtime", "model=m&x=1", None, ("m",)),
        ("POST", "/v1/audio/speech", "model=q", "b", ("b", "q")),
        ("POST", "/openai/deployments/d%2Fe/images/generations", "api-version=1", "b", ("d/e", "b")),
        ("POST", "/OpenAI/Deployments/d/images/generations", "", "b", ("d", "b")),
        ("GET", "/openai/realtime", "api-version=1&deployment=d", None, ("d",)),
        ("GET", "/openai/realtime", "model=a&deployment=d", None, ("a", "d")),
        ("GET", "/openai/realtime", "mod%65l=a&%64eployment=d", None, ("a", "d")),
        ("POST", "/v1/listen", "mod%65l=q", "b", ("b", "q")),
        ("POST", "/v1/Models/Gemini-Pro:streamGenerateContent", "", None, ("Gemini-Pro",)),
        ("POST", "/v1beta/models/gemini-pro:streamGenerateContent", "alt=sse", None, ("gemini-pro",)),
        ("POST", "/v1beta/models/gemma:2b:generateContent", "", None, ("gemma:2b",)),
        ("POST", "/model/claude/invoke", "", None, ("claude",)),
        ("POST", "/v1beta/models/allowed/models/other:countTokens", "", None, ("allowed", "other")),
        ("POST", "/openai/deployments/allowed/deployments/other/images", "", None, ("allowed", "other")),
        ("POST", "/v1/engines/davinci/completions", "", None, ("davinci",)),
        ("GET", "/v1/models/m", "", None, ()),
        ("DELETE", "/v1/models/m", "", None, ()),
        ("POST", "/v1/remodel/m", "", None, ()),
    ],
)
def test_the_models_that_a_request_names(
    method: str, path: str, query: str, in_body: str | None, models: tuple[str, ...]
) -> None:
    assert models_named(method, path, query, in_body) == models


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v1/images/generations", True),
        ("POST", "/v1/audio/transcriptions", True),
        ("POST", "/v2/rerank", True),
        ("POST", "/v1/responses/compact", True),
        ("POST", "/v1/videos", True),
        ("GET", "/v1/realtime", True),
        ("POST", "/api/chat", True),
        ("POST", "/openai/deployments/d/images/generations", True),
        ("POST", "/v1/files", False),
        ("POST", "/v1/%62atches", False),
        ("POST", "/v1/FILES/x", False),
        ("POST", "/openai/files", False),
        ("POST", "/v1/messages/batches", False),
        ("POST", "/v1/fine_tuning/jobs", False),
        ("POST", "/v1/responses/resp_1/cancel", False),
        ("POST", "/v1/videos/video_1/remix", False),
        ("POST", "/v1/chat/completions/chatcmpl-1", False),
        ("POST", "/api/pull", False),
        ("DELETE", "/v1/models/m", False),
        ("PUT", "/v1/images/generations", False),
    ],
)
def test_a_model_beside_something_else_says_nothing(method: str, path: str, told: bool) -> None:
    assert uses_only_named(method, path) == told


def test_a_query_with_two_models_is_refused() -> None:
    with pytest.raises(BadRequest, match="occurs twice"):
        models_named("GET", "/v1/realtime", "model=a&model=b", None)


@given(st.binary(max_size=200), st.integers(1, 20), st.booleans())
def test_a_form_in_pieces_names_the_same_model(content: bytes, size: int, first: bool) -> None:
    file = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + content.replace(b"--b", b"") + b"\r\n"
    body = (part(b"m") + file if first else file + part(b"m")) + END
    reader = ModelReader(MULTIPART)
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size])
    reader.feed(b"")
    assert reader.is_known and not reader.needs_whole
    assert reader.model == model_in_body(body, MULTIPART) == "m"
