"""Call an HTTP endpoint that speaks one of the dialects, and pass requests on unknown paths through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from gateway.calls import Call, Dialect, Outgoing, TranslatedCall
from gateway.config.backends import OpenAIBackendConfig
from gateway.config.schema import ServerConfig
from gateway.context import RequestContext
from gateway.credentials import NO_CHANGES, TRACING, CredentialRules
from gateway.dialect_traits import Endpoint
from gateway.dialects.known import DEFAULT, DIALECTS, MODELS, accepts, answers_client, client_of
from gateway.dialects.model_objects import neutral_model
from gateway.dialects.translation.neutral import translation_between
from gateway.errors import BackendError, BadRequest, MalformedResponse, UpstreamStreamError
from gateway.messages import Event, EventStream, FullBody, Response, Tunnel
from gateway.ports import Clock
from gateway.streams import StreamObserver, close_body, with_observer
from gateway.transmission import Transmission
from gateway.upstream.additions import (
    LIMIT,
    OLD_LIMIT,
    REFUSALS,
    USAGE,
    RefusedAdditions,
    additions,
    refused_addition,
    without_additions,
)
from gateway.upstream.aiohttp_session import CURRENT_HANDSHAKE, AiohttpSession, Handshake
from gateway.upstream.base_url import BaseUrl
from gateway.upstream.building import model_names
from gateway.upstream.concurrency_limiter import ConcurrencyPermit, LimitedBackend
from gateway.upstream.content_decoding import coding_of, decode_whole
from gateway.upstream.header_filter import (
    GATEWAY_PREFIX,
    REQUEST_EXCLUDED,
    RESPONSE_EXCLUDED,
    HeaderFilter,
    ProviderIds,
    connection_header,
    own_headers,
    translated_headers,
    with_key_of_query,
    without_admitted_origin,
)
from gateway.upstream.http1.errors import ConnectTimedOut, ExchangeFailed, NoCredentials, TimedOut
from gateway.upstream.http_client import (
    AZURE_KEY,
    PROXY_AUTHENTICATION_REQUIRED,
    HttpClient,
    Identity,
    Opening,
    UpstreamRequest,
    UpstreamResponse,
    failure_of,
    proxy_refused,
    refusal_of,
)
from gateway.upstream.http_client import REFUSALS as CREDENTIAL_REFUSALS
from gateway.upstream.response_reader import MAX_WHOLE_BYTES, ResponseReader, is_event_stream, without_mark
from gateway.upstream.retry import is_repeatable
from gateway.upstream.websocket import HttpWebSocket, open_websocket, protocols_of


# For dialects whose stored form differs from the wire form.
def to_stored_form(backend: str, call: Call, answer: Response) -> Response:
    """Return the response in its stored form. Raise `BackendError` if it cannot be parsed."""
    if answer.status != 200 or not isinstance(answer.body, FullBody):
        return answer
    try:
        stored = call.dialect.stored_form(call, answer.body.data, CIMultiDict(answer.headers))
    except (MalformedResponse, BadRequest) as error:
        raise BackendError(f"backend '{backend}': {error}", retryable=False) from None
    return answer if stored is answer.body.data else replace(answer, body=FullBody(stored))


# Responses in the backend's dialect are translated into the client's.
async def translate_response(name: str, response: Response, translated: TranslatedCall) -> Response:
    """Return the translated response. Raise `BackendError` if it cannot be parsed. `name` is the backend's."""
    body = response.body
    try:
        if isinstance(body, EventStream):
            return replace(response, body=EventStream(with_observer(body.events, _translator(translated))))
        if isinstance(body, FullBody):
            data = translated.whole(body.data) if response.status == 200 else None
            return _json(response, translated.error(response.status, body.data) if data is None else data)
    except MalformedResponse as error:
        raise BackendError(f"backend '{name}': {error}", retryable=False) from None
    await close_body(body)
    raise BackendError(f"backend '{name}' sent a response that is too large to be translated", retryable=False)


def _json(response: Response, data: bytes) -> Response:
    headers = tuple(header for header in response.headers if header[0].lower() != "content-type")
    return replace(response, headers=(*headers, ("Content-Type", "application/json")), body=FullBody(data))


