"""Run a model in this process with onnxruntime: embeddings, classification, or plain tensors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import onnxruntime
import orjson

from gateway.adapters.system.thread_priority import BACKGROUND_NICENESS, lower_priority
from gateway.calls import Call, TextAnswer
from gateway.context import RequestContext
from gateway.errors import BackendError, BadRequest, GatewayError, NotFound, UnsupportedByBackend
from gateway.features.onnx_backend.settings import OnnxBackendConfig
from gateway.features.onnx_backend.tensors import TensorGraph
from gateway.features.onnx_backend.text_models import (
    ClassifierInput,
    OnnxTextClassifier,
    SentenceEmbedder,
    parse_classifier_input,
)
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.ports import Clock
from gateway.streams import BufferedStream
from gateway.upstream.concurrency_limiter import ConcurrencyPermit, LimitedBackend
from gateway.upstream.header_filter import JSON, OCTETS, SSE

T = TypeVar("T")
Model = OnnxTextClassifier | SentenceEmbedder | TensorGraph


class OnnxBackend(LimitedBackend):
    """`OnnxBackend` runs `model` in a thread, which owns the model from now on.

    Unsupported calls raise `UnsupportedByBackend`, so that the next backend of a
    route is tried.
    """

    http = False
    speaks = "text"

    def __init__(self, name: str, model: Model, section: OnnxBackendConfig, clock: Clock) -> None:
        super().__init__(name, section, clock)
        self._model = model
        self._model_name = section.model or section.path.name
        self._timeouts = section.timeouts
        self._clock = clock
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix=f"onnx {name}", initializer=lower_priority, initargs=(BACKGROUND_NICENESS,)
        )

    async def send(self, request: RequestContext) -> Response:
        call = request.call
        if call is None and isinstance(self._model, TensorGraph):
            metadata = self._model.about(request.method, request.path)
            if metadata is not None:
                return Response(200, JSON, FullBody(b"" if metadata is True else orjson.dumps(metadata)))
        if call is None or call.passes:
            raise NotFound(f"the path {request.path} is unknown, and backend '{self.name}' is not an HTTP endpoint")
        handler = self._handler_for(request, call)  # refuses before a permit is taken
        permit = await self._limiter.acquire(request)
        try:
            response = await handler(permit)
        except BaseException as error:
            if isinstance(error, BackendError) and error.status == 504:
                permit.on_timeout()
            permit.release()
            raise
        if isinstance(response.body, FullBody):
            permit.release()
        return response

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        return [{"id": self._model_name, "object": "model", "created": 0, "owned_by": "onnx"}]

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _handler_for(self, request: RequestContext, call: Call) -> Callable[[ConcurrencyPermit], Awaitable[Response]]:
        """Return the function that serves the call, given a permit. Raise `UnsupportedByBackend`."""
        if isinstance(self._model, SentenceEmbedder):
            if not call.embeds:
                raise UnsupportedByBackend(
                    f"backend '{self.name}' serves embeddings only, not {call.operation} requests"
                )
            if not call.questions:
                raise UnsupportedByBackend(
                    "'input' has no text: expected a string or an array of strings", param="input"
                )
            return partial(self._embed, request, call, self._model)
        if isinstance(self._model, TensorGraph):
            if call.operation != "infer":
                raise UnsupportedByBackend(
                    f"backend '{self.name}' serves tensor inference only, not {call.operation} requests"
                )
            return partial(self._infer, request, call, self._model)
        if call.embeds:
            raise UnsupportedByBackend(f"backend '{self.name}' has no embedding model")
        question, created = parse_classifier_input(call, self.name), int(self._clock.wall())
        try:
            shown = call.model or self._model_name
            answer = call.dialect.text_answer(call, answer_id=request.id, created=created, model=shown)
        except BadRequest as refused:  # a dialect can express requests that text cannot
            raise UnsupportedByBackend(refused.message, param=refused.param) from None
        return partial(self._classify, request, call, self._model, question, answer)

    async def _embed(
        self, request: RequestContext, call: Call, model: SentenceEmbedder, permit: ConcurrencyPermit
    ) -> Response:
        """Embed each text in a separate job of the thread, so that a long list does not block other calls."""
        async with self._timeout(min(self._timeouts.total, request.upstream_left_s)):
            result = [await self._run(partial(model.embed, text)) for text in call.questions]
        permit.on_response(request, 200)
        shown = call.model or self._model_name
        body = call.dialect.embedding_answer(call, [vector.tolist() for vector in result], model=shown)
        return Response(200, JSON, FullBody(body))

    async def _infer(
        self, request: RequestContext, call: Call, model: TensorGraph, permit: ConcurrencyPermit
    ) -> Response:
        async with self._timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
            answer = await self._run(partial(model.infer, call.body["inference"], call.model))
        permit.on_response(request, 200)
        if call.stream:  # the client accepts several responses
            return Response(200, OCTETS, EventStream(BufferedStream((Event(answer),), permit.release)))
        return Response(200, OCTETS, FullBody(answer))

    async def _classify(
        self,
        request: RequestContext,
        call: Call,
        model: OnnxTextClassifier,
        question: ClassifierInput,
        answer: TextAnswer,
        permit: ConcurrencyPermit,
    ) -> Response:
        async with self._timeout(min(self._timeouts.first_byte, request.upstream_left_s)):
            result = await self._run(partial(model.classify, question))
        permit.on_response(request, 200)
        events = (
            *answer.start(),
            answer.delta(result.label, result.tokens),
            *answer.finish("stop", result.input_tokens, 1),
        )
        if call.stream:
            return Response(200, SSE, EventStream(BufferedStream(events, permit.release)))
        return Response(200, JSON, FullBody(call.dialect.whole(call, [event.data for event in events])))

    async def _run(self, run: Callable[[onnxruntime.RunOptions], T]) -> T:
        """Run in the model's thread. If the caller leaves, the run is terminated.

        Raise the `GatewayError` that `run` raises, and `BackendError` for any other error.
        """
        options = onnxruntime.RunOptions()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run, options)
        except GatewayError:
            raise
        except Exception as error:
            # Only the type: a message may quote the prompt.
            raise BackendError(f"the model of backend '{self.name}' failed ({type(error).__name__})") from None
        finally:
            options.terminate = True

    @asynccontextmanager
    async def _timeout(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise BackendError(f"backend '{self.name}' sent no answer in time", status=504) from None
