"""The models of one Triton server: their configurations, their health, and the repository API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from gateway.config.backends import Timeouts
from gateway.errors import BackendError, ModelControlDisabled
from gateway.features.triton.settings import Tensors
from gateway.ports import ModelCondition

PROBE_TEXT = "ping"  # the prompt of a health probe

MAX_PROBE_S = 60.0  # for its answer

LOAD_TIMEOUT_S = 300.0  # weights of a large model come from a disk or over a network


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The relevant part of a model's configuration."""

    decoupled: bool
    batched: bool
    inputs: frozenset[str]
    max_tokens_type: str


class TritonModels:
    """The models of one server, as one backend uses it. `names` lists the models known beforehand."""

    def __init__(
        self,
        backend: str,
        server: str,
        client: triton.InferenceServerClient,
        names: Sequence[str],
        tensors: Tensors,
        timeouts: Timeouts,
    ) -> None:
        self.server = server
        self._backend = backend
        self._client = client
        self._tensors = tensors
        self._timeouts = timeouts
        self._described: dict[str, ModelConfig] = {}
        self._conditions = dict.fromkeys(names, ModelCondition.READY)
        self._wrong = asyncio.Event()

    @property
    def conditions(self) -> Mapping[str, ModelCondition]:
        """The conditions by model name; all models are ready until a call tells otherwise."""
        return self._conditions

    @property
    def first_byte_s(self) -> float:
        """The seconds that an answer may take."""
        return min(self._timeouts.first_byte, MAX_PROBE_S)

    @property
    def connect_s(self) -> float:
        """The seconds that the server may take to report its state."""
        return self._timeouts.connect

    def forget(self, name: str) -> None:
        """Read the configuration of a model again at its next call."""
        self._described.pop(name, None)

    async def wait_unready(self) -> None:
        """Wait until a model is not ready."""
        await self._wrong.wait()

    def record(self, name: str, condition: ModelCondition) -> None:
        """Record the result of a call or a probe for one of `names`."""
        if name in self._conditions and self._conditions[name] is not condition:
            self._conditions[name] = condition
            if any(each is not ModelCondition.READY for each in self._conditions.values()):
                self._wrong.set()
            else:
                self._wrong.clear()

    async def loaded(self, name: str) -> bool:
        """Return whether the server reports the model ready. It does so even if the model's process has died."""
        try:
            async with asyncio.timeout(self._timeouts.connect):
                return bool(await self._client.is_model_ready(name))
        except (InferenceServerException, TimeoutError, OSError):
            return False

    async def answers(self, name: str) -> bool:
        """Return whether the model answers a call with one word, limited to one output token if the model supports a
        limit."""
        try:
            model = await self.describe(name)
            inputs = self.inputs(model, PROBE_TEXT, 1)
            async with self.call_timeout(self.first_byte_s):
                if model.decoupled:
                    await self._first_response(name, inputs)
                else:
                    await self._client.infer(name, inputs)
        except (InferenceServerException, BackendError, OSError) as error:
            if isinstance(error, InferenceServerException) and (condition := condition_from_error(error)) is not None:
                self.record(name, condition)
            return False
        return True

    async def reload(self, name: str) -> None:
        """Unload the model and load it again.

        Raise `ModelControlDisabled` if the server does not allow that. Raise `BackendError` if the model cannot be
        loaded; it is then absent.
        """
        self.forget(name)
        try:
            async with self.call_timeout(LOAD_TIMEOUT_S):
                await self._client.unload_model(name)
                await self._client.load_model(name)
        except InferenceServerException as error:
            if "is not allowed" in error.message():
                raise ModelControlDisabled(error.message()) from None
            raise BackendError(f"model '{name}' cannot be loaded at {self.server}: {error.message()}"[:300]) from None

    async def describe(self, name: str) -> ModelConfig:
        """Return the configuration of a model. It is read once; a failure is not cached."""
        if name not in self._described:
            async with self.call_timeout(self._timeouts.connect):
                config = (await self._client.get_model_config(name)).config
            types = {tensor.name: tensor.data_type for tensor in config.input}
            limit_type = types.get(self._tensors.max_tokens)
            self._described[name] = ModelConfig(
                decoupled=config.model_transaction_policy.decoupled,
                batched=config.max_batch_size > 0,
                inputs=frozenset(types),
                max_tokens_type=model_config_pb2.DataType.Name(limit_type).removeprefix("TYPE_") if limit_type else "",
            )
        return self._described[name]

    def inputs(self, model: ModelConfig, text: str, max_tokens: int | None) -> list[triton.InferInput]:
        shape = [1, 1] if model.batched else [1]
        prompt = triton.InferInput(self._tensors.prompt, shape, "BYTES")
        prompt.set_data_from_numpy(np.array([text.encode()], dtype=object).reshape(shape))
        if max_tokens is None or self._tensors.max_tokens not in model.inputs:
            return [prompt]
        # Beyond int32 a number of tokens means "no limit".
        limit = np.array([min(max_tokens, 2**31 - 1)], dtype=triton_to_np_dtype(model.max_tokens_type))
        tokens = triton.InferInput(self._tensors.max_tokens, shape, model.max_tokens_type)
        tokens.set_data_from_numpy(limit.reshape(shape))
        return [prompt, tokens]

    @asynccontextmanager
    async def call_timeout(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise BackendError(f"backend '{self._backend}' sent no answer in time", status=504) from None

    async def _first_response(self, name: str, inputs: list[triton.InferInput]) -> None:
        stream = self._client.stream_infer(single_request(name, inputs, ""))
        try:
            _, error = await anext(stream)
            if error is not None:
                raise error
        except StopAsyncIteration:
            raise BackendError(f"model '{name}' sent no answer") from None
        finally:
            stream.cancel()


def condition_from_error(error: InferenceServerException) -> ModelCondition | None:
    """Return the condition that Triton's message implies. Triton has no status codes for these conditions, and on
    streams none for any error."""
    message = error.message()
    if "Stub process" in message and "is not healthy" in message:
        return ModelCondition.DEAD
    return ModelCondition.ABSENT if "Request for unknown model" in message or "is not ready" in message else None


async def single_request(
    model: str, inputs: list[triton.InferInput], request_id: str, version: str = ""
) -> AsyncIterator[dict[str, Any]]:
    """Yield one request, and then end the gateway's half of the stream.

    Triton closes its half after the last response. So a model that sends its final flag in an empty response, which
    this client cannot request, ends no later.
    """
    yield {"model_name": model, "model_version": version, "inputs": inputs, "request_id": request_id}