def _translator(translated: TranslatedCall) -> StreamObserver[Event]:
    """Return an observer that passes on the events in the client's dialect."""

    def on_items(events: Sequence[Event]) -> Sequence[Event]:
        try:
            return [each for event in events for each in translated.events(event)]
        except MalformedResponse as error:
            raise UpstreamStreamError(str(error)) from None

    return StreamObserver(on_items)


def _is_read(answer: UpstreamResponse, *, streams: bool) -> bool:
    """Return whether a body that has arrived has to be read: a stream, or a body in a coding."""
    if "content-encoding" in answer.header_map:
        return True
    return answer.status == 200 and (streams or is_event_stream(answer.header_map))


if TYPE_CHECKING:
    from gateway.dialects.renamed_models import Renaming

LOG = logging.getLogger("nearhit.upstreams")
NOT_FOUND = 404

AZURE_URL = "gateway.features.azure.base_url:AzureUrl"
RENAMING = "gateway.dialects.renamed_models:Renaming"  # imported for a backend with names that have no wildcard

MAX_HANDSHAKE_S = 60.0  # of a WebSocket, behind which no model thinks yet
CLUES = REFUSALS | {NOT_FOUND}  # refusals that may be about what the gateway itself sent

IDENTITY = (("Accept-Encoding", "identity"),)
ENCODINGS = frozenset({"accept-encoding", "content-encoding"})


@dataclass(frozen=True, slots=True)
class Account:
    """The credentials that an endpoint gets: the gateway's key or `identity`, or those of the client."""

    api_key: str | None = None
    forwards: bool = True  # the client's credentials go upstream, unless those of the gateway replace them
    rules: CredentialRules = NO_CHANGES  # which headers and parameters are credentials of clients
    identity: Identity | None = None  # the client of the backend asks it, too

    @property
    def is_own(self) -> bool:
        """Whether the gateway has credentials of its own."""
        return self.api_key is not None or self.identity is not None


