"""A Triton server over gRPC for clients that speak its own protocol: tensors in and out, and what is asked about it."""

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

from gateway.adapters.triton.models import RECONNECT, condition_told
from gateway.adapters.triton.protobuf import EMPTY_FINAL, FINAL, answer_of, request_of
from gateway.config.backends import Timeouts
from gateway.context import RequestContext
from gateway.dialects.kserve import PATH, model_in
from gateway.dialects.kserve_message import InferenceRequest, pack
from gateway.dialects.model_names import ModelNames
from gateway.errors import BackendError, BadRequest, MalformedResponse, NotFound, UpstreamStreamError
from gateway.messages import Call, Event, EventStream, FullBody, Response
from gateway.ports import ModelCondition
from gateway.streams import ClosingStream
from gateway.tracing import metadata_of
from gateway.upstream.concurrency_limiter import ConcurrencyPermit
from gateway.upstream.header_filter import JSON, OCTETS

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # of one message: it is in memory as a whole
VERSIONED = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(ready|config|stats))?")
# What says something of the request is the answer to it; the rest is a failure of the backend, 502.
ANSWERED = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
}
FAILED = {
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class TensorClient:
    """The channel connects on first use."""

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

    async def infer(self, request: RequestContext, call: Call, place: ConcurrencyPermit) -> Response:
        """Of a client that takes several answers a stream, which holds the place at the gate until its end.

        Raises `BackendError` before the first answer."""
        inference: InferenceRequest = call.body["inference"]
        if inference.raw is not None:
            raise BadRequest(f"backend '{self._name}' is asked by gRPC, which has no body without a tensor's name")
        found = PATH.fullmatch(request.path)
        assert found is not None  # it was claimed
        model = self._models.sent_for(call.model) or unquote(call.model)
        message = request_of(inference, model, unquote(found[2] or ""))
        try:
            return await (self._stream(message, request, place) if call.stream else self._whole(message, request))
        except grpc.aio.AioRpcError as error:
            return self._said(error.code(), error.details() or "")
        except TimeoutError:
            raise BackendError(f"backend '{self._name}' sent no answer in time", status=504) from None

    async def about(self, request: RequestContext) -> Response:
        """What the server, or a model, says of itself, in the JSON of its HTTP port. Raises `NotFound`."""
        try:
            async with asyncio.timeout(self._timeouts.first_byte):
                value = await self._asked(request)
        except grpc.aio.AioRpcError as error:
            return self._said(error.code(), error.details() or "")
        except TimeoutError:
            raise BackendError(f"backend '{self._name}' sent no answer in time", status=504) from None
        if value is None:
            raise NotFound(f"the path {request.path} is not known, and backend '{self._name}' is no HTTP endpoint")
        if isinstance(value, bool):
            return Response(200 if value else 400, JSON, FullBody(b""))
        return Response(200, JSON, FullBody(orjson.dumps(value)))

    async def _whole(self, message: Any, request: RequestContext) -> Response:
        async with asyncio.timeout(self._timeouts.first_byte):
            answer = await self._stub.ModelInfer(message, metadata=_metadata(request))
        return Response(200, OCTETS, FullBody(self._packed(answer)))

    async def _stream(self, message: Any, request: RequestContext, place: ConcurrencyPermit) -> Response:
        message.parameters[EMPTY_FINAL].bool_param = True  # so that its end is known
        rpc = self._stub.ModelStreamInfer(_once(message), metadata=_metadata(request))
        answers = self._answers(rpc)
        try:
            async with asyncio.timeout(self._timeouts.first_byte):
                first = await anext(answers, None)
        except BaseException:
            rpc.cancel()
            raise
        if first is not None and first.error_message:
            rpc.cancel()
            return self._said(grpc.StatusCode.INTERNAL, first.error_message)
        place.answered(request, 200)

        def over() -> None:
            rpc.cancel()
            place.leave()

        return Response(200, OCTETS, EventStream(ClosingStream(self._events(first, answers), over)))

    async def _answers(self, rpc: Any) -> AsyncGenerator[Any, None]:
        async for said in rpc:
            answer = said.infer_response
            if said.error_message or answer.outputs or answer.raw_output_contents:
                yield said
            if FINAL in answer.parameters and answer.parameters[FINAL].bool_param:
                return

    async def _events(self, first: Any, answers: AsyncGenerator[Any, None]) -> AsyncGenerator[Event, None]:
        deadline = asyncio.get_running_loop().time() + self._timeouts.total
        said = first
        async with aclosing(answers):
            while said is not None:
                if said.error_message:
                    raise UpstreamStreamError(said.error_message)
                try:
                    yield Event(self._packed(said.infer_response))
                except BackendError as error:
                    raise UpstreamStreamError(str(error)) from None
                try:
                    until = min(deadline, asyncio.get_running_loop().time() + self._timeouts.idle)
                    async with asyncio.timeout_at(until):
                        said = await anext(answers, None)
                except TimeoutError:
                    raise UpstreamStreamError(f"backend '{self._name}' fell silent") from None
                except grpc.aio.AioRpcError as error:
                    raise UpstreamStreamError(f"backend '{self._name}' broke off ({error.code().name})") from None

    def _packed(self, answer: Any) -> bytes:
        try:
            return pack(answer_of(answer))
        except (MalformedResponse, BadRequest) as error:
            raise BackendError(f"backend '{self._name}': {error}", retryable=False) from None

    async def _asked(self, request: RequestContext) -> Any:
        """None where nothing stands behind the path; a bool for what is good or not."""
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
        found = VERSIONED.fullmatch(path)
        return None if found is None else await self._of_a_model(found)

    async def _of_a_model(self, found: re.Match[str]) -> Any:
        asked = model_in(found[0]) or ""
        named = {"name": self._models.sent_for(asked) or unquote(asked), "version": unquote(found[2] or "")}
        if found[3] == "ready":
            return bool((await self._stub.ModelReady(pb.ModelReadyRequest(**named))).ready)
        if found[3] == "config":
            return _json((await self._stub.ModelConfig(pb.ModelConfigRequest(**named))).config)
        if found[3] == "stats":
            return _json(await self._stub.ModelStatistics(pb.ModelStatisticsRequest(**named)))
        return _json(await self._stub.ModelMetadata(pb.ModelMetadataRequest(**named)))

    def _said(self, code: grpc.StatusCode, details: str) -> Response:
        """What Triton says of the request itself goes to the client. Raises `BackendError` for the rest, and
        `InferenceServerException` where it says that the model is dead."""
        error = InferenceServerException(details, status=str(code))
        if condition_told(error) is ModelCondition.DEAD:
            raise error
        status = ANSWERED.get(code)
        if status is None:
            raise BackendError(f"backend '{self._name}' failed ({code.name})", status=FAILED.get(code, 502))
        return Response(status, JSON, FullBody(orjson.dumps({"error": details})))


def _metadata(request: RequestContext) -> tuple[tuple[str, str], ...]:
    return tuple(metadata_of(request.upstream_headers()).items())


async def _once(message: Any) -> AsyncIterator[Any]:
    yield message


def _json(message: Any) -> Any:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
