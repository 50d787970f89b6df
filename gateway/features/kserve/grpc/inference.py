"""Answers `ModelInfer` and `ModelStreamInfer`: each message is one request to the same steps as for HTTP clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import grpc
import orjson
from tritonclient.grpc import service_pb2 as pb

from gateway.adapters.inference_protobuf import EMPTY_FINAL, FINAL, inference_of, response_of
from gateway.context import RequestContext
from gateway.dialects.open_inference.message import read_answer, unpack, write_inference
from gateway.errors import BadRequest, MalformedResponse, UpstreamStreamError
from gateway.features.kserve.dialect import JSON_LENGTH
from gateway.features.kserve.grpc.request_adapter import Pipeline, RpcRequest, status_of
from gateway.messages import EventStream, FullBody, Response
from gateway.streams import close_body


class RpcError(Exception):
    """An RPC that ends with an error: its status, a sentence, and the trailing metadata."""

    def __init__(self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.metadata = code, message, metadata


@dataclass(frozen=True, slots=True)
class RpcReply:
    """One answer message and its trailing metadata."""

    message: Any
    metadata: tuple[tuple[str, str], ...]


async def infer(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> RpcReply:
    """Return the `ModelInferResponse` to a `ModelInferRequest`. Raise `RpcError`."""
    request = _request(message, rpc, stream=False)
    response = await pipeline(request)
    metadata = rpc.trailing_metadata(request, response)
    if isinstance(response.body, FullBody) and response.status == 200:
        return RpcReply(_response(response.body.data, response, message.id), metadata)
    raise await rpc_error(response, metadata)


async def infer_all(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> AsyncGenerator[RpcReply, None]:
    """Yield the `ModelStreamInferResponse`s to a `ModelInferRequest` of a stream. Raise `RpcError`."""
    has_final = message.parameters[EMPTY_FINAL].bool_param if EMPTY_FINAL in message.parameters else False
    request = _request(message, rpc, stream=True)
    response = await pipeline(request)
    metadata = rpc.trailing_metadata(request, response)
    if response.status != 200 or not isinstance(response.body, EventStream):
        raise await rpc_error(response, metadata)
    try:
        async for event in response.body.events:
            if event.data.startswith(b"{"):  # an error: a packed answer with this byte would have 2 GB of JSON
                raise RpcError(grpc.StatusCode.UNAVAILABLE, error_text(event.data), metadata)
            answer = response_of(unpack(event.data), message.id)
            answer.parameters[FINAL].bool_param = False
            yield RpcReply(pb.ModelStreamInferResponse(infer_response=answer), metadata)
    except (UpstreamStreamError, MalformedResponse) as error:
        raise RpcError(grpc.StatusCode.UNAVAILABLE, str(error), metadata) from None
    finally:
        await close_body(response.body)
    if has_final:
        empty = pb.ModelInferResponse(model_name=message.model_name, id=message.id)
        empty.parameters[FINAL].bool_param = True
        yield RpcReply(pb.ModelStreamInferResponse(infer_response=empty), metadata)


async def rpc_error(response: Response, metadata: tuple[tuple[str, str], ...]) -> RpcError:
    """Convert a response without a usable answer to a gRPC error."""
    body = response.body
    if isinstance(body, FullBody):
        return RpcError(status_of(response.status), error_text(body.data), metadata)
    await close_body(body)
    if response.status == 200:
        return RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the answer is too large to be read", metadata)
    return RpcError(status_of(response.status), f"the backend answers {response.status}", metadata)


def error_text(body: bytes) -> str:
    """Return the message of an error body, or its first 300 bytes."""
    try:
        message_text = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message_text = None
    if isinstance(message_text, dict):
        message_text = message_text.get("message")
    return message_text if isinstance(message_text, str) else body[:300].decode(errors="replace")


def path_of(model: str, version: str = "", verb: str = "") -> str:
    """Return the path of a model. Raise `RpcError` if its name is empty, or a dot segment, which names another path."""
    if not model:
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, "the model's name is empty")
    if {model, version} & {".", ".."}:
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, "the name of a model or its version cannot be '.' or '..'")
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{of_version}{verb}"


def _request(message: Any, rpc: RpcRequest, *, stream: bool) -> RequestContext:
    try:
        body, length = write_inference(inference_of(message))
    except BadRequest as error:
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, error.message) from None
    length_header = [] if length is None else [(JSON_LENGTH, str(length))]
    path = path_of(message.model_name, message.model_version, "/infer")
    return rpc.request("POST", path, body, length_header, stream=stream)


def _response(data: bytes, response: Response, identity: str) -> Any:
    lengths = [value for name, value in response.headers if name == JSON_LENGTH]
    try:
        return response_of(read_answer(data, int(lengths[-1]) if lengths else None), identity)
    except MalformedResponse as error:
        raise RpcError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