class HttpBackend(LimitedBackend):
    """`HttpBackend` calls one HTTP endpoint that speaks the dialect `section.adapter`.

    `server` gives the bounds on streams, and the origins of web pages that the gateway admits, of which the endpoint is
    not told.
    """

    http = True

    def __init__(
        self,
        name: str,
        url: str,
        section: OpenAIBackendConfig,
        *,
        client: HttpClient,
        session: AiohttpSession,
        account: Account,
        server: ServerConfig,
        clock: Clock,
    ) -> None:
        super().__init__(name, section, clock)
        self._silence_s = server.stream_keep_alive
        self._max_event = server.max_event
        self.speaks: str = section.adapter
        self._own_dialect = DIALECTS[self.speaks]
        self._endpoint = self._own_dialect.endpoint
        self._is_azure = section.api_version is not None
        if section.api_version is not None:
            self._endpoint = replace(self._endpoint, key_header=AZURE_KEY)
            self._base: BaseUrl = resolve_name(AZURE_URL)(name, url, section.api_version)
        elif self._endpoint.base_url is not None:
            self._base = resolve_name(self._endpoint.base_url)(name, url)
        else:
            self._base = BaseUrl(name, url, is_versioned=self._endpoint.is_versioned)
        self.target = self._base.target
        self._client = client
        self._session = session
        self._models = model_names(section)
        self._exact_names = self._models.exact
        self._renaming: Renaming | None = None
        if self._exact_names:
            self._renaming = resolve_name(RENAMING)(self._exact_names)
        self._api_key = account.api_key
        self._identity = account.identity
        self._withholds = None if account.forwards and not account.is_own else account.rules
        self._request_filter = HeaderFilter(REQUEST_EXCLUDED, withheld=self._withholds)
        self._parsed_request_filter = HeaderFilter(REQUEST_EXCLUDED | ENCODINGS, withheld=self._withholds)
        self._provider_ids = ProviderIds()
        self._response_filter = HeaderFilter(RESPONSE_EXCLUDED, prefix=GATEWAY_PREFIX)
        self._timeouts = section.timeouts
        self._clock = clock
        self._cache_control = section.cache_control
        self._fixed = tuple(section.headers.items())
        self._admitted_origins = frozenset(server.cors.origins)
        self._refused_additions = RefusedAdditions(frozenset() if section.stream_usage else frozenset({USAGE}))
        self._reasoning_content = section.reasoning_content
        self._unsigned_thinking = section.unsigned_thinking

    async def send(self, request: RequestContext) -> Response:
        """Send the request and return the response. Raise `BadRequest` if the endpoint's dialect cannot express it."""
        call, translated = request.call, None
        if call is not None:
            translated = None if accepts(self.speaks, call.dialect.name) else self._translate(call)
        elif request.opens_websocket:
            return await self._websocket(request)
        elif self._renaming is not None and request.method == "POST":
            await request.body_source.buffer(whole=True)  # its model may have another name upstream
        if call is None and request.body_source.buffered_body is None:  # the body streams
            permit = await self._limiter.acquire_client_paced(request)
        else:
            permit = self._limiter.acquire_nowait(request) or await self._limiter.acquire(request)
        try:
            sent = self.upstream_request(request, translated)
            due, end = self._deadlines(request, sent, permit)
            transmission = request.work.transmission
            answer = await (
                self._client.send(sent, due) if transmission is None else self._record(transmission, sent, due)
            )
        except BaseException as error:
            failure = self._to_gateway_error(error)
            if isinstance(failure, BackendError) and failure.status == 504:
                permit.on_timeout()
            permit.release()
            if failure is error:
                raise
            raise failure from None
        permit.on_response(request, answer.status)
        try:
            response = await self._read(request, answer, permit, end)
            if response.status in CLUES and (again := await self._on_refusal(request, sent, response)) is not None:
                return again
            if translated is not None:
                return await translate_response(self.name, response, translated)
            return response if call is None or not call.dialect.reforms else to_stored_form(self.name, call, response)
        except BackendError as error:  # the provider may have made an answer, and billed it
            error.headers += self._provider_ids.header(answer.headers)
            raise

    async def _on_refusal(self, request: RequestContext, sent: UpstreamRequest, refusal: Response) -> Response | None:
        """Return the response to the call once the gateway's own part in its refusal is mended, or None if it
        has no part in it."""
        if request.call is None:
            return None
        if refusal.status != NOT_FOUND:
            return await self._without_addition(request, sent, refusal)
        self._base.on_not_found(request, sent, refusal)
        return None

    async def _without_addition(
        self, request: RequestContext, sent: UpstreamRequest, refusal: Response
    ) -> Response | None:
        """Send a call once more without the field of the gateway that the endpoint refuses. Return None if it names
        none."""
        call, body = request.call, sent.body
        assert call is not None and isinstance(body, bytes)
        translated = not accepts(self.speaks, call.dialect.name)
        field = refused_addition(refusal.body, additions(call, body, translated=translated))
        if field is None:
            return None
        model = self._model_of(call)
        self._refused_additions.remember(model, field)  # at once, so that the next call goes without it
        try:
            response = await self.send(request)
        except BaseException:
            self._refused_additions.forget(model, field)
            raise
        if field == LIMIT and response.status in REFUSALS and refused_addition(response.body, {OLD_LIMIT}):
            self._refused_additions.forget(model, field)  # its value is refused, not its name
            return None
        fields = {**request.log_fields, "backend": self.name, "model": model, "field": field}
        LOG.warning("the backend refuses a field of the gateway: it is left out from now on", extra={"fields": fields})
        return response

    def _model_of(self, call: Call) -> str:
        return self._models.upstream_name(call.model) or call.model

    async def _record(self, transmission: Transmission, sent: UpstreamRequest, due: float) -> UpstreamResponse:
        """Send a request, and record whether a byte of it may have reached the endpoint."""
        before, transmission.sent = transmission.sent, True
        try:
            return await self._client.send(sent, due)
        except ExchangeFailed as error:
            transmission.sent = before or error.sent
            raise

    async def _read(
        self, request: RequestContext, answer: UpstreamResponse, permit: ConcurrencyPermit, end: float
    ) -> Response:
        """Return the response once its first byte, or all of it, has arrived. `_deadlines` explains `end`."""
        call, memo = request.call, answer.memo
        parse = call is not None
        streams = call is not None and call.stream
        if answer.whole and not (parse and _is_read(answer, streams=streams)):
            headers, data = memo.get(parse) if memo is not None else None, answer.take()
            if parse:
                data = without_mark(data)
            response = Response(answer.status, headers or self._headers_of(answer, parse=parse), FullBody(data))
            answer.close()
            permit.release()
            return response
        exchange = ResponseReader(self.name, answer, permit, self._timeouts, end, self._max_event, self._silence_s)
        try:
            return await exchange.answer(
                self._headers_of(answer, parse=parse),
                self._dialect_of(call),
                streams=streams,
                open_parts=call.dialect.open_parts(call) if streams and call is not None else None,
            )
        except BaseException:
            exchange.close()
            raise

    def _dialect_of(self, call: Call | None) -> Dialect | None:
        """Return the dialect of the endpoint's response to a call."""
        if call is None or accepts(self.speaks, call.dialect.name):
            return None if call is None else call.dialect
        return self._own_dialect

    def _headers_of(self, answer: UpstreamResponse, *, parse: bool) -> tuple[tuple[str, str], ...]:
        """Return the headers to forward. A body that is not decoded keeps its Content-Length.

        In a response to HEAD, the length is the only information about the body.
        """
        passed = self._response_filter.apply(answer.headers, answer.header_map.get("connection"))
        headers = (*passed, *self._provider_ids.header(answer.headers))
        if 300 <= answer.status < 400:
            headers = tuple(
                (name, self._base.location(value) if name.lower() == "location" else value) for name, value in headers
            )
        length = None if parse else answer.header_map.get("content-length")
        if length is not None:
            headers += (("Content-Length", length),)
        if answer.memo is not None:
            answer.memo[parse] = headers
        return headers

    def _deadlines(
        self, request: RequestContext, sent: UpstreamRequest, permit: ConcurrencyPermit
    ) -> tuple[float, float]:
        """Return the event-loop times by which the response must begin and end. `permit` was acquired just now."""
        call, now = request.call, asyncio.get_running_loop().time()
        uploads = (call is None or call.passes) and sent.body != b""
        end = now + request.calls.due - permit.acquired_at
        return min(now + (self._timeouts.total if uploads else self._timeouts.first_byte), end), end

    def _to_gateway_error(self, error: BaseException) -> BaseException:
        """Convert an error of the HTTP client to a gateway error; return any other error unchanged."""
        if isinstance(error, TimedOut | ConnectTimedOut):
            return BackendError(f"backend '{self.name}' sent no answer in time", status=504, sent=error.sent)
        if isinstance(error, NoCredentials):
            return BackendError(f"the gateway has no credentials for backend '{self.name}': {error}", sent=False)
        if isinstance(error, ExchangeFailed):
            return BackendError(f"backend '{self.name}' cannot be reached ({error})", sent=error.sent)
        return BadRequest(str(error)) if isinstance(error, ValueError) else error

    def _translate(self, call: Call) -> TranslatedCall:
        """Translate the call into the endpoint's dialect. Raise `BadRequest`."""
        translation = translation_between(call.dialect, self._own_dialect)
        if translation is None:
            raise BadRequest(
                f"backend '{self.name}' speaks {self.speaks}, but {call.dialect.name} has no translation to it"
            )
        return translation(
            call,
            model=self._models.upstream_name(call.model),
            created=int(self._clock.wall()),
            cache_control=self._cache_control,
            reasoning_content=self._reasoning_content,
        )

    async def _websocket(self, request: RequestContext) -> Response:
        """Open a WebSocket, or return the endpoint's response to the handshake, which may refuse or ignore it (RFC 9110
        section 7.8). The endpoint is asked once, and once more with other credentials if it refuses those of the
        gateway."""
        permit = await self._limiter.acquire_client_paced(request)
        handshake = Handshake()
        CURRENT_HANDSHAKE.set(handshake)
        now = asyncio.get_running_loop().time()
        until = now + MAX_HANDSHAKE_S
        try:
            async with asyncio.timeout(min(self._timeouts.first_byte, MAX_HANDSHAKE_S)):
                query = request.query if self._renaming is None else self._renaming.query(request.query)
                asked = UpstreamRequest("GET", self._target(request.path, query), self._headers(request))
                sent = await self._authorized(asked, until)
                try:
                    socket = await self._shake_hands(request, sent)
                except aiohttp.WSServerHandshakeError:
                    again = await self._renewed(asked, sent, handshake, until)
                    if again is None:
                        raise
                    socket = await self._shake_hands(request, again)
        except BaseException as error:
            if isinstance(error, aiohttp.WSServerHandshakeError) and handshake.refusal is not None:
                if handshake.status == PROXY_AUTHENTICATION_REQUIRED and self._session.proxy is not None:
                    handshake.refusal.close()
                    permit.release()
                    raise self._to_gateway_error(proxy_refused()) from None
                answer = refusal_of(handshake.refusal, handshake.status)
                permit.on_response(request, answer.status)
                return await self._read(request, answer, permit, now + request.calls.due - permit.acquired_at)
            permit.release()
            if isinstance(error, TimeoutError):
                raise BackendError(f"backend '{self.name}' sent no answer in time", status=504) from None
            if isinstance(error, aiohttp.WSServerHandshakeError):
                message = f"backend '{self.name}' answered the handshake of a WebSocket wrongly"
                raise BackendError(message, retryable=False) from None
            if isinstance(error, aiohttp.ClientError | OSError):
                error = failure_of(error)
            failure = self._to_gateway_error(error)
            if failure is error:
                raise
            raise failure from None
        finally:
            CURRENT_HANDSHAKE.set(None)
        return Response(101, self._provider_ids.header(handshake.headers), Tunnel(HttpWebSocket(socket, permit)))

    async def _shake_hands(self, request: RequestContext, sent: UpstreamRequest) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket. Raise what aiohttp raises."""
        url = URL(self._base.origin + sent.target, encoded=True)
        offered = protocols_of(request, with_keys=self._withholds is None)
        return await open_websocket(self._session.get(), url, [*sent.headers, *sent.extra_headers], offered)

    async def _authorized(self, asked: UpstreamRequest, until: float) -> UpstreamRequest:
        """Return a handshake with the credentials of `identity`. `until` is event-loop time. Raise `NoCredentials`."""
        return asked if self._identity is None else await self._identity.authorized(asked, self._base.origin, until)

    async def _renewed(
        self, asked: UpstreamRequest, sent: UpstreamRequest, handshake: Handshake, until: float
    ) -> UpstreamRequest | None:
        """Return a refused handshake with other credentials, or None if there are none, or others would not help."""
        identity, refusal = self._identity, handshake.refusal
        if identity is None or refusal is None or handshake.status not in CREDENTIAL_REFUSALS:
            return None
        try:
            if not await identity.renew(sent, refusal_of(refusal, handshake.status), until):
                return None
            again = await self._authorized(asked, until)
        except ExchangeFailed:  # the refusal tells more
            return None
        refusal.close()
        handshake.refusal = None
        return again

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        permit = await self._limiter.acquire(request)
        try:
            # The client's Accept-Encoding is about its own list, which this one becomes a part of.
            headers = _override_headers(self._headers(request, foreign=self._is_foreign(request)), IDENTITY)
            objects = self._endpoint.models
            listing = self._models_request(headers, "" if objects is None else objects.query)
            answer = await self._client.send(listing, self._deadline_in(self._timeouts.first_byte))
            try:
                data, coding = await self._read_all(answer), coding_of(answer.header_map)
                listed = orjson.loads(data if not coding else decode_whole(data, coding) or b"")
            finally:
                answer.close()
            if answer.status == 200:
                key, read = ("data", None) if objects is None else (objects.key, objects.read)
                return [(read or neutral_model)(model) for model in listed[key] if isinstance(model, dict)]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            pass
        except (ExchangeFailed, ValueError) as error:
            raise self._to_gateway_error(error) from None
        finally:
            permit.release()
        raise BackendError(f"backend '{self.name}' does not list its models")

    async def _read_all(self, answer: UpstreamResponse) -> bytes:
        """Read a whole body. Raise `ExchangeFailed`, also if it is too large."""
        deadline, data = self._deadline_in(self._timeouts.first_byte), bytearray()
        while chunk := await answer.read(deadline):
            data += chunk
            if len(data) > MAX_WHOLE_BYTES:
                raise ExchangeFailed(f"the response is larger than {MAX_WHOLE_BYTES} bytes")
        return bytes(data)

    async def ready(self) -> bool:
        """Return whether the endpoint accepts connections. Without credentials any status below 500 counts. Raise
        `BackendError` if the gateway should have credentials and has none. Raise it also for any failure on a way of
        the backend's own, by a proxy or with TLS: another client would see another reason."""
        limit_s = self._timeouts.connect if self._identity is None else MAX_HANDSHAKE_S
        try:
            answer = await self._client.send(self._models_request(list(self._fixed)), self._deadline_in(limit_s))
        except ExchangeFailed as error:
            own_way = self._session.proxy is not None or self._session.tls is not None
            if own_way or isinstance(error, NoCredentials):
                raise self._to_gateway_error(error) from None
            return False
        answer.close()
        return answer.status < 500

    async def close(self) -> None:
        await self._client.close()
        await self._session.close()

    def _models_request(self, headers: list[tuple[str, str]], query: str = "") -> UpstreamRequest:
        return UpstreamRequest("GET", self.target(MODELS, query), headers)

    def upstream_request(self, request: RequestContext, translated: TranslatedCall | None = None) -> UpstreamRequest:
        """Return the request as `send` would send it. Raise `BadRequest`."""
        call = request.call
        if call is None:
            return self._passthrough_request(request)
        if translated is not None:
            sent = translated.outgoing
            if self._refused_additions.known:
                sent = self._accepted(call, sent, translated=True)
            headers = self._headers(request, foreign=True)
            return UpstreamRequest(
                request.method,
                self.target(
                    self._base.path_of(sent.path, self._model_of(call)) if self._is_azure else sent.path, sent.query
                ),
                _override_headers(headers, sent.headers),
                sent.body,
                repeatable=not call.stateful,
            )
        sent, repeatable = self._outgoing(request, call), not (call.stateful or call.passes)
        if sent.headers or sent.path != request.path:
            headers = _override_headers(self._headers(request), sent.headers)
            target = self._target(sent.path, request.query)
            return UpstreamRequest(request.method, target, headers, sent.body, repeatable=repeatable)
        target, headers, opening = request.head.upstream.get(self) or self._shared_head(request)
        extra_headers = request.upstream_trace_headers()
        return UpstreamRequest(request.method, target, headers, sent.body, None, repeatable, extra_headers, opening)

    def _target(self, path: str, query: str) -> str:
        """Return the target of a client's request: without the client's key if the endpoint may not have it."""
        return self.target(path, self._withholds.without_secrets(query) if query and self._withholds else query)

    def _shared_head(self, request: RequestContext) -> tuple[str, list[tuple[str, str]], Opening]:
        """Return the target, headers (without tracing) and opening that all requests with this head share."""
        headers = [header for header in self._headers(request) if header[0].lower() not in TRACING]
        shared_head = request.head.upstream[self] = self._target(request.path, request.query), headers, Opening()
        return shared_head

    def _passthrough_request(self, request: RequestContext) -> UpstreamRequest:
        """Return a request that no dialect parses. A body that is still arriving is streamed."""
        source, method, repeatable = request.body_source, request.method, is_repeatable(request)
        body = source.buffered_body
        if self._renaming is not None and (renamed := self._renamed(request, body, self._renaming)) is not None:
            return renamed
        if body is not None and not self._endpoint.paths_name_models:
            target, headers, opening = request.head.upstream.get(self) or self._shared_head(request)
            extra_headers = request.upstream_trace_headers()
            return UpstreamRequest(method, target, headers, body, None, repeatable, extra_headers, opening)
        path = self._own_dialect.renamed_path(request.path, self._models.upstream_name)
        target, headers = self._target(path, request.query), self._headers(request)
        if body is not None:
            return UpstreamRequest(method, target, headers, body, repeatable=repeatable)
        length = request.headers.get("content-length", "")
        known = int(length) if length.isascii() and length.isdigit() else None
        return UpstreamRequest(method, target, headers, source.stream() or b"", known, repeatable=False)

    def _deadline_in(self, limit_s: float) -> float:
        return asyncio.get_running_loop().time() + limit_s

    def _renamed(self, request: RequestContext, body: bytes | None, renaming: Renaming) -> UpstreamRequest | None:
        """Return a request that passes through with the upstream's name of its model, or None if it has no other."""
        if body is None:
            return None
        query, headers, found = renaming.query(request.query), self._headers(request), None
        if "content-encoding" not in request.headers:
            found = renaming.body(body, request.headers.get("content-type", ""))
        if found is None and query == request.query:
            return None
        if found is not None:
            body, headers = found[0], _override_headers(headers, (("Content-Type", found[1]),))
        path = request.path
        if self._endpoint.paths_name_models:
            path = self._own_dialect.renamed_path(path, self._models.upstream_name)
        target = self._target(path, query)
        return UpstreamRequest(request.method, target, headers, body, repeatable=is_repeatable(request))

    def _outgoing(self, request: RequestContext, call: Call) -> Outgoing:
        model = self._exact_names.get(call.model) if call.passes else self._models.upstream_name(call.model)
        is_kept = bool(request.keys.fingerprint) or request.reads_answer
        if not self._unsigned_thinking:
            call = self._own_dialect.fitted(call, request.headers)
        sent = call.dialect.outgoing(request.path, call, model=model, kept=is_kept)
        if self._is_azure:
            sent = replace(sent, path=self._base.path_of(sent.path, model or call.model))
        return self._accepted(call, sent) if self._refused_additions.known else sent

    def _accepted(self, call: Call, sent: Outgoing, *, translated: bool = False) -> Outgoing:
        """Return the call without the fields of the gateway that the endpoint refuses."""
        body = without_additions(
            call, sent.body, self._refused_additions.of(self._model_of(call)), translated=translated
        )
        return sent if body is sent.body else replace(sent, body=body)

    def _is_foreign(self, request: RequestContext) -> bool:
        """Return whether an unparsed request comes from a client of another dialect."""
        return not answers_client(self.speaks, client_of(request.headers))

    def _headers(self, request: RequestContext, *, foreign: bool = False) -> list[tuple[str, str]]:
        """Return the headers to send. Those of a `foreign` request are translated from the client's dialect."""
        is_parsed = request.call is not None  # the gateway parses the response, and has decoded the request body
        passing = self._parsed_request_filter if is_parsed else self._request_filter
        client_headers = request.upstream_headers()
        headers = passing.apply(client_headers.items(), connection_header(client_headers))
        if self._admitted_origins:
            headers = without_admitted_origin(headers, self._admitted_origins)
        call = request.call
        if foreign or (call is not None and self._moves_key(call.dialect.endpoint)):
            client = DIALECTS[client_of(request.headers) or DEFAULT] if call is None else call.dialect
            if client.endpoint.key_parameter is not None and self._withholds is None:
                headers = with_key_of_query(headers, client.endpoint, request.query)
            headers = translated_headers(headers, client.endpoint, self._endpoint)
        if request.reads_answer and not is_parsed:  # the body goes as it came, the answer has to be readable
            headers = [header for header in headers if header[0].lower() != "accept-encoding"]
            headers.append(("Accept-Encoding", "identity"))
        headers = headers + self._gateway_headers(headers, is_parsed=is_parsed)
        return _override_headers(headers, self._fixed) if self._fixed else headers

    def _moves_key(self, client: Endpoint) -> bool:
        """Return whether a key of such clients stands in another header than here, in one dialect."""
        return client.key_header != self._endpoint.key_header and not self._base.reads_azure_paths

    def _gateway_headers(self, headers: list[tuple[str, str]], *, is_parsed: bool) -> list[tuple[str, str]]:
        added = own_headers(headers, self._endpoint, self._api_key)
        return [*added, *IDENTITY] if is_parsed else added


def _override_headers(headers: list[tuple[str, str]], others: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return `headers` with `others` in place of headers with the same names."""
    names = {name.lower() for name, _ in others}
    return [*(header for header in headers if header[0].lower() not in names), *others]
