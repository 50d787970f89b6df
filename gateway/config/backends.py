"""The services that answer: what `backends` of `config.yaml` may say, one class an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from gateway.config.errors import closest_match, format_value
from gateway.config.fields import EnvironmentName, Folder, GrpcUrl, HttpUrl, Text, grpc_url, http_url, optional_section
from gateway.config.schema_types import ScalarForm
from gateway.config.units import POSITIVE_SHARE, PositiveDuration, Share, Switch, parse_positive_share
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of

# The addresses of a backend, and how calls are shared among them.
MAX_UPSTREAMS = 256

MAX_HEDGE_BUDGET = 0.2  # of the calls: beyond it the upstreams have no time left for the calls themselves

_PERCENTILE = ScalarForm(r"p([5-9]\d(?:\.\d)?)", "a percentile from p50 to p99.9 such as p95")

_Weight = Annotated[float, Field(gt=0, le=1000)]


class HttpUpstream(Section):
    """One address of an HTTP endpoint."""

    url: HttpUrl = Field(examples=["https://host/v1"])
    weight: _Weight = 1.0  # its part of the calls, against the others'
    api_key_env: EnvironmentName | None = None  # None: as the backend says


class GrpcUpstream(Section):
    """One Triton server."""

    url: GrpcUrl = Field(examples=["grpc://host:8001"])
    weight: _Weight = 1.0


class Retries(Section):
    """How often a call is sent again, before its first byte."""

    budget: Share = 0.2  # of the calls of the last ten seconds; 0: never
    attempts: Annotated[int, Field(ge=1, le=10)] = 2  # of one call, the first one included


def _quantile(value: object) -> float:
    """`p95` -> 0.95"""
    return float(_PERCENTILE.read(value)[1]) / 100


def _hedge_budget(value: object) -> float:
    share = parse_positive_share(value)
    if share > MAX_HEDGE_BUDGET:
        raise ValueError(f"expected a share of at most {MAX_HEDGE_BUDGET:.0%}, got {format_value(value)}")
    return share


class BatchRule(Section):
    """Calls of equal form are put together before they are sent, for models that do not batch by themselves."""

    max_size: Annotated[int, Field(ge=2, le=4096)] = 32  # rows along the first dimension
    max_wait: PositiveDuration = 0.002  # for others, in seconds


class Hedge(Section):
    """When a second upstream is asked while the first one has not answered."""

    after: Annotated[float, BeforeValidator(_quantile), WithJsonSchema(_PERCENTILE.schema)] = (
        0.95  # of its predicted latency
    )
    budget: Annotated[float, BeforeValidator(_hedge_budget), WithJsonSchema(POSITIVE_SHARE)] = 0.05  # of the calls


def _http_upstream(value: object) -> HttpUpstream:
    """A bare URL stands for a mapping of nothing else."""
    return HttpUpstream(url=http_url(value)) if isinstance(value, str) else HttpUpstream.model_validate(value)


def _grpc_upstream(value: object) -> GrpcUpstream:
    return GrpcUpstream(url=grpc_url(value)) if isinstance(value, str) else GrpcUpstream.model_validate(value)


def _models(value: object) -> object:
    """Checked here, so that the path of a fault is the mapping: a glob may have dots in it."""
    if isinstance(value, dict):
        for glob, name in value.items():
            if not isinstance(glob, str) or not isinstance(name, str) or not glob or not name:
                raise ValueError(
                    f"expected globs with the name of a model each, got {format_value(glob)}: {format_value(name)}"
                )
    return value


HttpUpstreams = Annotated[
    tuple[Annotated[HttpUpstream, PlainValidator(_http_upstream, json_schema_input_type=HttpUpstream | str)], ...],
    NOT_EMPTY,
    Field(strict=False, max_length=MAX_UPSTREAMS),
]

GrpcUpstreams = Annotated[
    tuple[Annotated[GrpcUpstream, PlainValidator(_grpc_upstream, json_schema_input_type=GrpcUpstream | str)], ...],
    NOT_EMPTY,
    Field(strict=False, max_length=MAX_UPSTREAMS),
]

ModelMap = Annotated[Mapping[Text, Text], BeforeValidator(_models)]
"""Globs of the names that clients say -> the name that is sent upstream; the first match decides."""

Sticky = Annotated[
    Literal["off", "conversation", "user"],
    one_of("off", "conversation", "user"),
    WithJsonSchema({"enum": ["off", "conversation", "user", False]}),
]
"""What is kept on one upstream, where its KV cache lies."""

_hedge = optional_section(Hedge, "{after: p95, budget: 5%}")

HedgeOrOff = Annotated[Hedge | None, BeforeValidator(_hedge, json_schema_input_type=Hedge | str | bool | None)]
"""None: a call goes to one upstream at a time."""


def url_problems(given: Mapping[str, Any], example: str) -> Iterator[Problem]:
    """`url` or `upstreams`, no address twice, and another one where calls are to be hedged."""
    upstreams = given.get("upstreams")
    alone = isinstance(upstreams, list | tuple) and len(upstreams) == 1
    if ("upstreams" not in given or alone) and given.get("hedge") not in (None, False, "off"):
        yield Problem("hedge", "asks a second upstream and there is one, expected two in 'upstreams', or off")
    if "url" in given and "upstreams" in given:
        yield Problem("upstreams", "stands instead of 'url', expected one of the two")
    elif "url" not in given and "upstreams" not in given:
        yield Problem(None, f"'url' is required, e.g. url: {example}, or 'upstreams' with several of them")
    if not isinstance(upstreams, list | tuple):
        return
    seen: set[str] = set()
    for upstream in upstreams:
        url = upstream.get("url") if isinstance(upstream, Mapping) else upstream
        if not isinstance(url, str) or "@" in url:  # credentials are a fault of their own, and not repeated
            continue
        if url.rstrip("/") in seen:
            yield Problem(
                "upstreams", f"{format_value(url)} is there twice, expected each address once; 'weight' gives it more"
            )
        seen.add(url.rstrip("/"))


_Dollars = Annotated[float, Field(ge=0, le=1_000_000)]

_Concurrency = Annotated[int, Field(ge=1, le=100_000)]


class Timeouts(Section):
    """How long a backend may take, in seconds."""

    connect: PositiveDuration = 2.0
    first_byte: PositiveDuration = 60.0
    idle: PositiveDuration = 30.0  # between two pieces of an answer
    total: PositiveDuration = 600.0


class PriceConfig(Section):
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
    price: PriceConfig = Field(default_factory=PriceConfig)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from url_problems(given, "https://api.openai.com/v1")
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
    price: PriceConfig = Field(default_factory=PriceConfig)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from url_problems(given, "grpc://127.0.0.1:8001")

    @property
    def addresses(self) -> tuple[GrpcUpstream, ...]:
        """Its upstreams, at least one."""
        return self.upstreams or (GrpcUpstream(url=self.url or ""),)


def _reject_generate(task: object) -> object:
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
        Literal["embed", "classify", "tensors"],
        one_of("embed", "classify", "tensors"),
        BeforeValidator(_reject_generate),
    ] = Field(examples=["embed"])
    model: Text | None = None  # the name that lists of models have for it; None: the folder's
    threads: Annotated[int, Field(ge=1, le=256)] = 1  # of one pass
    max_concurrency: _Concurrency = 4  # calls whose texts have their turns
    adaptive: Switch = True  # fewer at once than that where more would only slow each other down
    timeouts: Timeouts = Field(default_factory=Timeouts)
    price: PriceConfig = Field(default_factory=PriceConfig)


class _Adapter(Section):
    """The one key that decides which class the others are read with."""

    adapter: Annotated[str, one_of("openai", "anthropic", "triton", "kserve", "tfserving", "torchserve", "onnx")] = (
        Field(examples=["openai"])
    )


BackendSection = OpenAIBackendConfig | TritonBackendConfig | OnnxBackendConfig

_SECTION_TYPES: Mapping[object, type[TritonBackendConfig | OnnxBackendConfig]] = {
    "triton": TritonBackendConfig,
    "onnx": OnnxBackendConfig,
}


def backend_section_type(adapter: object) -> type[BackendSection]:
    """What the backends of an adapter are read with."""
    return _SECTION_TYPES.get(adapter, OpenAIBackendConfig) if isinstance(adapter, str) else OpenAIBackendConfig


def _parse_backend(value: Any) -> BackendSection:
    """Chooses by `adapter` before anything else is looked at: one wrong key is one fault, not one a class."""
    if isinstance(value, BackendSection):
        return value
    if isinstance(value, dict):
        named = (
            "adapter" if "adapter" in value else next((key for key in value if closest_match(key, ("adapter",))), "")
        )
        chosen = _Adapter.model_validate({key: value[key] for key in (named,) if key in value})
        return backend_section_type(chosen.adapter).model_validate(value)
    return OpenAIBackendConfig.model_validate(value)  # says that a mapping is expected


BackendConfig = Annotated[BackendSection, PlainValidator(_parse_backend, json_schema_input_type=BackendSection)]
