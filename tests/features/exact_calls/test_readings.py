"""What decides the answer of a call that is cached by exact match, and what its answer must have, as pure functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.calls import Call
from gateway.dialects.forms import FormPart, write_form
from gateway.errors import BadRequest
from gateway.features.exact_calls.images import Images
from gateway.features.exact_calls.moderation import Moderation
from gateway.features.exact_calls.rerank import Rerank
from gateway.features.exact_calls.transcription import Transcription
from gateway.outcomes import Admission
from gateway.prices import Unit

RERANK, MODERATION, TRANSCRIPTION = Rerank(), Moderation(), Transcription()


def reranked(**fields: Any) -> Call:
    body = {"model": "r", "query": "q", "documents": ["a", "b"], **fields}
    return RERANK.parse("/v1/rerank", json.dumps(body).encode(), {})


@pytest.mark.parametrize(
    ("one", "other"),
    [({"top_n": None}, {}), ({"top_n": 2.0}, {"top_n": 2}), ({"user": "me"}, {}), ({"raw_scores": False}, {})],
)
def test_what_decides_nothing_is_no_part_of_the_key(one: Any, other: Any) -> None:
    assert reranked(**one).canonical == reranked(**other).canonical


def test_the_text_of_a_call_is_that_of_its_query_and_its_documents() -> None:
    call = reranked(query={"content": [{"type": "text", "text": "q"}]}, documents=["a", {"text": "b", "id": 7}])
    assert call.prompt == "q\na\nb"
    judged = MODERATION.parse("/v1/moderations", b'{"input": ["a", {"type": "text", "text": "b"}, 7]}', {})
    assert judged.prompt == "a\nb"


@pytest.mark.parametrize(
    ("answer", "billed"),
    [
        ({"results": [{"index": 0}]}, 3.0),
        ({"results": [{"index": 0}], "meta": {"billed_units": {"search_units": 2}}}, 2.0),
        ({"results": [{"index": 0}], "meta": {"billed_units": {"search_units": "two"}}}, 3.0),
    ],
)
def test_an_answer_bills_the_search_units_that_it_reports_or_those_of_its_documents(answer: Any, billed: float) -> None:
    inspection = RERANK.inspect(reranked(documents=["d"] * 201), [json.dumps(answer).encode()], False)
    assert (inspection.admission, inspection.billed) == (Admission.STORED, (Unit.SEARCH, billed))


def test_the_tokens_of_a_ranking_count() -> None:
    answer = {"results": [{"index": 0}], "usage": {"total_tokens": 9}}
    assert RERANK.inspect(reranked(), [json.dumps(answer).encode()], False).input_tokens == 9


SOUND = FormPart("file", "a.wav", "audio/wav", b"sound")


def transcribed(*parts: FormPart) -> Call:
    body, kind = write_form(parts)
    return TRANSCRIPTION.parse("/v1/audio/transcriptions", body, {"content-type": kind})


def field(name: str, value: str) -> FormPart:
    return FormPart(name, None, None, value.encode())


def test_values_of_one_field_keep_their_order_and_fields_do_not() -> None:
    one, two, model = field("words[]", "a"), field("words[]", "b"), field("model", "m")
    assert transcribed(model, one, two, SOUND).canonical == transcribed(SOUND, one, model, two).canonical
    assert transcribed(one, two, SOUND).canonical != transcribed(two, one, SOUND).canonical
    assert transcribed(SOUND, field("response_format", "json")).canonical == transcribed(SOUND).canonical


@pytest.mark.parametrize(
    "parts",
    [
        (field("model", "m"), field("model", "n"), SOUND),
        (field("stream", "True"), SOUND),
        (FormPart("prompt", None, "application/json", b"{}"), SOUND),
        (FormPart("prompt", None, "text/plain; charset=utf-16", b"a"), SOUND),
        (FormPart("prompt", None, None, b"\xff"), SOUND),
        (field("model", "m"),),
        (FormPart("model", "m.txt", None, b"m"), SOUND),
        (FormPart("stream", "s.txt", None, b"true"), SOUND),
        (field("prompt", "a"), field("prompt", "b"), SOUND),
        (field("url", "https://sounds/1.mp3"), SOUND),
    ],
    ids=[
        "two models",
        "a stream",
        "JSON",
        "another charset",
        "no text",
        "no file",
        "a model in a file",
        "a stream in a file",
        "two prompts",
        "a recording behind a link",
    ],
)
def test_a_form_that_two_servers_may_read_differently_is_no_call(parts: tuple[FormPart, ...]) -> None:
    with pytest.raises(BadRequest):
        transcribed(*parts)


PART = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nsound\r\n'
FORM_TYPE = "multipart/form-data; boundary=B"


@pytest.mark.parametrize(
    ("body", "kind", "headers"),
    [
        (PART, f"{FORM_TYPE}; charset=iso-8859-1", {}),
        (PART.replace(b'"a.wav"', b"\"a.wav\"; filename*=UTF-8''b.mp3"), FORM_TYPE, {}),
        (PART.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"), FORM_TYPE, {}),
        (PART.replace(b"\r\n", b"\n"), FORM_TYPE, {}),
        (PART.replace(b' name="file";', b""), FORM_TYPE, {}),
        (PART, f"{FORM_TYPE}; boundary=C", {}),
        (PART, FORM_TYPE, {"accept": "audio/mpeg"}),
    ],
)
def test_a_form_that_is_written_in_an_odd_way_is_no_call(body: bytes, kind: str, headers: dict[str, str]) -> None:
    path, end = "/v1/audio/transcriptions", b"--B--\r\n"
    with pytest.raises(BadRequest):
        TRANSCRIPTION.parse(path, body + end, {"content-type": kind, **headers})
    assert TRANSCRIPTION.parse(
        path, PART + end, {"content-type": 'Multipart/Form-Data; Boundary="B"', "accept": "text/plain"}
    )


@pytest.mark.parametrize(
    ("accept", "is_call"),
    [("", True), ("*/*", True), ("application/json", True), ("application/*;q=0.5", True), ("text/html, */*", True),
     ("image/png", False), ("application/msgpack", False), ("text/plain", False)],
)  # fmt: skip
def test_a_client_that_takes_no_json_gets_none_from_the_cache(accept: str, is_call: bool) -> None:
    """The header is in no key, so a picture as it is and one in JSON would share an entry."""
    body = json.dumps({"prompt": "a fjord", "seed": 7}).encode()
    try:
        Images().parse("/v1/images/generations", body, {"accept": accept})
    except BadRequest:
        assert not is_call
    else:
        assert is_call


@pytest.mark.parametrize(("seed", "is_call"), [("7", True), ("", False), ("-1", False), ("٧", False), ("7.5", False)])
def test_a_form_for_a_picture_needs_a_seed(seed: str, is_call: bool) -> None:
    body, kind = write_form((field("seed", seed), field("prompt", "a fjord"), SOUND))
    try:
        call = Images().parse("/v1/images/edits", body, {"content-type": kind})
    except BadRequest:
        assert not is_call
    else:
        assert is_call and call.prompt == "a fjord"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image[]", "https://pictures/1.png"),
        ("init_image", " https://pictures/1.png"),
        ("reference_images", '["https://pictures/1.png"]'),
    ],
)
def test_a_form_with_a_picture_behind_a_link_is_no_call(name: str, value: str) -> None:
    body, kind = write_form((field("seed", "7"), field(name, value)))
    with pytest.raises(BadRequest, match="link"):
        Images().parse("/v1/images/edits", body, {"content-type": kind})


DATA = "data:image/png;base64,aGk="
LINK = "https://pictures/1.png"


def nested(value: Any, depth: int = 40) -> Any:
    return value if not depth else [nested(value, depth - 1)]


@pytest.mark.parametrize(
    "fields",
    [
        {"reference_images": [LINK]},
        {"image_urls": [LINK]},
        {"init_image": LINK},
        {"input_image": LINK},
        {"inputImage": LINK},
        {"image_loras": [{"path": LINK, "scale": 0.5}]},
        {"loras": [{"path": LINK}]},
        {"control": {"unit": {"source": LINK}}},
        {"references": [{"uri": "gs://bucket/1.png"}]},
        {"image": "HTTPS://PICTURES/1.PNG"},
        {"image": f" \t\r\n{LINK}"},
        {"image": "ht\ntps://pictures/1.png"},
        {"image": "\x00https://pictures/1.png"},
        {"image": "https:/pictures/1.png"},
        {"image": "https:\\\\pictures\\1.png"},
        {"image": "//pictures.example/1.png"},
        {"image": "file:/etc/1.png"},
        {"image": " " * 5_000 + LINK},
        {"image": nested(LINK)},
        {"anything": nested({"deep": LINK})},
        {"images": {"first": {"file_id": "file-1"}, "second": {"image_url": LINK}}},
        {"prompt": f"{LINK} in the style of Munch"},
    ],
    ids=str,
)
def test_a_picture_behind_a_link_in_any_field_is_no_call(fields: Any) -> None:
    body = {"model": "m", "prompt": "a fjord", "seed": 7, **fields}
    with pytest.raises(BadRequest, match="link"):
        Images().parse("/v1/images/generations", json.dumps(body).encode(), {})


@pytest.mark.parametrize(
    "fields",
    [
        {"image_urls": [DATA]},
        {"image": DATA.replace("data", "DATA")},
        {"image": "//uQxAAAAAAAAAAAAAAASW5mbwAAAA8AAAAC"},
        {"images": [{"file_id": "file-1"}]},
        {"image_size": {"width": 512}, "aspect_ratio": "16:9"},
        {"prompt": f"a poster that says: {LINK}"},
        {"prompt": "Style: noir. A fjord"},
    ],
    ids=str,
)
def test_a_picture_in_the_body_is_cached(fields: Any) -> None:
    body = {"model": "m", "prompt": "a fjord", "seed": 7, **fields}
    assert Images().parse("/v1/images/generations", json.dumps(body).encode(), {}).body == body


@pytest.mark.parametrize(
    ("documents", "is_call"),
    [
        ([LINK, "a"], True),
        ([{"text": "a", "url": LINK}], True),
        ([{"image": DATA}], True),
        ([{"image": f" {LINK}"}], False),
        ([{"image_url": {"url": LINK}}], False),
        ({"content": [{"type": "video_url", "video_url": {"url": "S3://bucket/1.mp4"}}]}, False),
        (nested({"image": LINK}), False),
    ],
    ids=str,
)
def test_a_document_may_have_links_that_are_texts(documents: Any, is_call: bool) -> None:
    if is_call:
        assert reranked(documents=documents).body["documents"] == documents
    else:
        with pytest.raises(BadRequest, match="link"):
            reranked(documents=documents)


@pytest.mark.parametrize(
    ("answer", "admission"),
    [
        (b"[]", Admission.EMPTY),
        (b'{"results": []}', Admission.EMPTY),
        (b'{"results": null}', Admission.MALFORMED),
        (b'{"message": "too many requests"}', Admission.MALFORMED),
        (b"", Admission.INCOMPLETE),
        (b'\xef\xbb\xbf{"results": [{"index": 0}]}', Admission.STORED),
    ],
)
def test_an_empty_list_of_results_is_not_stored(answer: bytes, admission: Admission) -> None:
    assert RERANK.inspect(reranked(), [answer], False).admission is admission


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_transcript_is_not_stored(text: str) -> None:
    call = transcribed(SOUND)
    answer = json.dumps({"text": text}).encode()
    assert TRANSCRIPTION.inspect(call, [answer], False).admission is Admission.EMPTY
