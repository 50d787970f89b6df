"""Answers RPCs about a server and its models: each RPC becomes an HTTP request, and its JSON answer a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import orjson
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from gateway.features.kserve.grpc.inference import RpcError, path_of, rpc_error
from gateway.features.kserve.grpc.request_adapter import Pipeline, RpcRequest
from gateway.messages import FullBody
from gateway.streams import close_body

About = Callable[[Any, RpcRequest, Pipeline], Awaitable[Any]]


async def server_live(_: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    return pb.ServerLiveResponse(live=await _is_ok("/v2/health/live", rpc, pipeline))


async def server_ready(_: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    return pb.ServerReadyResponse(ready=await _is_ok("/v2/health/ready", rpc, pipeline))


async def model_ready(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version, "/ready")
    return pb.ModelReadyResponse(ready=await _is_ok(path, rpc, pipeline))


async def server_metadata(_: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    return _parse_into(pb.ServerMetadataResponse(), await _fetch_json("GET", "/v2", rpc, pipeline))


async def model_metadata(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version)
    return _parse_into(pb.ModelMetadataResponse(), await _fetch_json("GET", path, rpc, pipeline))


async def model_config(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version, "/config")
    return _parse_into(pb.ModelConfigResponse(), {"config": await _fetch_json("GET", path, rpc, pipeline)})


async def model_statistics(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    path = path_of(message.name, message.version, "/stats") if message.name else "/v2/models/stats"
    return _parse_into(pb.ModelStatisticsResponse(), await _fetch_json("GET", path, rpc, pipeline))


async def repository_index(message: Any, rpc: RpcRequest, pipeline: Pipeline) -> Any:
    body = orjson.dumps({"ready": True}) if message.ready else b"{}"
    path = f"/v2/repository{'/' + message.repository_name if message.repository_name else ''}/index"
    return _parse_into(pb.RepositoryIndexResponse(), {"models": await _fetch_json("POST", path, rpc, pipeline, body)})


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


async def _is_ok(path: str, rpc: RpcRequest, pipeline: Pipeline) -> bool:
    response = await pipeline(rpc.request("GET", path))
    await close_body(response.body)
    if response.status in (401, 403, 429):
        raise await rpc_error(response, ())
    return response.status == 200


async def _fetch_json(method: str, path: str, rpc: RpcRequest, pipeline: Pipeline, body: bytes = b"") -> Any:
    request = rpc.request(method, path, body, [("content-length", str(len(body)))] if body else ())
    response = await pipeline(request)
    if response.status != 200:
        raise await rpc_error(response, rpc.trailing_metadata(request, response))
    if not isinstance(response.body, FullBody):
        body = b"".join([chunk async for chunk in response.body.chunks])  # type: ignore[union-attr]
        return orjson.loads(body)
    return orjson.loads(response.body.data)


def _parse_into(message: Any, value: Any) -> Any:
    try:
        return json_format.ParseDict(value, message, ignore_unknown_fields=True)
    except json_format.ParseError:
        raise RpcError(grpc.StatusCode.UNAVAILABLE, "the backend's answer does not follow the protocol") from None
