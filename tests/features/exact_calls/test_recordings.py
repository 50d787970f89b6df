"""Transcriptions of the same bytes are cached by exact match, whatever the boundary and the order of fields."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from gateway.dialects.forms import FormPart, parse_form, write_form
from tests.fixtures.gateways import EXACT_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

PATH = "/v1/audio/transcriptions"
SOUND, OTHER = b"RIFF\x00\xff\r\n--b\r\n:" * 50, b"RIFF\x00\xfe" * 50
MAX_BODY = 2**20
PASSED = "fwd=bypass=pass-through"
SRT = "1\n00:00:00,000 --> 00:00:30,000\nWhich ports?\n"
ANSWERS: dict[str, Any] = {
    "json": {"text": "Which ports?", "usage": {"type": "duration", "seconds": 30}},
    "verbose_json": {"text": "Which ports?", "duration": 30.0, "segments": []},
    "diarized_json": {"text": "Which ports?", "segments": [{"speaker": "A"}]},
    "text": " Which ports?\n",
    "srt": SRT,
    "vtt": "WEBVTT\n\n" + SRT,
}


def parts_of(upstream: Upstream) -> tuple[FormPart, ...]:
    """Return the form that the endpoint got last."""
    call = upstream.calls[-1]
    return parse_form(call.body, call.headers["Content-Type"])


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        if request.path.endswith("speech"):
            return web.Response(body=b"\xff\xfb\x90", content_type="audio/mpeg")
        fields = {part.name: part.data.decode("latin-1") for part in parts_of(upstream)}
        kind = fields.get("response_format", "json")
        if fields.get("stream") == "true":
            done = {"type": "transcript.text.done", "text": "Which ports?"}
            return web.Response(text=f"data: {json.dumps(done)}\n\n", content_type="text/event-stream")
        value = ANSWERS[kind]
        return web.Response(text=value) if isinstance(value, str) else web.json_response(value)

    upstream.answer = answer
    backend = {"adapter": "openai", "url": upstream.url, "price": {"per_minute": 0.006}}
    config = config_of(tmp_path, {"main": backend}, server={"max_body": MAX_BODY})
    async with gateway_of(config, EXACT_CACHE) as gateway:
        yield gateway


def form(data: bytes = SOUND, name: str = "a.wav", kind: str = "audio/wav", **fields: str) -> aiohttp.FormData:
    made = aiohttp.FormData({"model": "whisper-1", **fields})
    made.add_field("file", io.BytesIO(data), filename=name, content_type=kind)
    return made


async def send(served: Served, data: Any, path: str = PATH, headers: dict[str, str] | None = None) -> Answer:
    async with served.session.post(served.url + path, data=data, headers=headers) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


def told(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return answer.cache_status.split("; ")[1] + answer.cache_status.partition("detail")[2].split(";")[0]


@pytest.mark.parametrize("kind", list(ANSWERS))
async def test_the_official_client_reads_a_transcript_from_the_cache(
    served: Served, upstream: Upstream, kind: Any
) -> None:
    """BerriAI/litellm #33764: an endpoint's transcript has fields that a proxy's own model refuses."""
    async with AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as client:
        create = client.audio.transcriptions.create
        found = [
            await create(model="whisper-1", file=(name, SOUND), response_format=kind) for name in ("a.wav", "b c.wav")
        ]
    assert found[0] == found[1] and len(upstream.calls) == 1
    assert "Which ports?" in (found[0] if isinstance(found[0], str) else found[0].text)


async def test_spellings_of_a_form_share_an_entry(served: Served, upstream: Upstream) -> None:
    """BerriAI/litellm #16462: recordings were told apart by their names, not by their bytes."""
    fields = aiohttp.FormData()  # another order and another boundary
    fields.add_field("file", SOUND, filename="b.WAV", content_type="audio/wav")
    fields.add_field("response_format", "json")
    fields.add_field("model", "whisper-1")
    for sent in (form(), form(name="other name.wav"), fields, form(stream="false")):
        assert json.loads((await send(served, sent)).body) == ANSWERS["json"]
    assert len(upstream.calls) == 1


