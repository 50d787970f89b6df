"""Call a Triton Inference Server over gRPC: text in and out, streamed if the model is decoupled, and tensors.

Tensors are for clients of Triton's own protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from gateway.adapters.triton_channel import OPTIONS
from gateway.calls import Call, TextAnswer
from gateway.context import RequestContext
from gateway.errors import BackendError, BadRequest, ModelNotReady, NotFound, UpstreamStreamError
from gateway.features.triton.models import ModelConfig, TritonModels, condition_from_error, single_request
from gateway.features.triton.settings import GrpcUpstream, TritonBackendConfig
from gateway.features.triton.tensors import TensorClient
from gateway.features.triton.versions import TritonVersions
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.ports import Clock, ModelCondition
from gateway.streams import ClosingStream
from gateway.tracing import metadata_of
from gateway.upstream.building import model_names
from gateway.upstream.concurrency_limiter import ConcurrencyPermit, LimitedBackend
from gateway.upstream.header_filter import JSON, SSE

FINISH_REASON, INPUT_TOKENS, OUTPUT_TOKENS = "finish_reason", "prompt_tokens", "completion_tokens"
CHARACTERS_PER_TOKEN = 4  # for models that do not count tokens: the usual rule of thumb for English


@dataclass(frozen=True, slots=True)
class _TextPiece:
    text: str
    finish: str | None
    input_tokens: int | None
    output_tokens: int | None


class TritonBackend(LimitedBackend):
    """`TritonBackend` calls one Triton server. It forwards no credentials, because Triton checks none."""

    http = False
    speaks = "text"

    def __init__(self, name: str, address: GrpcUpstream, section: TritonBackendConfig, clock: Clock) -> None:
        super().__init__(name, section, clock)
        scheme, _, server = address.url.partition("://")
        tls = scheme == "grpcs"
        self._client = triton.InferenceServerClient(server, ssl=tls, channel_args=OPTIONS)
        self._models = model_names(section)
        self._timeouts = section.timeouts
        self._tensor_calls = TensorClient(name, server, tls=tls, models=self._models, timeouts=self._timeouts)
        self._embedding_model = section.embedding_model
        self._tensors = section.tensors
        self._clock = clock
        served = dict.fromkeys([*self._models.upstream_names, section.embedding_model])
        names = [model for model in served if model]
        self.hosted = TritonModels(name, server, self._client, names, section.tensors, section.timeouts)
        self.versions = TritonVersions(
            section.model, self.hosted, self._client, lambda result: self._piece(result).text
        )

    async def send(self, request: RequestContext) -> Response:
        call = request.call
        if call is None or call.passes:
            return await self._tensor_calls.describe(request)
        permit = await self._limiter.acquire(request)
        try:
            if call.operation == "infer":
                response = await self._tensor_calls.infer(request, call, permit)
            elif call.embeds:
                response = await self._embed(request, call)
            else:
                response = await self._generate(request, call, permit)
        except InferenceServerException as error:
            permit.release()
            raise self._to_backend_error(error, self._model_of(call)) from None
        except BaseException as error:
            if isinstance(error, BackendError) and error.status == 504:
                permit.on_timeout()
            permit.release()
            raise
        if response.status == 200:
            self.hosted.record(self._model_of(call), ModelCondition.READY)
        if isinstance(response.body, FullBody):
            permit.release()
        return response

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        names = [*self._models.upstream_names, self._embedding_model]
        return [{"id": name, "object": "model", "created": 0, "owned_by": "triton"} for name in names if name]

    async def ready(self) -> bool:
        try:
            async with asyncio.timeout(self._timeouts.connect):
                return bool(await self._client.is_model_ready(self._models.upstream_names[0]))
        except (InferenceServerException, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        await self._client.close()
        await self._tensor_calls.close()

    async def _generate(self, request: RequestContext, call: Call, permit: ConcurrencyPermit) -> Response:
        """Generate text. Errors before the first piece are raised here; a stream holds its permit until its end."""
        name = self._model_of(call)
        version = self.versions.choose(name)
        model = await self.hosted.describe(name)
        inputs = self.hosted.inputs(model, call.prompt, call.max_tokens)
        shown, created = call.model or name, int(self._clock.wall())
        answer = call.dialect.text_answer(call, answer_id=request.id, created=created, model=shown)
        pieces = self._pieces(name, version, model, inputs, request)
        try:
            first = await anext(pieces, None)
        except (InferenceServerException, BackendError) as error:
            if not _is_no_fault_of_model(error):
                self.versions.tell(version, answered=False)
            raise
        self.versions.tell(version, answered=True)
        permit.on_response(request, 200)
        events = self._events(first, pieces, answer, call)
        if call.stream:
            return Response(200, SSE, EventStream(ClosingStream(events, permit.release, source=pieces)))
        try:
            payload = [event.data async for event in events]
        except UpstreamStreamError as error:
            # The client has received nothing of a complete response yet, so another backend may still be tried.
            raise BackendError(str(error)) from None
        return Response(200, JSON, FullBody(call.dialect.whole(call, payload)))

    async def _events(
        self, first: _TextPiece | None, pieces: AsyncGenerator[_TextPiece, None], answer: TextAnswer, call: Call
    ) -> AsyncGenerator[Event, None]:
        deltas: list[str] = []
        last = piece = first
        async with aclosing(pieces):
            for event in answer.start():
                yield event
            while piece is not None:
                last = piece
                if piece.text:
                    deltas.append(piece.text)
                    yield answer.delta(piece.text)
                piece = await anext(pieces, None)
        end = last or _TextPiece("", None, None, None)
        for event in answer.finish(
            end.finish or "stop",
            end.input_tokens if end.input_tokens is not None else _estimated_tokens(call.prompt),
            end.output_tokens if end.output_tokens is not None else _estimated_tokens("".join(deltas)),
        ):
            yield event

    async def _pieces(
        self, name: str, version: str, model: ModelConfig, inputs: list[triton.InferInput], request: RequestContext
    ) -> AsyncGenerator[_TextPiece, None]:
        """Yield the pieces of the response. Closing the generator cancels the inference.

        Raise `InferenceServerException` or `BackendError` before the first piece, and `UpstreamStreamError` after it.
        """
        headers = metadata_of(request.upstream_headers())
        if not model.decoupled:
            async with self.hosted.call_timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
                result = await self._client.infer(
                    name, inputs, model_version=version, request_id=request.id, headers=headers
                )
            yield self._piece(result)
            return
        stream = self._client.stream_infer(single_request(name, inputs, request.id, version), headers=headers)
        limit, started = self._timeouts.first_byte, False
        try:
            while True:
                try:
                    async with self.hosted.call_timeout(min(limit, request.upstream_left_s)):
                        result, error = await anext(stream)
                    if error is not None:
                        raise error
                except StopAsyncIteration:
                    return
                except (InferenceServerException, BackendError) as error:
                    if started:
                        raise UpstreamStreamError(
                            f"backend '{self.name}' broke off the response: {str(error)[:200]}"
                        ) from None
                    raise
                response = result.get_response()
                if response.outputs:
                    yield self._piece(result)
                if response.parameters["triton_final_response"].bool_param:
                    return
                limit, started = self._timeouts.idle, True
        finally:
            stream.cancel()

    def _piece(self, result: triton.InferResult) -> _TextPiece:
        answer = result.as_numpy(self._tensors.answer)
        if answer is None:
            raise BackendError(
                f"model '{result.get_response().model_name}' has no output '{self._tensors.answer}'", retryable=False
            )
        finish = _scalar(result, FINISH_REASON)
        return _TextPiece(
            text="".join(part.decode("utf-8", "replace") for part in answer.flatten()),
            finish=finish.decode() if finish else None,
            input_tokens=_scalar(result, INPUT_TOKENS),
            output_tokens=_scalar(result, OUTPUT_TOKENS),
        )

    def _text(self, result: triton.InferResult) -> str:
        return self._piece(result).text

    async def _embed(self, request: RequestContext, call: Call) -> Response:
        if self._embedding_model is None:
            raise NotFound(f"backend '{self.name}' has no embedding model")
        if not call.questions:
            raise BadRequest("'input' has no text: expected a string or an array of strings", param="input")
        model = await self.hosted.describe(self._embedding_model)
        shape = [len(call.questions), 1] if model.batched else [len(call.questions)]
        texts = triton.InferInput(self._tensors.prompt, shape, "BYTES")
        texts.set_data_from_numpy(np.array([t.encode() for t in call.questions], dtype=object).reshape(shape))
        async with self.hosted.call_timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
            result = await self._client.infer(
                self._embedding_model, [texts], headers=metadata_of(request.upstream_headers())
            )
        vectors = result.as_numpy(self._tensors.embedding)
        if vectors is None:
            raise BackendError(f"model '{self._embedding_model}' has no output '{self._tensors.embedding}'")
        shown = call.model or self._model_of(call)
        body = call.dialect.embedding_answer(call, vectors.reshape(len(call.questions), -1), model=shown)
        return Response(200, JSON, FullBody(body))

    def _model_of(self, call: Call) -> str:
        if call.embeds:
            return self._embedding_model or ""
        return self._models.upstream_name(call.model) or call.model

    def _to_backend_error(self, error: InferenceServerException, model: str) -> BackendError:
        """Convert an error. Only Triton's words about the request itself go to the client; another model may still do
        better.
        """
        if "INVALID_ARGUMENT" in str(error.status()):
            return BackendError(f"backend '{self.name}' refused the request: {error.message()}"[:300], status=400)
        condition = condition_from_error(error)
        if condition is not None:
            self.hosted.record(model, condition)
            if model != self._embedding_model:  # text requests are served even without it
                return ModelNotReady(f"model '{model}' of backend '{self.name}' is {condition}")
        return BackendError(f"backend '{self.name}' failed ({error.status() or 'no status'})")


def _is_no_fault_of_model(error: Exception) -> bool:
    """Return whether a failed call says nothing about the version. The request was at fault, or the server is away, or
    it does not have the version loaded."""
    statuses = ("INVALID_ARGUMENT", "UNAVAILABLE", "NOT_FOUND", "CANCELLED")
    return isinstance(error, InferenceServerException) and any(each in str(error.status()) for each in statuses)


def _scalar(result: triton.InferResult, name: str) -> Any:
    value = result.as_numpy(name)
    return None if value is None or value.size == 0 else value.flatten()[0:1].tolist()[0]  # a plain Python value


def _estimated_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
