"""The section `backends` of `config.yaml`: the services that answer, with one class for each kind of adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from gateway.config.errors import closest_match, format_value
from gateway.config.fields import EnvironmentName, Folder, GrpcUrl, HttpUrl, Text, grpc_url, http_url, optional_section
from gateway.config.schema_types import ON_OR_OFF, FileForm, ScalarForm, Shorthand, any_of
from gateway.config.units import (
    POSITIVE_SHARE,
    PositiveDuration,
    PositiveShare,
    Share,
    Switch,
    format_share,
    parse_positive_share,
)
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.messages import Price, Unit

MAX_UPSTREAMS = 256

MAX_HEDGE_BUDGET = 0.2  # share of the calls: with more hedges the upstreams have no time for the calls themselves

_PERCENTILE = ScalarForm(r"p([5-9]\d(?:\.\d)?)", "a percentile from p50 to p99.9 such as p95")

_Weight = Annotated[float, Field(gt=0, le=1000)]


class HttpUpstream(Section):
    """One address of an HTTP endpoint."""

    url: HttpUrl = Field(examples=["https://host/v1"])
    """The base URL."""
    weight: _Weight = 1.0
    """The share of the calls, relative to the weights of the other upstreams."""
    api_key_env: EnvironmentName | None = None
    """The variable with the key of this upstream. Without it the `api_key_env` of the backend applies."""


class GrpcUpstream(Section):
    """One Triton server."""

    described_in = HttpUpstream

    url: GrpcUrl = Field(examples=["grpc://host:8001"])
    """The address, as `grpc://HOST:PORT` or `grpcs://HOST:PORT`."""
    weight: _Weight = 1.0
    metrics_url: HttpUrl | None = Field(default=None, examples=["http://host:8002/metrics"])
    """For `triton`: the URL of the server's metrics. Predictions then count the calls of other gateways that wait
    there."""


class Retries(Section):
    """How often a call is sent again before its first byte."""

    budget: Share = 0.2
    """The share of the calls of the last ten seconds that may be retried, or five calls if that is more. 0: no retries.
    Calls that are sent again because the server had closed a kept connection count."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    """Attempts of one call, the first one included."""


def _quantile(value: object) -> float:
    """Return the quantile that `p95` names, 0.95. Raise `ValueError` for anything else."""
    return float(_PERCENTILE.read(value)[1]) / 100


def _hedge_budget(value: object) -> float:
    share = parse_positive_share(value)
    if share > MAX_HEDGE_BUDGET:
        raise ValueError(f"expected a share of at most {MAX_HEDGE_BUDGET:.0%}, got {format_value(value)}")
    return share


class BatchRule(Section):
    """How calls of equal shape are sent as one, for models that do not batch by themselves."""

    max_size: Annotated[int, Field(ge=2, le=4096)] = 32
    """Rows of one upstream call, along the first dimension."""
    max_wait: PositiveDuration = 0.002
    """How long the first call waits for others."""


class Hedge(Section):
    """When a second upstream gets the call because the first one has not answered."""

    after: Annotated[
        float,
        BeforeValidator(_quantile),
        WithJsonSchema(_PERCENTILE.schema),
        FileForm(lambda quantile: f"p{100 * quantile:g}"),
    ] = 0.95
    """The percentile of the predicted time to the first byte after which the hedge goes out, `p50` to `p99.9`."""
    budget: Annotated[float, BeforeValidator(_hedge_budget), WithJsonSchema(POSITIVE_SHARE), FileForm(format_share)] = (
        0.05
    )
    """The share of the calls that may be hedged, at most 20%."""


def _http_upstream(value: object) -> HttpUpstream:
    """Return an upstream; a bare URL stands for `{url: URL}`."""
    return HttpUpstream(url=http_url(value)) if isinstance(value, str) else HttpUpstream.model_validate(value)


def _grpc_upstream(value: object) -> GrpcUpstream:
    return GrpcUpstream(url=grpc_url(value)) if isinstance(value, str) else GrpcUpstream.model_validate(value)


def _models(value: object) -> object:
    """Check the mapping as a whole, so that a fault names its path: a glob may contain dots."""
    if isinstance(value, dict):
        for glob, name in value.items():
            if not isinstance(glob, str) or not isinstance(name, str) or not glob or not name:
                raise ValueError(f"expected a model name for each glob, got {format_value(glob)}: {format_value(name)}")
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
"""Globs of the names that clients send -> the name that goes upstream; the first match decides."""

Sticky = Annotated[
    Literal["off", "conversation", "user", "prefix"],
    one_of("off", "conversation", "user", "prefix"),
    WithJsonSchema({"enum": ["off", "conversation", "user", "prefix", False]}),
]
"""The calls that stay on one upstream, which has their KV cache."""

_hedge = optional_section(Hedge, "{after: p95, budget: 5%}")

HedgeOrOff = Annotated[
    Hedge | None, BeforeValidator(_hedge, json_schema_input_type=Hedge | str | bool | None), ON_OR_OFF
]
"""None: no hedges."""


def url_problems(given: Mapping[str, Any], example: str) -> Iterator[Problem]:
    """Yield the contradictions between `url`, `upstreams` and `hedge`."""
    upstreams = given.get("upstreams")
    alone = isinstance(upstreams, list | tuple) and len(upstreams) == 1
    if ("upstreams" not in given or alone) and given.get("hedge") not in (None, False, "off"):
        yield Problem(
            "hedge", "needs a second upstream and there is one, expected two or more in 'upstreams', or hedge: off"
        )
    if "url" in given and "upstreams" in given:
        yield Problem("upstreams", "cannot stand next to 'url', expected only one of the two")
    elif "url" not in given and "upstreams" not in given:
        yield Problem(None, f"'url' is required, e.g. url: {example}, or 'upstreams' with a list of URLs")
    if not isinstance(upstreams, list | tuple):
        return
    seen: set[str] = set()
    for upstream in upstreams:
        url = upstream.get("url") if isinstance(upstream, Mapping) else upstream
        if not isinstance(url, str) or "@" in url:  # the field reports credentials, and never repeats them
            continue
        if url.rstrip("/") in seen:
            yield Problem(
                "upstreams",
                f"{format_value(url)} is listed twice, expected each address once; 'weight' sends it more calls",
            )
        seen.add(url.rstrip("/"))


_Dollars = Annotated[float, Field(ge=0, le=1_000_000)]

CallPrices = Annotated[
    Mapping[Text, _Dollars],
    BeforeValidator(lambda value: {"*": value} if isinstance(value, int | float) and value is not True else value),
    Shorthand(lambda inner: any_of({"type": "number", "minimum": 0}, inner)),
]
"""Globs of paths -> the dollars of a call. A number stands for all paths."""

_Concurrency = Annotated[int, Field(ge=1, le=100_000)]


class Timeouts(Section):
    """The timeouts of a call to a backend."""

    connect: PositiveDuration = 2.0
    """The time for a new connection: name lookup, TCP and TLS together. With `client: aiohttp` without the name lookup.
    """
    first_byte: PositiveDuration = 600.0
    """The time from sending the request to the first byte of the response. The default is that of OpenAI's and
    Anthropic's clients: a model may think for minutes."""
    idle: PositiveDuration = 600.0
    """The time between two pieces of a response. The default is that of the same clients."""
    total: PositiveDuration = 3600.0
    """The time of all calls for a request: attempts, hedges, trials and fallbacks. It counts from the first of them."""


