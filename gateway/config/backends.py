"""The section `backends` of `config.yaml`: the services that answer.

The adapter of a backend names the class of its section. Other packages declare theirs as entry points of the group
`nearhit.backends`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import or_
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, PlainValidator, TypeAdapter, WithJsonSchema
from pydantic_core import CoreSchema

from gateway.config.backend_keys import CREDENTIALS, Keyed, header_problems, key_problems
from gateway.config.backend_transport import BackendHeaders, BackendTls, ProxySetting, transport_problems
from gateway.config.errors import KeyPath, closest_match, format_value
from gateway.config.fields import (
    Command,
    EnvironmentName,
    File,
    HttpUrl,
    SourcedSection,
    Text,
    http_url,
    optional_section,
)
from gateway.config.identities import IdentityConfig
from gateway.config.schema_types import ON_OR_OFF, FileForm, ScalarForm, Schema, Shorthand, any_of
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
from gateway.errors import StartupError
from gateway.extensions import Extensions
from gateway.prices import Price, Unit

_HTTP = "gateway.config.backends:OpenAIBackendConfig"

BACKENDS = Extensions(
    "nearhit.backends",
    {
        "openai": _HTTP,
        "anthropic": _HTTP,
        "triton": "gateway.features.triton.settings:TritonBackendConfig",
        "kserve": _HTTP,
        "tfserving": _HTTP,
        "torchserve": _HTTP,
        "gemini": _HTTP,
        "mcp": _HTTP,
        "bedrock": _HTTP,
        "onnx": "gateway.features.onnx_backend.settings:OnnxBackendConfig",
    },
)
"""The section of each adapter: a subclass of `BackendSection`. Those of other packages follow."""

MAX_UPSTREAMS = 256

MAX_HEDGE_BUDGET = 0.2  # share of the calls: with more hedges the upstreams have no time for the calls themselves

_PERCENTILE = ScalarForm(r"p([5-9]\d(?:\.\d)?)", "a percentile from p50 to p99.9 such as p95")

Weight = Annotated[float, Field(gt=0, le=1000)]


class HttpUpstream(Keyed):
    """One address of an HTTP endpoint."""

    url: HttpUrl = Field(examples=["https://host/v1"])
    """The base URL."""
    weight: Weight = 1.0
    """The share of the calls, relative to the weights of the other upstreams."""
    metrics_url: HttpUrl | None = Field(default=None, examples=["http://host:8000/metrics"])
    """The URL of the server's metrics, for vLLM, SGLang, TGI, TensorRT-LLM and Triton. Predictions and the choice of an
    upstream then count the calls of other gateways there. It is read each second, without credentials."""
    api_key_env: EnvironmentName | None = None
    """The variable with the key of this upstream. Without any key of its own, that of the backend applies."""
    api_key_file: File | None = None
    """The file with the key of this upstream."""
    api_key_command: Command | None = None
    """The command that prints the key of this upstream."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        yield from key_problems(settings)

    @classmethod
    def listed_keys(cls) -> list[str]:
        return sorted(super().listed_keys(), key=CREDENTIALS.__contains__)


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


def url_problems(settings: Mapping[str, Any], example: str) -> Iterator[Problem]:
    """Yield the contradictions between `url`, `upstreams` and `hedge`."""
    upstreams = settings.get("upstreams")
    alone = isinstance(upstreams, list | tuple) and len(upstreams) == 1
    if ("upstreams" not in settings or alone) and settings.get("hedge") not in (None, False, "off"):
        yield Problem(
            "hedge", "needs a second upstream and there is one, expected two or more in 'upstreams', or hedge: off"
        )
    if "metrics_url" in settings and "upstreams" in settings:
        yield Problem("metrics_url", "is that of one server, expected a 'metrics_url' in each of the 'upstreams'")
    if "url" in settings and "upstreams" in settings:
        yield Problem("upstreams", "cannot stand next to 'url', expected only one of the two")
    elif "url" not in settings and "upstreams" not in settings:
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

_API_VERSION = ScalarForm(r"\d{4}-\d{2}-\d{2}(-preview)?", "a version of Azure's API such as 2024-10-21")


def _api_version(value: object) -> str:
    return _API_VERSION.read(value)[0]


ApiVersion = Annotated[str, BeforeValidator(_api_version), WithJsonSchema(_API_VERSION.schema)]

