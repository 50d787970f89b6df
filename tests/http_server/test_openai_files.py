"""Files, sound and images pass through the gateway with the official client: uploads as forms, downloads as bytes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from aiohttp import web

from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream, serving
from tests.http_server.conftest import openai_client

DATA = os.urandom(8 * 2**20)  # far above the gateway's `max_body`


class Host(Upstream):
    """Keeps a digest of what is uploaded, and gives `DATA` to whoever downloads."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" or request.path == "/v1/audio/speech":
            return web.Response(body=DATA, content_type="application/octet-stream")
        form = await request.post()
        part = next(value for value in form.values() if isinstance(value, web.FileField))
        digest = hashlib.sha256(part.file.read()).hexdigest()
        if request.path.startswith("/v1/audio"):
            return web.json_response({"text": digest})
        if request.path.startswith("/v1/images"):
            return web.json_response({"created": 1, "data": [{"b64_json": digest}]})
        head = {"id": digest, "object": "file", "bytes": 1, "created_at": 1, "status": "processed"}
        return web.json_response({**head, "filename": part.filename, "purpose": str(form["purpose"])})


async def test_uploads_and_downloads_pass_through(tmp_path: Path) -> None:
    expected = hashlib.sha256(DATA).hexdigest()
    async with serving(Host()) as host:
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": host.url}}, server={"max_body": "64KiB"})
        async with gateway_of(config) as served, openai_client(served) as client:
            file = await client.files.create(file=("a.jsonl", DATA), purpose="batch")
            assert (file.id, file.filename, file.purpose) == (expected, "a.jsonl", "batch")
            heard = await client.audio.transcriptions.create(file=("a.wav", DATA), model="m")
            assert heard.text == expected
            drawn = await client.images.edit(image=("a.png", DATA), prompt="brighter", model="m")
            assert drawn.data is not None
            assert drawn.data[0].b64_json == expected
            assert (await client.files.content("file-1")).content == DATA
            async with client.audio.speech.with_streaming_response.create(
                model="m", voice="alloy", input="hi"
            ) as spoken:
                assert b"".join([piece async for piece in spoken.iter_bytes()]) == DATA