class PriceConfig(Section):
    """Prices, with which the gateway computes costs and savings."""

    input_per_million: _Dollars = 0.0
    """US dollars for a million input tokens."""
    output_per_million: _Dollars = 0.0
    """US dollars for a million output tokens."""
    cached_input_per_million: _Dollars | None = None
    """US dollars for a million input tokens that the backend reads from its prompt cache, at most `input_per_million`.
    Without it they cost as much as other input."""

    per_call: CallPrices = Field(default_factory=dict)
    """US dollars for a call, besides its tokens: a number, or globs of paths such as `{"/v1/moderations": 0, "/v1/ocr":
    0.004}`. The first match decides. 0 states that such calls are free."""
    per_image: _Dollars | None = None
    """US dollars for an image that is generated or edited."""
    per_minute: _Dollars | None = None
    """US dollars for a minute of sound that is transcribed or translated, and of an open WebSocket."""
    per_second: _Dollars | None = None
    """US dollars for a second of video that is generated."""
    per_million_characters: _Dollars | None = None
    """US dollars for a million characters that are spoken."""

    @property
    def compiled(self) -> Price:
        units = tuple((unit, dollars) for unit in Unit if (dollars := getattr(self, unit)) is not None)
        tokens = self.input_per_million, self.output_per_million, self.cached_input_per_million
        return Price(*tokens, tuple(self.per_call.items()), units)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        cached, fresh = given.get("cached_input_per_million"), given.get("input_per_million", 0)
        if isinstance(cached, int | float) and isinstance(fresh, int | float) and cached > fresh:
            yield Problem(
                "cached_input_per_million",
                f"is {cached:g} and input_per_million is {fresh:g}, expected at most the price of other input",
            )


class Tensors(Section):
    """The names of a Triton model's tensors."""

    prompt: Text = "text_input"
    """The input tensor with the prompt."""
    max_tokens: Text = "max_tokens"
    """The input tensor with the largest number of output tokens."""
    answer: Text = "text_output"
    """The output tensor with the text."""
    embedding: Text = "embedding"
    """The output tensor with the embedding."""