Concurrency = Annotated[int, Field(ge=1, le=100_000)]


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

    written_input_per_million: _Dollars | None = None
    """US dollars for a million input tokens that the backend writes to its prompt cache. Without it they cost as much
    as other input."""
    reasoning_per_million: _Dollars | None = None
    """US dollars for a million output tokens that are reasoning. Without it they cost as much as other output."""
    catalogue: Text | None = None
    """The list prices to use: `PROVIDER`, or `PROVIDER/MODEL` for calls whose model has another name there, such as
    `azure/gpt-4o` for a deployment. Other keys of `price` then replace amounts of the list. Without it the address
    decides, unless another key of `price` is written. `off`: no list."""
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
    per_search: _Dollars | None = None
    """US dollars for a search unit of a reranker: a query with up to 100 documents."""

    @property
    def compiled(self) -> Price:
        units = tuple((unit, dollars) for unit in Unit if (dollars := getattr(self, unit)) is not None)
        tokens = self.input_per_million, self.output_per_million, self.cached_input_per_million
        return Price(
            *tokens,
            tuple(self.per_call.items()),
            units,
            written_input_per_million=self.written_input_per_million,
            reasoning_per_million=self.reasoning_per_million,
        )

    @property
    def states(self) -> bool:
        """Whether it says itself what calls cost."""
        return bool(self.model_fields_set - {"catalogue"})

    @property
    def stated(self) -> Mapping[str, Any]:
        """The fields of a `Price` that the section writes."""
        price = self.compiled
        units = {"per_unit"} if any(unit in self.model_fields_set for unit in Unit) else set[str]()
        written = (self.model_fields_set | units) & {each.name for each in fields(Price)}
        return {name: getattr(price, name) for name in sorted(written)}

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        cached, fresh = settings.get("cached_input_per_million"), settings.get("input_per_million", 0)
        if isinstance(cached, int | float) and isinstance(fresh, int | float) and cached > fresh:
            yield Problem(
                "cached_input_per_million",
                f"is {cached:g} and input_per_million is {fresh:g}, expected at most the price of other input",
            )


