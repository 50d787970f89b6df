"""The services that answer: what `backends` of `config.yaml` may say, one class an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from gateway.config.errors import closest
from gateway.config.fields import EnvironmentName, Folder, Text
from gateway.config.units import PositiveDuration, Switch
from gateway.config.upstreams import (
    BatchRule,
    GrpcUpstream,
    GrpcUpstreams,
    HedgeOrOff,
    HttpUpstream,
    HttpUpstreams,
    ModelMap,
    Retries,
    Sticky,
    address_problems,
)
from gateway.config.urls import GrpcUrl, HttpUrl
from gateway.config.validation import Problem, Section, one_of

_Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
_Concurrency = Annotated[int, Field(ge=1, le=100_000)]


class Timeouts(Section):
    """How long a backend may take, in seconds."""

    connect: PositiveDuration = 2.0
    first_byte: PositiveDuration = 60.0
    idle: PositiveDuration = 30.0  # between two pieces of an answer
    total: PositiveDuration = 600.0


class Price(Section):
    """US dollars for a million tokens: what the saved cost is reckoned with."""

    input_per_million: _Dollars = 0.0
    output_per_million: _Dollars = 0.0


class Tensors(Section):
    """How a Triton model names its tensors."""

    prompt: Text = "text_input"
    max_tokens: Text = "max_tokens"
    answer: Text = "text_output"
    embedding: Text = "embedding"


class OpenAIBackendConfig(Section):
    """An HTTP endpoint that speaks one of the dialects: the adapter is named after it."""

    adapter: Literal["openai", "anthropic", "kserve", "tfserving", "torchserve"]
    url: HttpUrl | None = None
    upstreams: HttpUpstreams | None = None  # instead of `url`
    model: Text | None = None  # sent upstream; None: the name that the client sent
    models: ModelMap = Field(default_factory=dict)
    api_key_env: EnvironmentName | None = None  # None: the client's own credentials go upstream
    client: Annotated[Literal["own", "aiohttp"], one_of("own", "aiohttp")] = "own"  # which HTTP/1.1 client asks it
    max_concurrency: _Concurrency = 64  # of each upstream
    adaptive: Switch = True  # fewer at once than that where more would only wait in the backend
    sticky: Sticky = "off"
    retries: Retries = Field(default_factory=Retries)
    hedge: HedgeOrOff = None
    batch: BatchRule | None = None
    timeouts: Timeouts = Field(default_factory=Timeouts)
    price: Price = Field(default_factory=Price)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from address_problems(given, "https://api.openai.com/v1")
        if given.get("batch") is not None and given.get("adapter") != "kserve":
            yield Problem("batch", "puts calls of tensors together, expected adapter: kserve or triton beside it")

    @property
    def addresses(self) -> tuple[HttpUpstream, ...]:
        """Its upstreams, at least one."""
        return self.upstreams or (HttpUpstream(url=self.url or ""),)


class TritonBackendConfig(Section):
    """A text-generation model on a Triton server, and the model there that embeds."""

    adapter: Literal["triton"]
    url: GrpcUrl | None = None
    upstreams: GrpcUpstreams | None = None  # instead of `url`
    model: Text = Field(examples=["large"])
    models: ModelMap = Field(default_factory=dict)
    embedding_model: Text | None = None
    tensors: Tensors = Field(default_factory=Tensors)
    max_concurrency: _Concurrency = 64  # of each upstream
    adaptive: Switch = True  # fewer at once than that where more would only wait in the backend
    sticky: Sticky = "off"
    retries: Retries = Field(default_factory=Retries)
    hedge: HedgeOrOff = None
    batch: BatchRule | None = None
    reload: Switch = False  # of a model whose process has died: unload and load it
    timeouts: Timeouts = Field(default_factory=Timeouts)
    price: Price = Field(default_factory=Price)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from address_problems(given, "grpc://127.0.0.1:8001")

    @property
    def addresses(self) -> tuple[GrpcUpstream, ...]:
        """Its upstreams, at least one."""
        return self.upstreams or (GrpcUpstream(url=self.url or ""),)


def _writes_none(task: object) -> object:
    if task == "generate":
        raise ValueError(
            "the gateway writes no text itself, expected one of: embed, classify, tensors; run the language model in "
            "a server of its own (python -m llama_cpp.server --model FILE --port 9001) and name that: "
            "adapter: openai, url: http://127.0.0.1:9001/v1"
        )
    return task


class OnnxBackendConfig(Section):
    """A model that runs in the gateway's own process, from a folder as Hugging Face Optimum exports it."""

    adapter: Literal["onnx"]
    path: Folder = Field(examples=["models/small"])
    task: Annotated[
        Literal["embed", "classify", "tensors"], one_of("embed", "classify", "tensors"), BeforeValidator(_writes_none)
    ] = Field(examples=["embed"])
    model: Text | None = None  # the name that lists of models have for it; None: the folder's
    threads: Annotated[int, Field(ge=1, le=256)] = 1  # of one pass
    max_concurrency: _Concurrency = 4  # calls whose texts have their turns
    adaptive: Switch = True  # fewer at once than that where more would only slow each other down
    timeouts: Timeouts = Field(default_factory=Timeouts)
    price: Price = Field(default_factory=Price)


class _Adapter(Section):
    """The one key that decides which class the others are read with."""

    adapter: Annotated[str, one_of("openai", "anthropic", "triton", "kserve", "tfserving", "torchserve", "onnx")] = (
        Field(examples=["openai"])
    )


BackendSection = OpenAIBackendConfig | TritonBackendConfig | OnnxBackendConfig
_OTHERS: Mapping[object, type[TritonBackendConfig | OnnxBackendConfig]] = {
    "triton": TritonBackendConfig,
    "onnx": OnnxBackendConfig,
}


def section_of(adapter: object) -> type[BackendSection]:
    """What the backends of an adapter are read with."""
    return _OTHERS.get(adapter, OpenAIBackendConfig) if isinstance(adapter, str) else OpenAIBackendConfig


def _by_adapter(value: Any) -> BackendSection:
    """Chooses by `adapter` before anything else is looked at: one wrong key is one fault, not one a class."""
    if isinstance(value, BackendSection):
        return value
    if isinstance(value, dict):
        named = "adapter" if "adapter" in value else next((key for key in value if closest(key, ("adapter",))), "")
        chosen = _Adapter.model_validate({key: value[key] for key in (named,) if key in value})
        return section_of(chosen.adapter).model_validate(value)
    return OpenAIBackendConfig.model_validate(value)  # says that a mapping is expected


BackendConfig = Annotated[BackendSection, PlainValidator(_by_adapter, json_schema_input_type=BackendSection)]
