"""Tensor inference and metadata over gRPC, for clients that speak Triton's own protocol."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import grpc
import orjson
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.adapters.inference_protobuf import EMPTY_FINAL, FINAL, answer_of, request_of
from gateway.adapters.triton_channel import RECONNECT
from gateway.calls import Call
from gateway.config.backends import Timeouts
from gateway.context import RequestContext
from gateway.dialects.model_names import ModelNames
from gateway.dialects.open_inference.message import InferenceRequest, pack
from gateway.dialects.open_inference.paths import PATH, model_of_path
from gateway.errors import BackendError, BadRequest, MalformedResponse, NotFound, UpstreamStreamError
from gateway.features.triton.models import condition_from_error
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.ports import ModelCondition
from gateway.streams import ClosingStream
from gateway.tracing import metadata_of
from gateway.upstream.concurrency_limiter import ConcurrencyPermit
from gateway.upstream.header_filter import JSON, OCTETS

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # of one message, which is in memory as a whole
MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(ready|config|stats))?")
# These statuses are about the request and go to the client. Any other one is a failure of the backend, 502.
RESPONSE_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
}
FAILURE_STATUS = {
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class TensorClient:
    """`TensorClient` calls a Triton server. Its channel connects on first use."""

    def __init__(self, name: str, address: str, *, tls: bool, models: ModelNames, timeouts: Timeouts) -> None:
        self._name = name
        self._models = models
        self._timeouts = timeouts
        sizes = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.max_send_message_length", -1)]
        options = [*sizes, *RECONNECT]
        self._channel = (
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(), options=options)
            if tls
            else grpc.aio.insecure_channel(address, options=options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def infer(self, request: RequestContext, call: Call, permit: ConcurrencyPermit) -> Response:
        """Run an inference. A stream holds its permit until its end.

        Raise `BackendError` before the first response.
        """
        inference: InferenceRequest = call.body["inference"]
        if inference.raw is not None:
            raise BadRequest(
                f"backend '{self._name}' is called over gRPC, which has no raw bodies: expected JSON with inputs"
            )
        match = PATH.fullmatch(request.path)
        assert match is not None  # the dialect has claimed the path
        model = self._models.upstream_name(call.model) or unquote(call.model)
        message = request_of(inference, model, unquote(match[2] or ""))
        if request.work.transmission is not None:
            request.work.transmission.sent = True
        try:
            return await (self._stream(message, request, permit) if call.stream else self._infer_once(message, request))
        except grpc.aio.AioRpcError as error:
            return self._error_response(error.code(), error.details() or "")
        except TimeoutError:
            raise BackendError(f"backend '{self._name}' sent no answer in time", status=504) from None

    async def describe(self, request: RequestContext) -> Response:
        """Return the metadata of the server or a model, in the JSON of its HTTP port. Raise `NotFound`."""
        try:
            async with asyncio.timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
                value = await self._query(request)
        except grpc.aio.AioRpcError as error:
            return self._error_response(error.code(), error.details() or "")
        except TimeoutError:
            raise BackendError(f"backend '{self._name}' sent no answer in time", status=504) from None
        if value is None:
            raise NotFound(f"the path {request.path} is unknown, and backend '{self._name}' is not an HTTP endpoint")
        if isinstance(value, bool):
            return Response(200 if value else 400, JSON, FullBody(b""))
        return Response(200, JSON, FullBody(orjson.dumps(value)))

    async def _infer_once(self, message: Any, request: RequestContext) -> Response:
        async with asyncio.timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
            answer = await self._stub.ModelInfer(message, metadata=_metadata(request))
        return Response(200, OCTETS, FullBody(self._pack(answer)))

    async def _stream(self, message: Any, request: RequestContext, permit: ConcurrencyPermit) -> Response:
        message.parameters[EMPTY_FINAL].bool_param = True  # requests a final response that marks the end
        rpc = self._stub.ModelStreamInfer(_once(message), metadata=_metadata(request))
        answers = self._answers(rpc)
        try:
            async with asyncio.timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
                first = await anext(answers, None)
        except BaseException:
            rpc.cancel()
            raise
        if first is not None and first.error_message:
            rpc.cancel()
            return self._error_response(grpc.StatusCode.INTERNAL, first.error_message)
        permit.on_response(request, 200)

        def on_close() -> None:
            rpc.cancel()
            permit.release()

        return Response(200, OCTETS, EventStream(ClosingStream(self._events(request, first, answers), on_close)))

    async def _answers(self, rpc: Any) -> AsyncGenerator[Any, None]:
        async for message in rpc:
            answer = message.infer_response
            if message.error_message or answer.outputs or answer.raw_output_contents:
                yield message
            if FINAL in answer.parameters and answer.parameters[FINAL].bool_param:
                return

    async def _events(
        self, request: RequestContext, first: Any, answers: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Event, None]:
        message = first
        async with aclosing(answers):
            while message is not None:
                if message.error_message:
                    raise UpstreamStreamError(message.error_message)
                try:
                    yield Event(self._pack(message.infer_response))
                except BackendError as error:
                    raise UpstreamStreamError(str(error)) from None
                try:
                    async with asyncio.timeout(min(self._timeouts.idle, request.upstream_left_s)):
                        message = await anext(answers, None)
                except TimeoutError:
                    raise UpstreamStreamError(
                        f"backend '{self._name}' sent no data within timeouts.idle, or exceeded timeouts.total"
                    ) from None
                except grpc.aio.AioRpcError as error:
                    raise UpstreamStreamError(
                        f"backend '{self._name}' broke off the response ({error.code().name})"
                    ) from None

    def _pack(self, answer: Any) -> bytes:
        try:
            return pack(answer_of(answer))
        except (MalformedResponse, BadRequest) as error:
            raise BackendError(f"backend '{self._name}': {error}", retryable=False) from None

    async def _query(self, request: RequestContext) -> Any:
        """Return the metadata for a path, a bool for a health status, or None if the path is unknown."""
        path, method = request.path, request.method
        if method == "POST" and path == "/v2/repository/index":
            index = await self._stub.RepositoryIndex(pb.RepositoryIndexRequest())
            return _json(index).get("models", [])
        if method not in ("GET", "HEAD"):
            return None
        if path == "/v2/health/live":
            return bool((await self._stub.ServerLive(pb.ServerLiveRequest())).live)
        if path == "/v2/health/ready":
            return bool((await self._stub.ServerReady(pb.ServerReadyRequest())).ready)
        if path.rstrip("/") == "/v2":
            return _json(await self._stub.ServerMetadata(pb.ServerMetadataRequest()))
        if path == "/v2/models/stats":
            return _json(await self._stub.ModelStatistics(pb.ModelStatisticsRequest()))
        match = MODEL_PATH.fullmatch(path)
        return None if match is None else await self._model_metadata(match)

    async def _model_metadata(self, match: re.Match[str]) -> Any:
        requested = model_of_path(match[0]) or ""
        arguments = {
            "name": self._models.upstream_name(requested) or unquote(requested),
            "version": unquote(match[2] or ""),
        }
        if match[3] == "ready":
            return bool((await self._stub.ModelReady(pb.ModelReadyRequest(**arguments))).ready)
        if match[3] == "config":
            return _json((await self._stub.ModelConfig(pb.ModelConfigRequest(**arguments))).config)
        if match[3] == "stats":
            return _json(await self._stub.ModelStatistics(pb.ModelStatisticsRequest(**arguments)))
        return _json(await self._stub.ModelMetadata(pb.ModelMetadataRequest(**arguments)))

    def _error_response(self, code: grpc.StatusCode, details: str) -> Response:
        """Return Triton's words about the request as a response.

        Raise `InferenceServerException` if the model is dead, and `BackendError` for any other status.
        """
        error = InferenceServerException(details, status=str(code))
        if condition_from_error(error) is ModelCondition.DEAD:
            raise error
        status = RESPONSE_STATUS.get(code)
        if status is None:
            raise BackendError(f"backend '{self._name}' failed ({code.name})", status=FAILURE_STATUS.get(code, 502))
        return Response(status, JSON, FullBody(orjson.dumps({"error": details})))


def _metadata(request: RequestContext) -> tuple[tuple[str, str], ...]:
    return tuple(metadata_of(request.upstream_headers()).items())


async def _once(message: Any) -> AsyncIterator[Any]:
    yield message


def _json(message: Any) -> Any:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
