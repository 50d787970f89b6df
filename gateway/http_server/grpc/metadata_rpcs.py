"""What can be asked about a server and its models: each RPC is the GET of an HTTP client, and its JSON a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import orjson
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from gateway.http_server.grpc.inference import RpcError, failed, path_of
from gateway.http_server.grpc.request_adapter import Pipeline, RpcRequest
from gateway.messages import FullBody
from gateway.streams import close_body

About = Callable[[Any, RpcRequest, Pipeline], Awaitable[Any]]


async def server_live(_: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    return pb.ServerLiveResponse(live=await _good("/v2/health/live", asking, pipeline))


async def server_ready(_: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    return pb.ServerReadyResponse(ready=await _good("/v2/health/ready", asking, pipeline))


async def model_ready(message: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version, "/ready")
    return pb.ModelReadyResponse(ready=await _good(path, asking, pipeline))


async def server_metadata(_: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    return _filled(pb.ServerMetadataResponse(), await _asked("GET", "/v2", asking, pipeline))


async def model_metadata(message: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version)
    return _filled(pb.ModelMetadataResponse(), await _asked("GET", path, asking, pipeline))


async def model_config(message: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version, "/config")
    return _filled(pb.ModelConfigResponse(), {"config": await _asked("GET", path, asking, pipeline)})


async def model_statistics(message: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version, "/stats") if message.name else "/v2/models/stats"
    return _filled(pb.ModelStatisticsResponse(), await _asked("GET", path, asking, pipeline))


async def repository_index(message: Any, asking: RpcRequest, pipeline: Pipeline) -> Any:
    body = orjson.dumps({"ready": True}) if message.ready else b"{}"
    path = f"/v2/repository{'/' + message.repository_name if message.repository_name else ''}/index"
    return _filled(pb.RepositoryIndexResponse(), {"models": await _asked("POST", path, asking, pipeline, body)})


ABOUT: Mapping[str, About] = {
    "ServerLive": server_live,
    "ServerReady": server_ready,
    "ModelReady": model_ready,
    "ServerMetadata": server_metadata,
    "ModelMetadata": model_metadata,
    "ModelConfig": model_config,
    "ModelStatistics": model_statistics,
    "RepositoryIndex": repository_index,
}


async def _good(path: str, asking: RpcRequest, pipeline: Pipeline) -> bool:
    response = await pipeline(asking.request("GET", path))
    await close_body(response.body)
    if response.status in (401, 403, 429):
        raise await failed(response, ())
    return response.status == 200


async def _asked(method: str, path: str, asking: RpcRequest, pipeline: Pipeline, body: bytes = b"") -> Any:
    request = asking.request(method, path, body, [("content-length", str(len(body)))] if body else ())
    response = await pipeline(request)
    if response.status != 200:
        raise await failed(response, asking.trailing_metadata(request, response))
    if not isinstance(response.body, FullBody):
        body = b"".join([chunk async for chunk in response.body.chunks])  # type: ignore[union-attr]
        return orjson.loads(body)
    return orjson.loads(response.body.data)


def _filled(message: Any, value: Any) -> Any:
    try:
        return json_format.ParseDict(value, message, ignore_unknown_fields=True)
    except json_format.ParseError:
        raise RpcError(grpc.StatusCode.UNAVAILABLE, "the backend's answer is not what the protocol says") from None
