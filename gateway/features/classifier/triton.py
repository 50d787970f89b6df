"""A classifier on a Triton server: one text in, one score or the name of a tier out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from gateway.adapters.triton_channel import OPTIONS
from gateway.features.classifier.answers import of_score, of_tier
from gateway.features.classifier.question import (
    ClassifierAnswer,
    ClassifierAnswerInvalid,
    ClassifierFailed,
    ClassifierQuestion,
)

SCORES = frozenset({"FP16", "FP32", "FP64"})
OUTPUTS = ("score", "tier", "text_output")  # looked for by name, in this order, if a model has several outputs


@dataclass(frozen=True, slots=True)
class TextModel:
    """The tensors of a model that classifies a text."""

    input: str
    shape: tuple[int, ...]  # of the one text
    output: str
    scores: bool  # the output is a number; otherwise it is a name


class TritonClassifier:
    """`TritonClassifier` calls one model. Its `url` is grpc:// or grpcs://HOST:PORT.

    The model has one BYTES input for one text. Its output is a float, which is the score, or BYTES, the name of a tier.
    If there are several outputs, the first of `OUTPUTS` counts; a model of `nearhit distill` has `text_output`.
    """

    def __init__(self, url: str, model: str) -> None:
        scheme, _, address = url.partition("://")
        self._client = triton.InferenceServerClient(address, ssl=scheme == "grpcs", channel_args=OPTIONS)
        self._model = model
        self._described: asyncio.Task[TextModel] | None = None

    async def ask(self, question: ClassifierQuestion) -> ClassifierAnswer:
        try:
            model = await self._describe()
            tensor = triton.InferInput(model.input, list(model.shape), "BYTES")
            tensor.set_data_from_numpy(np.full(model.shape, question.text.encode("utf-8", "replace"), np.object_))
            wanted = [triton.InferRequestedOutput(model.output)]
            result = await self._client.infer(self._model, [tensor], outputs=wanted)
        except InferenceServerException as error:
            self._described = None  # the server may have another version of the model by now
            raise ClassifierFailed(f"the call failed: {error.status() or 'no status'}") from None
        return _answer(model, result.as_numpy(model.output))

    async def close(self) -> None:
        if self._described is not None:
            self._described.cancel()
        await self._client.close()

    async def _describe(self) -> TextModel:
        """Return the model's tensors. One call asks for them, and outlives a request that stops waiting."""
        task = self._described
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._described = asyncio.create_task(self._fetch())
            task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _fetch(self) -> TextModel:
        about = await self._client.get_model_metadata(self._model, as_json=True)
        return text_model(about.get("inputs", ()), about.get("outputs", ()))


def _retrieve(task: asyncio.Task[TextModel]) -> None:
    """Mark the error of a task as seen, also if no request waits for it any more."""
    if not task.cancelled():
        task.exception()


def text_model(inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> TextModel:
    """Return the tensors of a model from its metadata. Raise `ClassifierFailed` if it does not classify one text."""
    texts = [each for each in inputs if each["datatype"] == "BYTES"]
    if len(inputs) != 1 or len(texts) != 1:
        raise ClassifierFailed(f"the model has {len(inputs)} inputs, expected one of type BYTES")
    shape = tuple(max(1, int(size)) for size in texts[0].get("shape", ()))  # -1: any size
    if prod(shape) != 1:
        raise ClassifierFailed("the model's input has a fixed size, expected one text")
    usable = {each["name"]: each["datatype"] for each in outputs if each["datatype"] in {*SCORES, "BYTES"}}
    name = next((name for name in (*OUTPUTS, *(usable if len(usable) == 1 else ())) if name in usable), None)
    if name is None:
        raise ClassifierFailed(
            "the model has no clear output, expected one float or BYTES, or one named score, tier or text_output"
        )
    return TextModel(str(texts[0]["name"]), shape, name, usable[name] in SCORES)


def _answer(model: TextModel, scores: Any) -> ClassifierAnswer:
    if scores is None or scores.size != 1:
        raise ClassifierAnswerInvalid("its answer has not one element, expected one for one text")
    value = scores.flatten()[0]
    if model.scores:
        return of_score(float(value))
    return of_tier(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
