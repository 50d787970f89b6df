"""`nearhit stub` is a fake endpoint without a model, to try the gateway with.

It speaks OpenAI's chat completions, and every answer says that it is fake. It stores nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import uvloop
from aiohttp import web

from gateway.cli.output import GOOD, print_warning
from gateway.cli.parser import Command, address, duration
from gateway.cli.signals import wait_for_signal
from gateway.config.units import Address
from gateway.errors import StartupError

LISTEN = Address("127.0.0.1", 9001)
MAX_BODY = 10 * 2**20
MAX_ECHO_CHARS = 200  # of the question that an answer repeats


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--listen 127.0.0.1:9001 --delay 300ms",
        about="The stub answers like OpenAI's chat completions, streams included. Each fake answer names the model of "
        "the request and repeats the question. Use it to try policies, limits and clients. It stores nothing, and "
        "listens only on this machine unless --listen says otherwise.",
    )
    command.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=address,
        default=LISTEN,
        help="port 0: any free port; default: %(default)s",
    )
    command.add_argument(
        "--delay",
        metavar="DURATION",
        type=duration,
        default=0.0,
        help="pause before each answer, such as 300ms; default: 0s",
    )


def run(arguments: argparse.Namespace) -> int:
    uvloop.run(serve(arguments.listen, arguments.delay))
    return GOOD


async def serve(listen: Address, delay_s: float) -> None:
    """Serve until a signal. Raises `StartupError`."""
    application = web.Application(client_max_size=MAX_BODY)
    application.add_routes(
        [
            web.get("/v1/models", _models),
            web.post("/v1/chat/completions", _Chat(delay_s).answer),
            web.route("*", "/{path:.*}", _not_found),
        ]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, listen.host, listen.port)
        try:
            await site.start()
        except OSError as error:
            raise StartupError(f"cannot listen on {listen} (--listen): {error.strerror}") from None
        host, port = runner.addresses[0][:2]
        print_warning(f"nearhit stub serves http://{Address(host, port)}/v1, without a model")
        await wait_for_signal()
    finally:
        await runner.cleanup()


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "nearhit"}]})


async def _not_found(request: web.Request) -> web.Response:
    path = request.path[:MAX_ECHO_CHARS]
    message = f"the stub answers POST /v1/chat/completions and GET /v1/models, not {request.method} {path}"
    return web.json_response({"error": _error(message, code="not_found")}, status=404)


def _error(message: str, code: str | None = None) -> dict[str, str | None]:
    return {"message": message, "type": "invalid_request_error", "param": None, "code": code}


@dataclass(slots=True)
class _Chat:
    delay_s: float
    requests: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = orjson.loads(await request.read())
            question = question_of(body)
        except (orjson.JSONDecodeError, ValueError):
            return web.json_response({"error": _error("expected JSON with model and messages")}, status=400)
        self.requests += 1
        await asyncio.sleep(self.delay_s)
        model = str(body.get("model", "stub"))
        text = f"{model} would answer here; this is a stub. You asked: {question[:MAX_ECHO_CHARS]}"
        about = {"id": f"chatcmpl-stub-{self.requests}", "created": int(time.time()), "model": model}
        usage = _usage(body["messages"], text)
        if not body.get("stream"):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            return web.json_response({**about, "object": "chat.completion", "choices": [choice], "usage": usage})
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await _stream(request, about, text, usage if wants_usage else None)


def question_of(body: Any) -> str:
    """Return the text of the last message. Raises `ValueError` if there is no message."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise ValueError
    content = messages[-1].get("content")
    if isinstance(content, list):  # a list of parts, some of them text
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _usage(messages: Sequence[Any], text: str) -> dict[str, int]:
    """Return the usage, with one token for each word."""
    prompt_tokens, answered = len(orjson.dumps(messages).split()), len(text.split())
    return {"prompt_tokens": prompt_tokens, "completion_tokens": answered, "total_tokens": prompt_tokens + answered}


async def _stream(
    request: web.Request, about: Mapping[str, Any], text: str, usage: Mapping[str, int] | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(choices: list[dict[str, Any]], **more: Any) -> None:
        event = {**about, "object": "chat.completion.chunk", "choices": choices, **more}
        await response.write(b"data: " + orjson.dumps(event) + b"\n\n")

    await send([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for word in text.split(" "):
        await send([{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}])
    await send([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    if usage is not None:
        await send([], usage=usage)
    await response.write(b"data: [DONE]\n\n")
    return response