class BackendSection(SourcedSection):
    """The settings of each backend. A subclass reads those of one adapter, or of several."""

    builder: ClassVar[str]
    """The `UpstreamBuilder` of `gateway.upstream.building`, as `module:attribute`. It is imported when a gateway
    starts, so that a check of the configuration imports no client."""

    adapter: str
    """The protocol: `openai`, `anthropic`, `gemini`, `triton`, `kserve` (Open Inference Protocol over HTTP),
    `tfserving`, `torchserve`, `bedrock` (Converse of Amazon Bedrock), or `mcp` for an MCP server. `onnx` runs a model
    in process."""
    max_concurrency: Concurrency = 64
    """Calls in flight to each upstream. Further calls wait: four of them always, and as many as get their turn soon."""
    adaptive: Switch = True
    """`on`: fewer calls than `max_concurrency` are in flight if more would only wait in the backend. `off`: always
    `max_concurrency`."""
    tenant_share: PositiveShare = 0.5
    """The share of the calls in flight that one tenant may have while calls of others wait. Streamed uploads and
    WebSockets of one tenant never exceed it."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """The timeouts of a call."""
    price: PriceConfig = Field(default_factory=PriceConfig)
    """Prices, with which the gateway computes costs and savings."""

    @property
    def addresses(self) -> Sequence[Section]:
        """The servers; none if the backend runs in the process of the gateway."""
        return ()

    @property
    def credentials(self) -> str:
        """The key that gives the gateway credentials of its own, with the type of an identity; empty without one."""
        return ""

    @property
    def unchecked(self) -> str:
        """Why `nearhit doctor` does not call the backend, as a predicate. It is empty if it does."""
        return ""

    @classmethod
    def listed_keys(cls) -> list[str]:
        own = (key for each in cls.__mro__ for key in inspect.get_annotations(each))
        return [key for key in dict.fromkeys(own) if key in cls.model_fields]


class RemoteBackendSection(BackendSection):
    """The settings of a backend on servers: with several addresses, retries and names of models."""

    model: Text | None = None
    """The model name that goes upstream. Without it the client's name goes upstream. Triton requires it: the text
    model."""
    models: ModelMap = Field(default_factory=dict)
    """Globs of the model names that clients send, each with the name that goes upstream, such as `{"gpt-4o*":
    llama-70b}`. The first match decides."""
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


class OpenAIBackendConfig(RemoteBackendSection, Keyed):
    """An HTTP endpoint. The adapter is named after its protocol."""

    builder = "gateway.upstream.http_upstreams:HttpUpstreams"

    adapter: Literal["openai", "anthropic", "gemini", "kserve", "tfserving", "torchserve", "mcp", "bedrock"]
    url: HttpUrl | None = None
    """The base URL, such as `https://host/v1`; for Anthropic `https://api.anthropic.com`, for Gemini
    `https://generativelanguage.googleapis.com` or that of a project on Vertex AI, for Triton `grpc://HOST:PORT` or
    `grpcs://HOST:PORT`."""
    upstreams: HttpUpstreams | None = None
    """Instead of `url`: addresses of the same models, each a URL or `{url: ..., weight: 2, api_key_env: ...}`."""
    metrics_url: HttpUrl | None = Field(default=None, examples=["http://host:8000/metrics"])
    """The URL of the metrics of the server at `url`, for vLLM, SGLang, TGI, TensorRT-LLM and Triton. Predictions then
    count the calls of other gateways there. It is read each second, without credentials."""
    model: Text | None = None
    models: ModelMap = Field(default_factory=dict)
    api_key_env: EnvironmentName | None = None
    """The variable with the key that replaces the client's credentials. It goes upstream as `Authorization: Bearer`, to
    `anthropic` as `x-api-key`, to `gemini` as `x-goog-api-key`."""
    api_key_file: File | None = None
    """Instead: the file with the key, such as a mounted secret. A new file counts from the next request on."""
    api_key_command: Command | None = None
    """Instead: the command that prints the key, such as `[gcloud, auth, print-access-token]`. It runs again after five
    minutes, before the key ends if the output says when, and when the endpoint answers 401."""
    identity: IdentityConfig | None = None
    """Instead: how the gateway gets its credentials by itself, such as `{type: oauth, token_url: ...}`. The page
    docs/identity.md has the types, and the keys of each."""
    api_version: ApiVersion | None = None
    """For `openai`: Azure's dated API, such as `2024-10-21`. The `url` is that of a resource,
    `https://NAME.openai.azure.com`, where models are deployments, or of one deployment. It is for clients that name no
    version. Azure's v1 API needs none: its `url` ends in `/openai/v1`."""
    headers: BackendHeaders = Field(default_factory=dict)
    """Headers that each call gets, in place of those of the client with these names. `${VAR}` in a value is a
    variable."""
    tls: BackendTls | None = None
    """TLS to the servers, for private authorities and client certificates."""
    proxy: ProxySetting = None
    """The way to the servers: the URL of a proxy such as `http://proxy:3128`, or `environment` for the variables
    `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`. It implies `client: aiohttp`."""
    client: Annotated[Literal["own", "aiohttp"], one_of("own", "aiohttp")] = "own"
    """For HTTP adapters: the HTTP/1.1 client, `own` or `aiohttp`. The second takes twice the CPU per request and
    tolerates more faults of servers."""
    max_concurrency: Concurrency = 64
    adaptive: Switch = True
    tenant_share: PositiveShare = 0.5
    cache_control: Switch = False
    """For `openai`, `on`: the endpoint understands Anthropic's `cache_control`, as OpenRouter and LiteLLM do. The marks
    of Anthropic clients go upstream. `off`: they are left out, because OpenAI and others refuse unknown fields. For
    `bedrock`, models of Anthropic and Amazon Nova get the marks. `on`: all models do, such as those behind an ARN."""
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

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        yield from url_problems(settings, "https://api.openai.com/v1")
        yield from key_problems(settings)
        yield from header_problems(settings, _key_header(settings))
        yield from _azure_problems(settings)
        yield from transport_problems(settings)
        if settings.get("batch") is not None and settings.get("adapter") != "kserve":
            yield Problem("batch", "works on tensors only, expected adapter: kserve or triton")

    @property
    def addresses(self) -> tuple[HttpUpstream, ...]:
        """The upstreams, at least one."""
        return self.upstreams or (HttpUpstream(url=self.url or "", metrics_url=self.metrics_url),)

    def secrets(self) -> Iterator[tuple[KeyPath, str | None]]:
        yield ("api_key_env",), self.api_key_env
        for i, upstream in enumerate(self.upstreams or ()):
            yield ("upstreams", i, "api_key_env"), upstream.api_key_env
        if self.identity is not None:
            yield from ((("identity", *path), variable) for path, variable in self.identity.secrets())

    @property
    def has_credentials(self) -> bool:
        """Whether each upstream gets credentials of the gateway."""
        return self.has_key or all(each.has_key for each in self.addresses)

    @property
    def credentials(self) -> str:
        if self.identity is not None:
            return f"identity {self.identity.type}"
        return next((key for key in CREDENTIALS if getattr(self, key) is not None), "")

    def resolved(self, folder: Path) -> Self:
        upstreams = self.upstreams and tuple(each.with_key_paths(folder) for each in self.upstreams)
        identity = None if self.identity is None else self.identity.resolved(folder)
        tls = None if self.tls is None else self.tls.in_folder(folder)
        update = {"upstreams": upstreams, "identity": identity, "tls": tls}
        return self.with_key_paths(folder).model_copy(update=update)

    def faults(self, folder: Path) -> Iterator[tuple[KeyPath, str]]:
        yield from self.key_faults(folder)
        if self.tls is not None:
            try:
                resolve_name("gateway.upstream.client_tls:ClientTls").of(self.tls.in_folder(folder))
            except OSError as error:
                yield ("tls",), f"the files cannot be used: {error.strerror or type(error).__name__}"
        if self.identity is not None:
            yield from ((("identity", *path), message) for path, message in self.identity.faults(folder))
        for i, upstream in enumerate(self.upstreams or ()):
            yield from ((("upstreams", i, *path), message) for path, message in upstream.key_faults(folder))