async def test_other_bytes_and_other_fields_are_other_calls(served: Served, upstream: Upstream) -> None:
    """BerriAI/litellm #5026, cognitx-leyton/codegraph #292: other files and other languages got the same transcript."""
    sent = [
        form(), form(OTHER), form(language="de"), form(language="en"), form(prompt="ports"), form(temperature="0.5"),
        form(response_format="text"), form(name="a.mp3"), form(kind="audio/l16; rate=8000"),
        form(kind="audio/l16; rate=16000"), form(**{"timestamp_granularities[]": "word"}),
    ]  # fmt: skip
    for each in sent:
        assert told(await send(served, each)) == "fwd=miss"
    assert told(await send(served, form(), "/v1/audio/translations")) == "fwd=miss"
    assert len(upstream.calls) == len(sent) + 1


async def test_the_endpoint_gets_all_parts_as_they_were(served: Served, upstream: Upstream) -> None:
    name = 'f\u00fc"r.wav'
    parts = (
        FormPart("file", name, "audio/wav; rate=8000", SOUND),
        FormPart("model", None, None, b"whisper-1"),
        FormPart("include[]", None, None, b"logprobs"),
        FormPart("include[]", None, "text/plain", b"x"),
    )
    written, kind = write_form(parts)
    assert told(await send(served, written, headers={"Content-Type": kind})) == "fwd=miss"
    assert parts_of(upstream) == parts


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"Content-Disposition: form-data; name=\"file\"; filename*=utf-8''a%C3%BC.wav\r\n", "a name in another form"),
        (b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nX-Rate: 8000\r\n', "an unknown header"),
        (b'Content-Disposition: form-data; name="audio"\r\n', "no file"),
    ],
)
async def test_a_form_that_cannot_be_read_for_certain_passes_through(
    served: Served, upstream: Upstream, head: bytes, why: str
) -> None:
    async def transcribe(request: web.Request, call: Any) -> web.StreamResponse:
        return web.json_response(ANSWERS["json"])

    upstream.answer = transcribe
    body = b"--b\r\n" + head + b"\r\nsound\r\n--b--\r\n"
    for _ in range(2):
        answer = await send(served, body, headers={"Content-Type": "multipart/form-data; boundary=b"})
        assert told(answer) == PASSED, why
    assert [call.body for call in upstream.calls] == [body, body]


async def test_streams_and_long_recordings_and_speech_pass_through(served: Served, upstream: Upstream) -> None:
    """A recording beyond `server.max_body` streams, as before."""
    for _ in range(2):
        answer = await send(served, form(stream="true"))
        assert told(answer) == PASSED and b"transcript.text.done" in answer.body
        assert told(await send(served, form(bytes(2 * MAX_BODY)))) == PASSED
        spoken = await served.post("/v1/audio/speech", {"model": "tts-1", "input": "hi", "voice": "a"})
        assert (told(spoken), spoken.body) == (PASSED, b"\xff\xfb\x90")
    assert len(upstream.calls) == 6


async def test_a_long_recording_is_read_off_the_loop_and_hits(served: Served, upstream: Upstream) -> None:
    sound = b":\x00\xff" * 200_000
    assert [told(await send(served, form(sound))) for _ in range(2)] == ["fwd=miss", "hit=exact"]


@pytest.mark.parametrize("answer", ["", "<html>busy</html>", '{"error": {"message": "busy"}}'])
async def test_a_page_an_error_or_nothing_is_no_transcript(served: Served, upstream: Upstream, answer: str) -> None:
    async def answered(request: web.Request, call: Any) -> web.StreamResponse:
        return web.Response(text=answer, content_type="text/plain")

    upstream.answer = answered
    for kind in ("text", "json"):
        for _ in range(2):
            assert told(await send(served, form(response_format=kind))) == "fwd=miss"
    assert len(upstream.calls) == 4


async def test_a_hit_saves_the_price_of_its_minutes(served: Served) -> None:
    for kind in ("json", "verbose_json", "srt"):  # the seconds of the usage, the duration, the last subtitle
        for _ in range(2):
            await send(served, form(response_format=kind))
    saved = served.gateway.parts.telemetry.cost_saved.total()
    assert saved == pytest.approx(3 * 0.003)
