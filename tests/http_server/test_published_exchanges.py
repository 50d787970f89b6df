"""What a real TensorFlow Serving said, replayed: exchanges that its own documentation shows, for want of the server.

Source: TensorFlow Serving, `tensorflow_serving/g3doc/api_rest.md` (Apache-2.0), section "Example", commit 00e459f1; the
model is half_plus_three of its test data. Bodies are to the byte as printed there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from tests.fixtures.gateways import Served, config_of, gateway_of

MODEL = "/v1/models/half_plus_three"
STATUS = b"""{
 "model_version_status": [
  {
   "version": "123",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    asked: bytes
    status: int
    answered: bytes
    kept: bool


EXCHANGES = [
    Exchange("GET", MODEL, b"", 200, STATUS, False),
    Exchange(
        "POST",
        MODEL + ":predict",
        b'{"instances": [1.0,2.0,5.0]}',
        200,
        b'{\n    "predictions": [3.5, 4.0, 5.5]\n}\n',
        True,
    ),
    Exchange(
        "POST",
        MODEL + ":regress",
        b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]}',
        200,
        b'{\n    "results": [3.5, 4.0]\n}\n',
        True,
    ),
    Exchange(
        "POST",
        "/v1/models/half:predict",
        b'{"instances": [1.0,5.0]}',
        404,
        b'{ "error": "Servable not found for request: Latest(half)" }\n',
        False,
    ),
]


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[tuple[Served, list[str]]]:
    """A gateway before a server that answers as recorded, and what that was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        exchange = next(each for each in EXCHANGES if (each.method, each.path) == (request.method, request.path))
        return web.Response(status=exchange.status, body=exchange.answered, content_type="application/json")

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    config = config_of(tmp_path, {"main": {"adapter": "tfserving", "url": url}})
    async with gateway_of(config) as served:
        yield served, asked
    await runner.cleanup()


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: f"{exchange.method} {exchange.path}")
async def test_what_the_server_said_comes_through_to_the_byte_and_is_kept_if_it_is_an_answer(
    recorded: tuple[Served, list[str]], exchange: Exchange
) -> None:
    served, asked = recorded
    for _ in range(2):
        if exchange.method == "GET":
            answer = await served.get(exchange.path)
        else:
            answer = await served.post(exchange.path, exchange.asked)
        assert (answer.status, answer.body) == (exchange.status, exchange.answered)
    assert asked == [exchange.path] * (1 if exchange.kept else 2)
