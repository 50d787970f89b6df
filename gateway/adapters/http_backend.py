"""An HTTP endpoint that speaks one of the dialects, and the pass-through of every path that no dialect knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import orjson
from yarl import URL

from gateway.adapters.gate import Gate
from gateway.adapters.gated import Gated
from gateway.adapters.http_exchange import Exchange
from gateway.adapters.http_headers import (
    NOT_SENT,
    own_headers,
    request_headers,
    translated_headers,
)
from gateway.adapters.http_session import ASKED, Connection
from gateway.adapters.http_tensors import about_a_model, in_stored_form
from gateway.adapters.http_translation import in_the_clients_dialect
from gateway.adapters.http_websocket import HttpWebSocket, open_websocket
from gateway.config.backends import Timeouts
from gateway.credentials import SECRET
from gateway.dialects.anthropic import speaks_anthropic
from gateway.dialects.known import understands
from gateway.dialects.translation import TRANSLATIONS
from gateway.dialects.translation.models import openai_model
from gateway.errors import BackendError, BadRequest
from gateway.messages import Call, Request, Response, Tunnel
from gateway.ports import Clock, Outgoing, Translated
from gateway.routing.naming import ModelNames

ALL_MODELS = {"anthropic": "limit=1000"}  # theirs come in pages, of this many at most
ENCODINGS = frozenset({"accept-encoding", "content-encoding"})


class HttpBackend(Gated):
    """`speaks`: the name of the dialect that the endpoint understands. `forward_credentials`: the client's own
    credentials go upstream unless `api_key` replaces them."""

    http = True

    def __init__(
        self,
        name: str,
        url: str,
        *,
        speaks: str = "openai",
        session: aiohttp.ClientSession,
        models: ModelNames,
        api_key: str | None,
        forward_credentials: bool,
        max_concurrency: int,
        timeouts: Timeouts,
        clock: Clock,
        adaptive: bool = True,
    ) -> None:
        self.name = name
        self.speaks = speaks
        base = url.rstrip("/")
        self._root = base.removesuffix("/v1")  # what stands for /
        # What stands for /v1: OpenAI's is part of the URL that people configure, and may be another path there.
        self._base = base if speaks == "openai" else f"{self._root}/v1"
        self._session = session
        self._models = models
        self._api_key = api_key
        self._not_sent = NOT_SENT | (frozenset() if forward_credentials and api_key is None else SECRET)
        self._not_sent_when_read = self._not_sent | ENCODINGS
        self._timeouts = timeouts
        self._clock = clock
        super().__init__(Gate(name, max_concurrency, timeouts.first_byte, clock, adaptive=adaptive))

    def url(self, path: str, query: str) -> URL:
        """`/v1/...` goes below the configured URL, everything else below its root; path and query as sent."""
        if not path.startswith("/") or "#" in path + query:  # yarl would drop what follows the #
            raise BadRequest(f"the request target {path[:100]!r} is not a path with a query")
        target = self._base + path[3:] if path == "/v1" or path.startswith("/v1/") else self._root + path
        return URL(f"{target}?{query}" if query else target, encoded=True)

    async def send(self, request: Request) -> Response:
        call = request.call
        translated = None if call is None or understands(self.speaks, call.dialect) else self._translated(call)
        if call is None and request.headers.get("upgrade", "").lower() == "websocket":
            upgraded = await self._websocket(request)
            if upgraded is not None:
                return upgraded
        place = await self._gate.enter(request)
        try:
            response = await self._open(request, translated)
        except BaseException as error:
            if isinstance(error, BackendError) and error.status == 504:
                place.overdue()
            place.leave()
            raise
        place.answered(request, response.status)
        exchange = Exchange(self.name, response, place, self._timeouts)
        try:
            answer = await exchange.answer(parse=request.call is not None)
            if translated is not None:
                return await in_the_clients_dialect(self.name, answer, translated)
            return answer if call is None else in_stored_form(self.name, call, answer)
        except BaseException:
            exchange.close()
            raise

    def _translated(self, call: Call) -> Translated:
        """Raises `BadRequest`."""
        translation = TRANSLATIONS.get((call.dialect.name, self.speaks))
        if translation is None:
            raise BadRequest(f"backend '{self.name}' speaks {self.speaks}, and cannot be asked by {call.dialect.name}")
        return translation(call, model=self._models.sent_for(call.model), created=int(self._clock.wall()))

    async def _websocket(self, request: Request) -> Response | None:
        """None where the endpoint does not take it up, as it may (RFC 9110 section 7.8): it is then asked without,
        so that the client gets what it says to that."""
        place = await self._gate.enter(request)
        place.lasting = True
        url, headers = self.url(request.path, request.query), self._headers(request)
        try:
            async with asyncio.timeout(self._timeouts.first_byte):
                socket = await open_websocket(self._session, url, headers, request)
        except BaseException as error:
            place.leave()
            if isinstance(error, aiohttp.WSServerHandshakeError):
                return None
            if isinstance(error, TimeoutError):
                raise BackendError(f"backend '{self.name}' sent no answer in time", status=504) from None
            if isinstance(error, aiohttp.ClientError | OSError):
                raise BackendError(f"backend '{self.name}' cannot be reached ({type(error).__name__})") from None
            raise
        return Response(101, (), Tunnel(HttpWebSocket(socket, place)))

    async def models(self, request: Request) -> list[dict[str, Any]]:
        place = await self._gate.enter(request)
        try:
            async with await self._open(request, listing=True) as response:
                async with asyncio.timeout(self._timeouts.first_byte):
                    listed = orjson.loads(await response.read())
                if response.status == 200:
                    return [openai_model(model) for model in listed["data"] if isinstance(model, dict)]
        except (orjson.JSONDecodeError, KeyError, TypeError, aiohttp.ClientError, TimeoutError):
            pass
        finally:
            place.leave()
        raise BackendError(f"backend '{self.name}' does not list its models")

    async def ready(self) -> bool:
        """Whether the endpoint accepts connections; what it answers says nothing without credentials."""
        try:
            async with asyncio.timeout(self._timeouts.connect):
                async with self._session.get(self.url("/v1/models", ""), allow_redirects=False) as response:
                    return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        await self._session.close()

    async def _open(
        self, request: Request, translated: Translated | None = None, *, listing: bool = False
    ) -> aiohttp.ClientResponse:
        """Status and headers of the answer. `listing`: of the list of models. Raises `BackendError`."""
        call = None if listing else request.call
        foreign = self._theirs(request) if listing else translated is not None
        headers = self._headers(request, foreign=foreign)
        method, target, query = request.method, request.path, request.query
        data: bytes | AsyncIterator[bytes] | None = None
        if listing:
            method, target, query = "GET", "/v1/models", ALL_MODELS.get(self.speaks, "")
        elif call is not None:
            sent = self._outgoing(request, call) if translated is None else translated.outgoing
            target, data = sent.path, sent.body
            query = query if translated is None else ""
            if sent.headers:
                instead = {name.lower() for name, _ in sent.headers}
                headers = [*(h for h in headers if h[0].lower() not in instead), *sent.headers]
        else:
            data = request.source.stream()
            target = about_a_model(target, self._models) if self.speaks == "kserve" else target
        url, connection = self.url(target, query), Connection()
        uploads = call is None and data is not None
        limit = self._timeouts.total if uploads else self._timeouts.first_byte
        attempt = partial(self._session.request, method, url, headers=headers, data=data or None, allow_redirects=False)
        ASKED.set(connection)
        try:
            async with asyncio.timeout(limit):
                try:
                    return await attempt()
                except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                    # A kept connection that the server closed in the same moment: that is no failure of the endpoint,
                    # and calls may be repeated. On a fresh one it is one, and whoever asks may ask again.
                    if uploads or not connection.kept:
                        raise
                    return await attempt()
        except TimeoutError as error:
            connected = not isinstance(error, aiohttp.ConnectionTimeoutError)
            raise BackendError(f"backend '{self.name}' sent no answer in time", status=504, sent=connected) from None
        except (aiohttp.ClientError, OSError) as error:
            said = f"backend '{self.name}' cannot be reached ({type(error).__name__})"
            raise BackendError(said, sent=not isinstance(error, aiohttp.ClientConnectorError)) from None

    def _outgoing(self, request: Request, call: Call) -> Outgoing:
        model, kept = self._models.sent_for(call.model), bool(request.fingerprint) or request.metered
        return call.dialect.outgoing(request.path, call, model=model, kept=kept)

    def _theirs(self, request: Request) -> bool:
        """Whether a request that no dialect reads comes from a client of another one."""
        return speaks_anthropic(request.headers) != (self.speaks == "anthropic")

    def _headers(self, request: Request, *, foreign: bool = False) -> list[tuple[str, str]]:
        """`foreign`: they are another dialect's, and are put in words of this one."""
        read_here = request.call is not None  # the answer will be, and the request's body was already decoded
        headers = request_headers(request.headers, self._not_sent_when_read if read_here else self._not_sent)
        if foreign:
            headers = translated_headers(headers, self.speaks)
        headers += own_headers(headers, self.speaks, self._api_key)
        if read_here:
            headers.append(("Accept-Encoding", "identity"))
        elif "content-length" in request.headers:
            headers.append(("Content-Length", request.headers["content-length"]))
        return headers
