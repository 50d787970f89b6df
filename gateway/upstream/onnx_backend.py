"""A model that runs in this process with onnxruntime: text generation, embeddings, classification, or plain tensors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import onnxruntime
import orjson

from gateway.adapters.onnx.generator import Generator, Piece
from gateway.adapters.onnx.step_scheduler import Steps, Work, Worker
from gateway.adapters.onnx.tensors import Graph
from gateway.adapters.onnx.text_models import Classifier, Vectors
from gateway.body_streams import Ready
from gateway.config.backends import Timeouts
from gateway.context import RequestContext
from gateway.dialects.kserve_message import Inference
from gateway.dialects.translation import TRANSLATIONS
from gateway.errors import BackendError, BadRequest, NotFound, StreamBroken, Unfit
from gateway.messages import Call, Event, EventStream, Response, TextAnswer, Vector, Whole
from gateway.ports import Clock
from gateway.upstream.concurrency_limiter import Gate, Place
from gateway.upstream.limited_backend import Gated
from gateway.upstream.text_stream import JSON, written_answer

# Of protocols that have no translation and give a prompt: what is called the same everywhere.
UNDERSTOOD = ("temperature", "top_p", "top_k", "seed", "stop", "tools")
OCTETS = (("Content-Type", "application/octet-stream"),)

Model = Generator | Classifier | Vectors | Graph


class OnnxBackend(Gated):
    """`model` belongs to the backend's own thread from now on; `shown` is the name that lists of models have for it.
    Calls that it cannot do raise `Unfit`, so that the next backend of a route is asked."""

    http = False
    speaks = "text"

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        shown: str,
        max_concurrency: int,
        timeouts: Timeouts,
        clock: Clock,
        adaptive: bool = True,
    ) -> None:
        self.name = name
        self._model = model
        self._shown = shown
        self._timeouts = timeouts
        self._clock = clock
        super().__init__(Gate(name, max_concurrency, timeouts.first_byte, clock, adaptive=adaptive))
        self._worker = Worker(name)

    async def send(self, request: RequestContext) -> Response:
        call = request.call
        if call is None and isinstance(self._model, Graph):
            told = self._model.about(request.method, request.path)
            if told is not None:
                return Response(200, JSON, Whole(b"" if told is True else orjson.dumps(told)))
        if call is None:
            raise NotFound(f"the path {request.path} is not known, and backend '{self.name}' is no HTTP endpoint")
        answering = self._answering(request, call)  # refuses before a place is taken
        place = await self._gate.enter(request)
        try:
            response = await answering(place)
        except BaseException as error:
            if isinstance(error, BackendError) and error.status == 504:
                place.overdue()
            place.leave()
            raise
        if isinstance(response.body, Whole):
            place.leave()
        return response

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        return [{"id": self._shown, "object": "model", "created": 0, "owned_by": "onnx"}]

    async def ready(self) -> bool:
        return self._worker.alive

    async def close(self) -> None:
        self._worker.close()

    def _answering(self, request: RequestContext, call: Call) -> Callable[[Place], Awaitable[Response]]:
        """What is to be done once there is a place. Raises `Unfit`."""
        if isinstance(self._model, Vectors):
            return partial(self._embed, request, call, self._vector_steps(self._model, call))
        if isinstance(self._model, Graph):
            return partial(self._infer, request, call, self._tensor_steps(self._model, call))
        steps = self._piece_steps(self._model, call)
        created = int(self._clock.wall())
        try:
            answer = call.dialect.text_answer(call, answer_id=request.id, created=created, model=call.model)
        except BadRequest as refused:  # a dialect may say more than text can
            raise Unfit(refused.message, param=refused.param) from None
        return partial(self._write, request, call, steps, answer)

    def _vector_steps(self, model: Vectors, call: Call) -> Steps[Vector]:
        if call.operation != "embeddings":
            raise Unfit(f"backend '{self.name}' embeds texts and writes none")
        if not call.questions:
            raise Unfit("'input' has no text: expected a string or an array of strings", param="input")
        return lambda options: model.vectors(call.questions, options)

    def _tensor_steps(self, model: Graph, call: Call) -> Steps[bytes]:
        if call.operation != "infer":
            raise Unfit(f"backend '{self.name}' is asked with tensors")
        inference: Inference = call.body["inference"]
        return lambda options: model.answers(inference, call.model, options)

    def _piece_steps(self, model: Generator | Classifier, call: Call) -> Steps[Piece]:
        """Raises `Unfit`."""
        if call.operation == "embeddings":
            raise Unfit(f"backend '{self.name}' has no embedding model")
        asked = model.asked(call, _as_openai(call, self.name))

        def steps(options: onnxruntime.RunOptions) -> Iterator[Piece | None]:
            return model.pieces(asked, options)

        return steps

    async def _embed(self, request: RequestContext, call: Call, steps: Steps[Vector], place: Place) -> Response:
        found: list[Vector] = []
        async with aclosing(self._worker.begin(steps)) as work, self._in_time(self._timeouts.total):
            async for vector in work:
                found.append(vector)  # noqa: PERF401 - it is given up within the timeout
        place.answered(request, 200)
        body = call.dialect.embedding_answer(call, [vector.tolist() for vector in found], model=call.model)
        return Response(200, JSON, Whole(body))

    async def _infer(self, request: RequestContext, call: Call, steps: Steps[bytes], place: Place) -> Response:
        async with aclosing(self._worker.begin(steps)) as work, self._in_time(self._timeouts.first_byte):
            answer = await anext(work)
        place.answered(request, 200)
        if call.stream:  # of a client that would take several
            return Response(200, OCTETS, EventStream(Ready((Event(answer),), place.leave)))
        return Response(200, OCTETS, Whole(answer))

    async def _write(
        self, request: RequestContext, call: Call, steps: Steps[Piece], answer: TextAnswer, place: Place
    ) -> Response:
        """Fails before the first piece, or returns with it; a stream holds the place at the gate until its end."""
        pieces = self._pieces(self._worker.begin(steps))
        first = await anext(pieces)
        place.answered(request, 200)
        return await written_answer(call, place, _events(first, pieces, answer), pieces)

    async def _pieces(self, work: Work[Piece]) -> AsyncGenerator[Piece, None]:
        """Raises what the steps raise before the first one, `BackendError` where that takes too long, and after it
        `StreamBroken`. Closing it breaks the work off."""
        deadline, limit, started = self._clock.monotonic() + self._timeouts.total, self._timeouts.first_byte, False
        async with aclosing(work):
            while True:
                try:
                    async with self._in_time(min(limit, max(0.0, deadline - self._clock.monotonic()))):
                        piece = await anext(work)
                except StopAsyncIteration:
                    return
                except BackendError as error:
                    if started:
                        raise StreamBroken(str(error)[:200]) from None
                    raise
                yield piece
                limit, started = self._timeouts.idle, True

    @asynccontextmanager
    async def _in_time(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise BackendError(f"backend '{self.name}' sent no answer in time", status=504) from None


async def _events(first: Piece, pieces: AsyncGenerator[Piece, None], answer: TextAnswer) -> AsyncGenerator[Event, None]:
    async with aclosing(pieces):
        for event in answer.start():
            yield event
        last: Piece = first
        piece: Piece | None = first
        while piece is not None:
            last = piece
            if piece.text or piece.tokens:
                yield answer.delta(piece.text, piece.tokens)
            piece = await anext(pieces, None)
    for event in answer.finish(last.finish or "stop", last.input_tokens, last.output_tokens):
        yield event


def _as_openai(call: Call, backend: str) -> dict[str, Any]:
    """The body of the call as OpenAI's clients would have said it. Raises `Unfit`."""
    if call.dialect.name == "openai":
        return dict(call.body)
    translation = TRANSLATIONS.get((call.dialect.name, "openai"))
    if translation is not None:
        try:
            body: dict[str, Any] = orjson.loads(translation(call, model=None, created=0).outgoing.body)
        except BadRequest as refused:
            raise Unfit(refused.message, param=refused.param) from None
        return body
    if not call.prompt:
        raise Unfit(f"backend '{backend}' reads text, and the {call.dialect.name} call has none for it")
    said = {field: call.body[field] for field in UNDERSTOOD if field in call.body}
    return {**said, "messages": [{"role": "user", "content": call.prompt}]}