class OpenAIBackendConfig(Section):
    """An HTTP endpoint. The adapter is named after its protocol."""

    adapter: Literal["openai", "anthropic", "kserve", "tfserving", "torchserve", "mcp"]
    """The protocol: `openai`, `anthropic`, `triton`, `kserve` (Open Inference Protocol over HTTP), `tfserving`,
    `torchserve`, or `mcp` for an MCP server. `onnx` runs a model in process."""
    url: HttpUrl | None = None
    """The base URL, such as `https://host/v1`; for Anthropic `https://api.anthropic.com`, for Triton `grpc://HOST:PORT`
    or `grpcs://HOST:PORT`."""
    upstreams: HttpUpstreams | None = None
    """Instead of `url`: addresses of the same models, each a URL or `{url: ..., weight: 2, api_key_env: ...}`."""
    model: Text | None = None
    """The model name that goes upstream. Without it the client's name goes upstream. Triton requires it: the text
    model."""
    models: ModelMap = Field(default_factory=dict)
    """Globs of the model names that clients send, each with the name that goes upstream, such as `{"gpt-4o*":
    llama-70b}`. The first match decides."""
    api_key_env: EnvironmentName | None = None
    """The variable with the key that replaces the client's credentials. It goes upstream as `Authorization: Bearer`, to
    `anthropic` as `x-api-key`."""
    client: Annotated[Literal["own", "aiohttp"], one_of("own", "aiohttp")] = "own"
    """For HTTP adapters: the HTTP/1.1 client, `own` or `aiohttp`. The second takes twice the CPU per request and
    tolerates more faults of servers."""
    max_concurrency: _Concurrency = 64
    """Calls in flight to each upstream. Further calls wait: four of them always, and as many as get their turn soon."""
    adaptive: Switch = True
    """`on`: fewer calls than `max_concurrency` are in flight if more would only wait in the backend. `off`: always
    `max_concurrency`."""
    tenant_share: PositiveShare = 0.5
    """The share of the calls in flight that one tenant may have while calls of others wait. Streamed uploads and
    WebSockets of one tenant never exceed it."""
    cache_control: Switch = False
    """For `openai`, `on`: the endpoint understands Anthropic's `cache_control`, as OpenRouter and LiteLLM do. The marks
    of Anthropic clients go upstream. `off`: they are left out, because OpenAI and others refuse unknown fields."""
    stream_usage: Switch = True
    """For `openai`, `on`: the gateway asks streams for their usage (`stream_options`). It stops by itself for a model
    whose server refuses that. `off`: never; the usage of streams is then estimated, unless the client asks for it."""
    reasoning_content: Switch = False
    """For `openai`, `on`: the endpoint reads the reasoning of earlier turns from `reasoning_content`, as Kimi and
    DeepSeek require while tools are called. The thinking of Anthropic clients goes upstream in it. `off`: it is left
    out, because OpenAI and others refuse unknown fields."""
    unsigned_thinking: Switch = False
    """For `anthropic`, `on`: the endpoint accepts thinking without a signature, as llama.cpp does. `off`: Anthropic
    refuses it, so it is left out, as is `thinking` where a tool was called without."""
    responses_websocket: Annotated[Literal["calls", "tunnel"], one_of("calls", "tunnel")] = "calls"
    """`calls`: the gateway serves WebSockets on `/v1/responses`, whose messages are calls. `tunnel`: they reach this
    endpoint as they are, without caches and rates of requests. Limits of tokens and cost count their usage."""
    sticky: Sticky = "off"
    """`conversation`: all turns of a conversation go to one upstream, which has their KV cache. `user`: all calls of an
    end user do. `prefix`: a call goes to the upstream that saw the longest prefix of its prompt, until the load of that
    upstream is twice the least."""
    retries: Retries = Field(default_factory=Retries)
    """How often a call is sent again before its first byte."""
    hedge: HedgeOrOff = None
    """`on`, or `{after: p95, budget: 5%}`: a call without a first byte in time also goes to a second upstream. The
    first usable response is served; both calls are billed."""
    batch: BatchRule | None = None
    """For `kserve` and `triton`: send inference requests of equal shape as one call, such as `{max_size: 32, max_wait:
    2ms}`."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """The timeouts of a call."""
    price: PriceConfig = Field(default_factory=PriceConfig)
    """Prices, with which the gateway computes costs and savings."""

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from url_problems(given, "https://api.openai.com/v1")
        if given.get("batch") is not None and given.get("adapter") != "kserve":
            yield Problem("batch", "works on tensors only, expected adapter: kserve or triton")

    @property
    def addresses(self) -> tuple[HttpUpstream, ...]:
        """The upstreams, at least one."""
        return self.upstreams or (HttpUpstream(url=self.url or ""),)


class TritonBackendConfig(Section):
    """A text-generation model on a Triton server, and the embedding model there."""

    described_in = OpenAIBackendConfig

    adapter: Literal["triton"]
    url: GrpcUrl | None = None
    upstreams: GrpcUpstreams | None = None
    metrics_url: HttpUrl | None = Field(default=None, examples=["http://host:8002/metrics"])
    """For `triton`: the URL of the metrics of the server at `url`. Predictions then count the calls of other gateways
    that wait there."""
    model: Text = Field(examples=["large"])
    models: ModelMap = Field(default_factory=dict)
    embedding_model: Text | None = None
    """For `triton`: the model that answers `/v1/embeddings`."""
    tensors: Tensors = Field(default_factory=Tensors)
    """For `triton`: the names of the model's tensors."""
    max_concurrency: _Concurrency = 64
    adaptive: Switch = True
    tenant_share: PositiveShare = 0.5
    sticky: Sticky = "off"
    retries: Retries = Field(default_factory=Retries)
    hedge: HedgeOrOff = None
    batch: BatchRule | None = None
    reload: Switch = False
    """For `triton`, `on`: the gateway unloads and loads a model whose process has died. The server needs
    `--model-control-mode=explicit`."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    price: PriceConfig = Field(default_factory=PriceConfig)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        yield from url_problems(given, "grpc://127.0.0.1:8001")
        if "metrics_url" in given and "upstreams" in given:
            yield Problem("metrics_url", "is that of one server, expected a 'metrics_url' in each of the 'upstreams'")

    @property
    def addresses(self) -> tuple[GrpcUpstream, ...]:
        """The upstreams, at least one."""
        return self.upstreams or (GrpcUpstream(url=self.url or "", metrics_url=self.metrics_url),)


def _reject_generate(task: object) -> object:
    if task == "generate":
        raise ValueError(
            "the gateway does not generate text itself, expected one of: embed, classify, tensors; run the language "
            "model in a separate server (python -m llama_cpp.server --model FILE --port 9001) and use "
            "adapter: openai, url: http://127.0.0.1:9001/v1"
        )
    return task


class OnnxBackendConfig(Section):
    """A model in the gateway's own process, from a folder that Hugging Face Optimum exports."""

    described_in = OpenAIBackendConfig

    adapter: Literal["onnx"]
    """`onnx`: a model in the gateway's own process."""
    path: Folder = Field(examples=["models/small"])
    """The folder of the model."""
    task: Annotated[
        Literal["embed", "classify", "tensors"],
        one_of("embed", "classify", "tensors"),
        BeforeValidator(_reject_generate),
    ] = Field(examples=["embed"])
    """`embed`: sentence embeddings. `classify`: a text classifier, which answers with its label. `tensors`: any graph,
    called with tensors."""
    model: Text | None = None
    """The name in lists of models. Without it, the name of the folder. The gateway accepts any name from clients."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of one forward pass. The embedder has its own."""
    max_concurrency: _Concurrency = 4
    """Calls that run at the same time. Others wait."""
    adaptive: Switch = True
    tenant_share: PositiveShare = 0.5
    timeouts: Timeouts = Field(default_factory=Timeouts)
    price: PriceConfig = Field(default_factory=PriceConfig)


