"""Serves WebSockets on `/v1/responses`, which OpenAI's clients for agents open. Each message is a call, with the same
steps as `POST /v1/responses`: limits, caches, routing, metrics and log."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson
from multidict import CIMultiDict

from gateway.context import Handler, HeadMemo, RequestContext, resolve_response
from gateway.credentials import PROTOCOLS, keys_in_protocols
from gateway.dialects.json_body import dump_strict
from gateway.dialects.known import RESPONSES
from gateway.dialects.openai.responses_answers import PREFIX
from gateway.dialects.openai.responses_socket import (
    CANCEL,
    MAX_STREAMS,
    Create,
    FrameRefused,
    Outcome,
    Turns,
    answer_error_frame,
    event_frame,
    parse_message,
    prepared_events,
)
from gateway.errors import UpstreamStreamError
from gateway.messages import Closing, EventStream, Frame, FullBody, Response
from gateway.ports import Clock
from gateway.steps.error_boundary import Inflight
from gateway.streams import BufferedBody, close_body
from gateway.tasks import cancel_and_wait
from gateway.upstream.header_filter import FRAMING, HOP_BY_HOP, UPSTREAM_REQUEST_ID
from gateway.upstream.websocket import HANDSHAKE

LOG = logging.getLogger("nearhit")

MAX_WAITING = 16  # messages of one connection that wait for the call in progress
MAX_UNSENT = 16  # frames that wait for a slow client; then the answer is read no further
IDLE_S = 30 * 60.0  # without any message
MAX_AGE_S = 60 * 60.0  # as at OpenAI
LARGE_MESSAGE = 256 * 1024  # bytes; longer ones are parsed in another thread

# Headers of the handshake that mean nothing to the calls, or would mean the same call each time.
HANDSHAKE_ALONE = HOP_BY_HOP | FRAMING | HANDSHAKE | {"x-request-id", "idempotency-key", "origin", "prefer"}
BETA, SOCKET_BETA = "openai-beta", "responses_websockets"
# Headers of an error that the client gets in its frame.
TOLD = frozenset({"retry-after", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", UPSTREAM_REQUEST_ID})


class ResponsesSocket:
    """`ResponsesSocket` is one connection, as the `Duplex` that the client's frames are relayed to.

    Calls run one at a time, in the order of their messages. Closing the connection cancels the one in progress.
    """

    protocol = None

    def __init__(
        self, handshake: RequestContext, handler: Handler, clock: Clock, inflight: Inflight, *, max_body: int
    ) -> None:
        self._handshake = handshake
        self._headers = _headers_of_calls(handshake.headers)
        self._memo = HeadMemo()
        self._handler = handler
        self._clock = clock
        self._inflight = inflight
        self._max_body = max_body
        self._stopping = False
        self._turns = Turns(max_body)
        self._streams: set[str] = set()
        self._calls = 0
        self._waiting: deque[Frame] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._unsent: asyncio.Queue[str | Closing] = asyncio.Queue(MAX_UNSENT)
        self._call: asyncio.Task[None] | None = None
        self._serving = False
        self._cancels_next = False  # a cancel came before the call that it means had begun
        self._opened = asyncio.get_running_loop().time()
        self._worker = asyncio.create_task(self._run())

    async def send(self, frame: Frame) -> None:
        """Take a message of the client."""
        if self._is_cancel(frame):
            if self._call is not None:
                self._call.cancel()
            else:
                self._cancels_next = self._serving or bool(self._waiting)
            return
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(frame) > self._max_body:
            refused = FrameRefused(
                f"too many messages wait: expected at most {MAX_WAITING}, of {self._max_body} bytes together",
                code="too_many_messages",
                status=429,
            )
            await self._unsent.put(refused.frame())
            return
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._arrived.set()

    async def receive(self) -> Frame | Closing:
        return await self._unsent.get()

    async def drain(self) -> None:
        """End once the call in progress has ended. Waiting messages are dropped: their clients connect again."""
        self._stopping = True
        self._arrived.set()
        await asyncio.get_running_loop().create_future()  # the last frame is a `Closing`

    async def close(self, closing: Closing) -> None:
        await cancel_and_wait(self._worker)

    def _is_cancel(self, frame: Frame) -> bool:
        if not isinstance(frame, str) or len(frame) > 1024 or CANCEL not in frame:
            return False
        try:
            return parse_message(frame) == CANCEL
        except FrameRefused:
            return False

    async def _run(self) -> None:
        """Answer the messages one by one."""
        while not self._stopping:
            left_s = MAX_AGE_S - (asyncio.get_running_loop().time() - self._opened)
            if not self._waiting:
                self._arrived.clear()
                try:
                    async with asyncio.timeout(min(IDLE_S, left_s)):
                        await self._arrived.wait()
                except TimeoutError:
                    await self._unsent.put(Closing(1000, "no message came in time"))
                    return
                continue
            if left_s <= 0:
                old = FrameRefused(
                    "the connection is 60 minutes old: open another one", code="websocket_connection_limit_reached"
                )
                await self._unsent.put(old.frame())
                await self._unsent.put(Closing(1000, "the connection has reached its age limit"))
                return
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._serving = True
            await self._serve(frame)
            self._serving = self._cancels_next = False
        await self._unsent.put(Closing(1001, "the gateway stops"))

    async def _serve(self, frame: Frame) -> None:
        try:
            large = len(frame) > LARGE_MESSAGE
            message = await asyncio.to_thread(parse_message, frame) if large else parse_message(frame)
            if not isinstance(message, Create):
                return
            self._admit_stream(message.stream_id)
            await self._run_call(message)
        except FrameRefused as refused:
            await self._unsent.put(refused.frame())
        except Exception as error:
            LOG.error("internal error in a WebSocket", exc_info=error, extra={"fields": self._handshake.log_fields})
            failed = FrameRefused(
                f"internal error; the log has more under request id {self._handshake.id}",
                code="internal_error",
                status=500,
            )
            await self._unsent.put(failed.frame())

    async def _run_call(self, message: Create) -> None:
        """Answer a call in a task of its own, which a message of the client may cancel."""
        self._call = call = asyncio.create_task(self._answer(message))
        if self._cancels_next:
            call.cancel()
        try:
            await asyncio.wait((call,))
        finally:
            self._call = None
            await cancel_and_wait(call)
        if call.cancelled():
            raise FrameRefused(
                "the response was cancelled", code="response_cancelled", status=499, stream_id=message.stream_id
            )
        call.result()

    def _admit_stream(self, stream_id: str | None) -> None:
        """Raise `FrameRefused` if the connection has too many named streams. They share its order."""
        if stream_id is None or stream_id in self._streams:
            return
        if len(self._streams) >= MAX_STREAMS:
            raise FrameRefused(
                f"the connection has {MAX_STREAMS} values of 'stream_id': use one of them, or open another connection",
                code="websocket_stream_limit_reached",
                param="stream_id",
                stream_id=stream_id,
            )
        self._streams.add(stream_id)

    async def _answer(self, message: Create) -> None:
        self._calls += 1
        call_id = f"{self._handshake.id[:100]}-{self._calls}"
        body = self._turns.continued(message.body)
        encoded = self._encoded(body, message.stream_id)
        if len(encoded) > self._max_body:
            raise FrameRefused(
                f"the conversation is larger than {self._max_body} bytes (server.max_body)",
                code="request_too_large",
                status=413,
                stream_id=message.stream_id,
            )
        if not message.generates:
            await self._prepare(message, body, PREFIX + call_id.replace("-", ""), len(encoded))
            return
        request = self._request(call_id, encoded)
        outcome = None if message.is_stored else Outcome()
        answer = self._handler(request)
        self._inflight.count += 1
        try:
            response = await resolve_response(answer)
            try:
                await self._relay(request, response, message.stream_id, outcome)
            finally:
                await close_body(response.body)
        finally:
            self._inflight.count -= 1
        if outcome is not None and outcome.id is not None:
            self._turns.remember(outcome.id, body, outcome.output, len(encoded) + outcome.size)

    def _encoded(self, body: Mapping[str, Any], stream_id: str | None) -> bytes:
        """Return the body of a call. Earlier answers in it may have what JSON has not. Raise `FrameRefused`."""
        try:
            return dump_strict({**body, "stream": True})
        except orjson.JSONEncodeError:
            raise FrameRefused(
                "the conversation is nested too deeply", code="invalid_json", stream_id=stream_id
            ) from None

    async def _prepare(self, message: Create, body: Mapping[str, Any], answer_id: str, size: int) -> None:
        """Answer a call that generates nothing, and remember its items. No backend is called."""
        self._turns.remember(answer_id, body, (), size)
        for event in prepared_events(message.body, answer_id, int(self._clock.wall())):
            await self._send(event_frame(event, message.stream_id))

    def _request(self, call_id: str, body: bytes) -> RequestContext:
        first = self._handshake
        return RequestContext(
            request_id=call_id,
            method="POST",
            path=RESPONSES,
            query=first.query,
            headers=self._headers,
            body_source=BufferedBody(body),
            clock=self._clock,
            client_address=first.client_address,
            head=self._memo,
        )

    async def _relay(
        self, request: RequestContext, response: Response, stream_id: str | None, outcome: Outcome | None
    ) -> None:
        body = response.body
        if isinstance(body, EventStream):
            try:
                async for event in body.events:
                    await self._send(event_frame(event, stream_id))
                    if outcome is not None:
                        outcome.see(event)
            except UpstreamStreamError as error:
                raise FrameRefused(str(error), code="upstream_error", status=502, stream_id=stream_id) from None
            return
        if not isinstance(body, FullBody) or response.status < 400:
            raise FrameRefused(
                "the backend's answer has no events of the Responses API, so it can't be sent in frames",
                code="upstream_error",
                status=502,
                stream_id=stream_id,
            )
        told = {name.lower(): value for name, value in response.headers if name.lower() in TOLD}
        headers = {**told, "x-request-id": request.id}
        await self._send(answer_error_frame(response.status, body.data, headers, stream_id))

    async def _send(self, frame: str | None) -> None:
        if frame is not None:
            await self._unsent.put(frame)


def _headers_of_calls(handshake: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of a connection's calls: those of its handshake that are no part of it.

    Browsers send `Cache-Control: no-cache` and `Pragma` with every handshake, which says nothing about the calls.
    """
    left_out = HANDSHAKE_ALONE | ({"cache-control", "pragma"} if "pragma" in handshake else frozenset())
    headers = CIMultiDict((name, value) for name, value in handshake.items() if name.lower() not in left_out)
    betas = [each.strip() for each in headers.popall(BETA, [])]
    tokens = [token for each in betas for token in map(str.strip, each.split(",")) if not token.startswith(SOCKET_BETA)]
    if kept := ", ".join(filter(None, tokens)):
        headers[BETA] = kept
    keys = keys_in_protocols(handshake.get(PROTOCOLS, ""))
    if keys and "authorization" not in headers:
        headers["Authorization"] = f"Bearer {keys[0]}"  # of a browser, which can set no header
    headers["Content-Type"] = "application/json"
    headers["Accept"] = "text/event-stream"
    return headers
