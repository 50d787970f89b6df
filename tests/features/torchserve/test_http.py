"""TorchServe behind the gateway: exact hits and errors in its own shape; `test_real_servers.py` has a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.fixtures.tensor_servers import TensorServer, served_before, tensor_server


@pytest.fixture
async def server() -> AsyncIterator[TensorServer]:
    async with tensor_server() as server:
        yield server


async def test_bytes_and_forms_are_kept_for_torchserve(server: TensorServer, tmp_path: Path) -> None:
    async with served_before(server, tmp_path, "torchserve") as served:
        for status in ("nearhit; fwd=miss; stored", "nearhit; hit"):
            answer = await served.post("/predictions/m", b"\xff\xd8picture", {"Content-Type": "image/jpeg"})
            assert (answer.body, answer.headers["Content-Type"]) == (b"9 bytes", "text/plain")
            assert answer.cache_status.startswith(status)
        for status in ("nearhit; fwd=miss; stored", "nearhit; hit"):
            form = aiohttp.FormData()
            form.add_field("data", b"\x00" * 1000, filename="kitten.jpg", content_type="image/jpeg")
            async with served.session.post(f"{served.url}/predictions/m", data=form) as response:
                assert await response.json() == {"data": 1000}
                assert response.headers["Cache-Status"].startswith(status)
        assert len(server.paths) == 2


async def test_torchserves_errors_have_its_shape(server: TensorServer, tmp_path: Path) -> None:
    async with served_before(server, tmp_path, "torchserve") as served:
        answer = await served.post("/predictions/m", b"x", {"Content-Type": "multipart/form-data"})
        assert answer.status == 400
        assert (answer.json["code"], answer.json["type"]) == (400, "invalid_request_error")
