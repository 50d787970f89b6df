"""The gRPC port: listens with limits, drains, and converts RPCs to requests and answers to messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from tritonclient.grpc import service_pb2 as pb

from gateway.adapters.system.tls_reloader import ReloadingCertificate
from gateway.config.schema import ServerConfig
from gateway.config.units import Address
from gateway.context import Handler, RequestContext, resolve_response
from gateway.features.kserve.grpc.inference import RpcError, infer, infer_all
from gateway.features.kserve.grpc.metadata_rpcs import ABOUT, About
from gateway.features.kserve.grpc.request_adapter import RpcRequest
from gateway.messages import Response
from gateway.observability.response_headers import ResponseHeaders
from gateway.ports import Clock
from gateway.steps.error_boundary import Inflight
from gateway.streams import with_completion
from gateway.tasks import FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_UPTIME_S, Backoff, cancel_and_wait, start_task


def credentials_of(certificate: ReloadingCertificate) -> grpc.ServerCredentials:
    """Return TLS credentials with the certificate of the data port. Each handshake uses the current files, if they are
    usable. Raise `CertificateUnusable`."""
    seen, configuration = certificate.modification_times(), _configuration(certificate)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Return a new configuration, or None if it is unchanged. gRPC calls this in its own thread, once for each
        handshake."""
        nonlocal seen
        now = certificate.modification_times()
        if now == seen:
            return None
        seen = now
        return certificate.reload_or_keep(lambda: _configuration(certificate))

    requires_client = certificate.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(configuration, fetch, require_client_authentication=requires_client)


def _configuration(certificate: ReloadingCertificate) -> grpc.ServerCertificateConfiguration:
    pair = certificate.pair()  # checked: gRPC reports no mismatch, and every handshake would fail
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=certificate.client_ca)


LOG = logging.getLogger("nearhit.grpc")

SERVICE, INFER_REQUEST = "inference.GRPCInferenceService", "ModelInferRequest"

WATCH_INTERVAL_S = 1.0

Context = Any  # grpc.aio.ServicerContext


class GrpcPort:
    """The gRPC server. `handler` is the pipeline. `inflight` counts the requests that wait, over all ports.
    Without a `certificate` it serves plain HTTP/2. Raise `CertificateUnusable`."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        handler: Handler,
        inflight: Inflight,
        certificate: ReloadingCertificate | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._handler = handler
        self._inflight = inflight
        self._own_headers = ResponseHeaders()
        self._tls = None if certificate is None else credentials_of(certificate)
        self._server: Any = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen and return the address, with the port that the system chose if the configured one is 0. Raise
        `OSError`."""
        assert self._config.grpc is not None  # else there is no gRPC port
        address = await self._listen(self._config.grpc)
        self._watching = start_task(self._watch(address))
        return address

    async def _listen(self, address: Address) -> Address:
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=self._config.max_inflight,
            options=[
                ("grpc.max_receive_message_length", self._config.max_body),
                ("grpc.max_send_message_length", -1),  # the backend adapters bound answers
                ("grpc.max_metadata_size", self._config.max_header),
                # A port in use is an error, as on the other ports; only workers share one.
                ("grpc.so_reuseport", int(self._config.workers > 1)),
            ],
        )
        self._health = health.aio.HealthServicer()
        add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._tls)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await self._server.start()
        for service in (
            "",
            SERVICE,
        ):  # "" is the server itself: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
            await self._health.set(service, HealthCheckResponse.SERVING)
        return Address(address.host, port)

    async def _watch(self, address: Address) -> None:
        """Listen again when the server has stopped by itself: an unexpected error in its own code ends it."""
        backoff, began = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_UPTIME_S), self._clock.monotonic()
        while True:
            try:
                while await self._server.wait_for_termination(WATCH_INTERVAL_S):
                    pass
            except Exception as error:  # the one that ended it
                LOG.error(
                    "the gRPC server stopped, and starts again", extra={"fields": {"error": type(error).__name__}}
                )
            await asyncio.sleep(backoff.next_delay(self._clock.monotonic() - began))
            with suppress(OSError):  # the port may not be free yet
                await self._listen(address)
                began = self._clock.monotonic()

    async def stop(self) -> None:
        """Accept no more calls, wait up to `drain_timeout` for the calls in flight, then abort them."""
        if self._watching is not None:
            await cancel_and_wait(self._watching)
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(self._config.drain_timeout)

    def _methods(self) -> dict[str, Any]:
        """Return the handlers. They parse the bytes: for grpcio, a message that is none is a fault of the server."""
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(about, f"{name}Request"), None, _message(f"{name}Response").SerializeToString
            )
            for name, about in ABOUT.items()
        }
        methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
            self._infer, None, pb.ModelInferResponse.SerializeToString
        )
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, None, pb.ModelStreamInferResponse.SerializeToString
        )
        return methods

    def _unary(self, about: About, kind: str) -> Any:
        async def answer(data: bytes, context: Context) -> Any:
            try:
                return await about(_parsed(kind, data), self._rpc_request(context), self._answer)
            except RpcError as error:
                return await _abort(context, error)

        return answer

    async def _infer(self, data: bytes, context: Context) -> Any:
        try:
            reply = await infer(_parsed(INFER_REQUEST, data), self._rpc_request(context), self._answer)
        except RpcError as error:
            return await _abort(context, error)
        context.set_trailing_metadata(reply.metadata)
        return reply.message

    async def _stream(self, messages: AsyncIterator[bytes], context: Context) -> AsyncGenerator[Any, None]:
        """Answer the messages one after the other, so that the requests of a sequence stay in order. A failure becomes
        an error message in the stream, and the stream goes on."""
        rpc = self._rpc_request(context)
        async for data in messages:
            identity = ""
            try:
                message = _parsed(INFER_REQUEST, data)
                identity = message.id
                async with aclosing(infer_all(message, rpc, self._answer)) as answers:
                    async for reply in answers:
                        context.set_trailing_metadata(reply.metadata)
                        yield reply.message
            except RpcError as error:
                context.set_trailing_metadata(error.metadata)
                failure = pb.ModelStreamInferResponse(error_message=error.message)
                failure.infer_response.id = identity
                yield failure

    async def _answer(self, request: RequestContext) -> Response:
        answer = self._handler(request)
        self._inflight.count += 1
        try:
            response = await resolve_response(answer)
        except BaseException:
            self._on_end()
            raise
        return with_completion(response, self._on_end)

    def _on_end(self) -> None:
        self._inflight.count -= 1

    def _rpc_request(self, context: Context) -> RpcRequest:
        metadata = context.invocation_metadata() or ()
        address = address_of(context.peer() or "")
        return RpcRequest(metadata, context.time_remaining(), self._clock, self._own_headers, address)


def address_of(peer: str) -> str:
    """Return the IP address of a gRPC peer, such as `ipv4:127.0.0.1:51234` or `ipv6:%5B::1%5D:51234`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")


def _message(name: str) -> Any:
    return getattr(pb, name)


def _parsed(kind: str, data: bytes) -> Any:
    """Return the message of that kind. Raise `RpcError`."""
    try:
        return _message(kind).FromString(data)
    except DecodeError:
        raise RpcError(
            grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be parsed: expected a {kind} in protobuf's form"
        ) from None


async def _abort(context: Context, error: RpcError) -> None:
    await context.abort(error.code, error.message, error.metadata)