def _key_header(settings: Mapping[str, Any]) -> str:
    """Return the header of the gateway's key at the servers, in small letters."""
    if settings.get("api_version") is not None:
        return "api-key"
    return "x-api-key" if settings.get("adapter") == "anthropic" else "authorization"


_OPERATION_URL = re.compile(r"/(?:completions|embeddings|responses|generations|edits|transcriptions|speech)/?$")


def _azure_problems(settings: Mapping[str, Any]) -> Iterator[Problem]:
    if settings.get("api_version") is None:
        return
    if settings.get("adapter") != "openai":
        yield Problem("api_version", "is of Azure's API for OpenAI's models, expected adapter: openai")
    listed = settings.get("upstreams")
    urls = (
        [each.get("url") if isinstance(each, Mapping) else each for each in listed] if isinstance(listed, list) else ()
    )
    for url in (settings.get("url"), *urls):
        if isinstance(url, str) and url.rstrip("/").endswith("/v1"):
            yield Problem(
                "api_version",
                "is of the API with dates and the URL ends in /v1, expected https://NAME.openai.azure.com, or no "
                "api_version",
            )
        elif isinstance(url, str) and _OPERATION_URL.search(url):  # as Azure's pages show it for copying
            yield Problem(
                "api_version",
                "is of the API with dates and the URL is that of one operation, expected "
                "https://NAME.openai.azure.com, or .../openai/deployments/NAME",
            )


def section_of(adapter: object) -> type[BackendSection] | None:
    """Return the class that reads the backends of an adapter. Raise `StartupError` if that of another package is
    broken."""
    section = BACKENDS.load(adapter) if isinstance(adapter, str) else None
    if section is None or (isinstance(section, type) and issubclass(section, BackendSection)):
        return section
    raise StartupError(f"{BACKENDS.group}: {adapter} is {section!r}, expected a subclass of BackendSection")


def _known_adapter(value: object) -> object:
    try:
        if section_of(value) is not None:
            return value
    except StartupError as error:
        raise ValueError(str(error)) from None
    check: Any = one_of(*BACKENDS.names()).func
    return check(value)


class _Adapter(Section):
    """The key that decides which class reads the other keys."""

    adapter: Annotated[str, BeforeValidator(_known_adapter)] = Field(examples=["openai"])
    """The adapter."""


def _parse_backend(value: Any) -> BackendSection:
    """Choose the class by `adapter` first, so that one wrong key is one fault and not one for each class."""
    if isinstance(value, BackendSection):
        return value
    section: type[BackendSection] | None = OpenAIBackendConfig  # it reports that a mapping is expected
    if isinstance(value, dict):
        named = (
            "adapter" if "adapter" in value else next((key for key in value if closest_match(key, ("adapter",))), "")
        )
        chosen = _Adapter.model_validate({key: value[key] for key in (named,) if key in value})
        section = section_of(chosen.adapter)
    assert section is not None  # an unknown adapter is a fault
    return section.model_validate(value)


@dataclass(frozen=True, slots=True)
class _AnySection:
    """Field metadata: the JSON Schema of the sections of all adapters."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        sections = dict.fromkeys(section for name in BACKENDS.names() if (section := section_of(name)) is not None)
        return handler(TypeAdapter(reduce(or_, sections)).core_schema)


BackendConfig = Annotated[BackendSection, PlainValidator(_parse_backend), _AnySection()]
