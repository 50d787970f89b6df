"""An HTTP endpoint that speaks one of the dialects, and the pass-through of every path that no dialect knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from yarl import URL

from gateway.adapters.gate import Gate
from gateway.adapters.gated import Gated
from gateway.adapters.http_base_url import BaseUrl
from gateway.adapters.http_client import HttpAnswer, HttpClient, Outward
from gateway.adapters.http_exchange import MAX_WHOLE_BYTES, Exchange
from gateway.adapters.http_headers import (
    NOT_RETURNED,
    NOT_SENT,
    OURS_RETURNED,
    Passing,
    named_by_connection,
    own_headers,
    translated_headers,
)
from gateway.adapters.http_own_client import OwnClient
from gateway.adapters.http_session import Session
from gateway.adapters.http_tensors import about_a_model, in_stored_form
from gateway.adapters.http_translation import in_the_clients_dialect
from gateway.adapters.http_websocket import HttpWebSocket, open_websocket
from gateway.config.backends import Timeouts
from gateway.credentials import SECRET
from gateway.dialects.anthropic import speaks_anthropic
from gateway.dialects.known import MODELS, understands
from gateway.dialects.translation import TRANSLATIONS
from gateway.dialects.translation.models import openai_model
from gateway.errors import BackendError, BadRequest
from gateway.http1.errors import ConnectTimedOut, ExchangeFailed, TimedOut
from gateway.http1.heads import header_lines, request_head
from gateway.messages import Begun, Call, Request, Response, Tunnel, Whole
from gateway.ports import Clock, Outgoing, Translated
from gateway.routing.naming import ModelNames
from gateway.routing.retry import IDEMPOTENT

NOT_FOUND = 404
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
        client: HttpClient,
        session: Session,
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
        self._base = BaseUrl(name, url, speaks)
        self.target = self._base.target
        self._client = client
        self._session = session
        self._models = models
        self._api_key = api_key
        not_sent = NOT_SENT | (frozenset() if forward_credentials and api_key is None else SECRET)
        self._sent = Passing(not_sent)
        self._sent_when_read = Passing(not_sent | ENCODINGS)
        self._returned = Passing(NOT_RETURNED, prefix=OURS_RETURNED)
        self._timeouts = timeouts
        self._clock = clock
        super().__init__(Gate(name, max_concurrency, timeouts.first_byte, clock, adaptive=adaptive))

    async def send(self, request: Request) -> Response:
        call = request.call
        translated = None if call is None or understands(self.speaks, call.dialect) else self._translated(call)
        if call is None and request.headers.get("upgrade", "").lower() == "websocket":
            upgraded = await self._websocket(request)
            if upgraded is not None:
                return upgraded
        begun = request.begun
        place = await self._gate.enter(request) if begun is None else begun.place
        try:
            sent = self.outward(request, translated)
            asked = await self._ask(request, sent, begun)
        except BaseException as error:
            if isinstance(error, BackendError) and error.status == 504:
                place.overdue()
            place.leave()
            raise
        place.answered(request, asked.status)
        exchange = Exchange(self.name, asked, place, self._timeouts, self._returned)
        try:
            answer = await exchange.answer(parse=call is not None)
            if asked.status == NOT_FOUND and call is not None:
                self._base.not_found(request, sent, answer)
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
        url = URL(self._base.origin + self.target(request.path, request.query), encoded=True)
        try:
            async with asyncio.timeout(self._timeouts.first_byte):
                socket = await open_websocket(self._session.get(), url, self._headers(request), request)
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
            headers = self._headers(request, foreign=self._theirs(request))
            answer = await self._ask(request, self._listing(headers, ALL_MODELS.get(self.speaks, "")))
            try:
                listed = orjson.loads(await self._whole(answer))
            finally:
                answer.close()
            if answer.status == 200:
                return [openai_model(model) for model in listed["data"] if isinstance(model, dict)]
        except (orjson.JSONDecodeError, KeyError, TypeError, ExchangeFailed):
            pass
        finally:
            place.leave()
        raise BackendError(f"backend '{self.name}' does not list its models")

    async def _whole(self, answer: HttpAnswer) -> bytes:
        """All of a body that is not large. Raises `ExchangeFailed`."""
        due, data = self._due(self._timeouts.first_byte), bytearray()
        while piece := await answer.read(due):
            data += piece
            if len(data) > MAX_WHOLE_BYTES:
                raise ExchangeFailed("the answer is too large")
        return bytes(data)

    async def ready(self) -> bool:
        """Whether the endpoint accepts connections; what it answers says nothing without credentials."""
        try:
            answer = await self._client.ask(self._listing([]), self._due(self._timeouts.connect))
        except ExchangeFailed:
            return False
        answer.close()
        return answer.status < 500

    async def close(self) -> None:
        await self._client.close()
        await self._session.close()

    def _listing(self, headers: list[tuple[str, str]], query: str = "") -> Outward:
        return Outward("GET", self.target(MODELS, query), headers)

    async def _ask(self, request: Request, sent: Outward, begun: Begun | None = None) -> HttpAnswer:
        """Status and headers of the answer. Raises `BackendError`, and what the request's body raises."""
        uploads = request.call is None and sent.body != b""
        try:
            if begun is not None:
                return await begun.resumed(sent, begun.due)
            return await self._client.ask(sent, self._due(self.first_byte_s(uploads=uploads)))
        except (TimedOut, ConnectTimedOut) as error:
            said = f"backend '{self.name}' sent no answer in time"
            raise BackendError(said, status=504, sent=error.sent) from None
        except ExchangeFailed as error:
            raise BackendError(f"backend '{self.name}' cannot be reached ({error})", sent=error.sent) from None
        except ValueError as error:
            raise BadRequest(str(error)) from None

    def outward(self, request: Request, translated: Translated | None = None) -> Outward:
        """As `send` sends it. Raises `BadRequest`."""
        call, headers = request.call, self._headers(request, foreign=translated is not None)
        if call is None:
            return self._passed_on(request, headers)
        sent = self._outgoing(request, call) if translated is None else translated.outgoing
        if sent.headers:
            instead = {name.lower() for name, _ in sent.headers}
            headers = [*(h for h in headers if h[0].lower() not in instead), *sent.headers]
        query = request.query if translated is None else ""
        return Outward(request.method, self.target(sent.path, query), headers, sent.body)

    def _passed_on(self, request: Request, headers: list[tuple[str, str]]) -> Outward:
        """What no dialect knows. A body that is on its way goes on as it comes."""
        source, method = request.source, request.method
        path = about_a_model(request.path, self._models) if self.speaks == "kserve" else request.path
        target, body = self.target(path, request.query), source.taken
        if body is not None:
            return Outward(method, target, headers, body, repeatable=not body or method in IDEMPOTENT)
        length = request.headers.get("content-length", "")
        known = int(length) if length.isascii() and length.isdigit() else None
        return Outward(method, target, headers, source.stream() or b"", known, repeatable=False)

    def _due(self, limit_s: float) -> float:
        return asyncio.get_running_loop().time() + limit_s

    def _outgoing(self, request: Request, call: Call) -> Outgoing:
        model, kept = self._models.sent_for(call.model), bool(request.fingerprint) or request.metered
        return call.dialect.outgoing(request.path, call, model=model, kept=kept)

    def _theirs(self, request: Request) -> bool:
        """Whether a request that no dialect reads comes from a client of another one."""
        return speaks_anthropic(request.headers) != (self.speaks == "anthropic")

    def _headers(self, request: Request, *, foreign: bool = False) -> list[tuple[str, str]]:
        """`foreign`: they are another dialect's, and are put in words of this one."""
        read_here = request.call is not None  # the answer will be, and the request's body was already decoded
        passing = self._sent_when_read if read_here else self._sent
        headers = passing.of(request.headers.items(), named_by_connection(request.headers))
        if foreign:
            headers = translated_headers(headers, self.speaks)
        return headers + self._added(headers, read_here=read_here)

    def _added(self, headers: list[tuple[str, str]], *, read_here: bool) -> list[tuple[str, str]]:
        added = own_headers(headers, self.speaks, self._api_key)
        return [*added, ("Accept-Encoding", "identity")] if read_here else added

    # What is sent in one step, see `gateway.backends.direct_call`.

    def read(self, answer: HttpAnswer) -> Response:
        """What `send` makes of a whole answer to a call, with status 200 and no stream, that is kept as it was sent."""
        headers = self._returned.of(answer.headers, answer.noted.get("connection"))
        return Response(200, tuple(headers), Whole(answer.take()))

    # What is sent without the stages, see `gateway.data_port.straight`.

    @property
    def kept_connections(self) -> OwnClient | None:
        """None: its client does not say."""
        return self._client if isinstance(self._client, OwnClient) else None

    @property
    def gate(self) -> Gate:
        return self._gate

    @property
    def timeouts(self) -> Timeouts:
        return self._timeouts

    def first_byte_s(self, *, uploads: bool) -> float:
        """How long it may take to begin its answer. `uploads`: what no dialect knows has a body."""
        return self._timeouts.total if uploads else self._timeouts.first_byte

    def model_for(self, asked: str) -> str | None:
        """None: the client's own name stays."""
        return self._models.sent_for(asked)

    def head(
        self, method: str, path: str, query: str, headers: Mapping[str, str], *, read_here: bool
    ) -> tuple[bytes, bytes]:
        """The head of a request as `send` writes it, in two parts: the client's headers that trace it go between them,
        and what frames it behind them. `headers`: without either. Raises `BadRequest`, `ValueError`."""
        client = self.kept_connections
        assert client is not None
        kept = (self._sent_when_read if read_here else self._sent).of(headers.items(), named_by_connection(headers))
        path = path if read_here or self.speaks != "kserve" else about_a_model(path, self._models)
        before = request_head(method, self.target(path, query), client.authority, kept, "")
        return before[:-2], header_lines(self._added(kept, read_here=read_here)).encode("utf-8", "surrogateescape")