class _Adapter(Section):
    """The key that decides which class reads the other keys."""

    adapter: Annotated[
        str, one_of("openai", "anthropic", "triton", "kserve", "tfserving", "torchserve", "mcp", "onnx")
    ] = Field(examples=["openai"])
    """The adapter."""


BackendSection = OpenAIBackendConfig | TritonBackendConfig | OnnxBackendConfig

_SECTION_TYPES: Mapping[object, type[TritonBackendConfig | OnnxBackendConfig]] = {
    "triton": TritonBackendConfig,
    "onnx": OnnxBackendConfig,
}


def backend_section_type(adapter: object) -> type[BackendSection]:
    """Return the class that reads the backends of an adapter."""
    return _SECTION_TYPES.get(adapter, OpenAIBackendConfig) if isinstance(adapter, str) else OpenAIBackendConfig


def _parse_backend(value: Any) -> BackendSection:
    """Choose the class by `adapter` first, so that one wrong key is one fault and not one for each class."""
    if isinstance(value, BackendSection):
        return value
    if isinstance(value, dict):
        named = (
            "adapter" if "adapter" in value else next((key for key in value if closest_match(key, ("adapter",))), "")
        )
        chosen = _Adapter.model_validate({key: value[key] for key in (named,) if key in value})
        return backend_section_type(chosen.adapter).model_validate(value)
    return OpenAIBackendConfig.model_validate(value)  # reports that a mapping is expected


BackendConfig = Annotated[BackendSection, PlainValidator(_parse_backend, json_schema_input_type=BackendSection)]
