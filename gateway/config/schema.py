"""The sections of `config.yaml`. Field names are the keys of the file; durations are in seconds, sizes in bytes.

The string below a field is its description. `gateway.config.descriptions` reads it for the JSON Schema and for
docs/configuration.md, so code spans are in backticks and there are no links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.auth import AuditTrailConfig, AuthConfig
from gateway.config.backends import BackendConfig
from gateway.config.fields import (
    EnvironmentName,
    File,
    Folder,
    GrpcUrl,
    IndexDevice,
    IndexUrl,
    Name,
    ReceiverUrl,
    Text,
    Version,
    milvus_lite_path,
    optional_section,
    triton_problems,
)
from gateway.config.schema_types import ON_OR_OFF
from gateway.config.store import StoreConfig
from gateway.config.units import (
    Address,
    Duration,
    DurationOrOff,
    Listen,
    PositiveDuration,
    PositiveShare,
    Share,
    Size,
    Switch,
    parse_address,
)
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.extensions import Extensions
from gateway.outcomes import Verdict

# Of a stream, by default. Four images of 6 MB in base64 fit in it.
MAX_EVENT = 32 * 2**20

MAX_BODY = 10 * 2**20  # bytes, by default
MAX_BODY_KEYS = 50_000  # by default. orjson reads them in 3 to 8 ms, and keeps the interpreter's lock


class JobsConfig(Section):
    """Asynchronous inference: the gateway accepts a request now and answers it later."""

    enabled: Switch = True
    """`on`: the gateway serves `POST /v1/jobs` and `Prefer: respond-async`. `off`: it handles both like any other
    request."""
    workers: Annotated[int, Field(ge=0, le=10_000)] = 16
    """Jobs that this gateway runs at the same time. 0: it only accepts jobs, and other gateways on the store run them.
    """
    max_queued: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Jobs that wait or run, over all gateways on the store. Beyond it a new job gets 503 with `Retry-After`."""
    max_queued_per_tenant: Annotated[int, Field(ge=1, le=10_000_000)] = 2_500
    """Jobs of one tenant that wait or run. Beyond it a new job gets 429."""
    max_body: Size = 2**20
    """The largest request body of a job."""
    max_bytes: Size = 256 * 2**20
    """The size of the requests of all unfinished jobs together. The files of batches have the same bound."""
    max_result: Size = 4 * 2**20
    """The largest response of a job. A larger one fails the job."""
    result_ttl: PositiveDuration = 86_400.0
    """How long the response of a job is kept."""
    dead_ttl: PositiveDuration = 604_800.0
    """How long a job whose attempts all failed is kept for an operator."""
    max_age: PositiveDuration = 86_400.0
    """A job that is not finished by this age fails."""
    visibility: PositiveDuration = 30.0
    """A worker without a heartbeat for this long loses its jobs to others. It sends one every second, or three within
    this time."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts for a job whose backend fails or whose worker goes away."""
    fsync: Switch = False
    """`on`: the gateway answers 202 only when the job is on the store's disk."""
    key_env: EnvironmentName | None = None
    """The variable with the secret that encrypts clients' credentials while their jobs wait. Without it, a gateway with
    an embedded store makes one in `data_dir/jobs.key`. On a shared store it refuses jobs that need credentials."""
    webhook_secret_env: EnvironmentName | None = None
    """The variable with the secret, `whsec_...`, that signs webhooks. Without it there are no webhooks."""
    webhook_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Hosts, as `host` or `host:port`, that webhooks may reach although they are private or without TLS."""
    webhook_attempts: Annotated[int, Field(ge=1, le=100)] = 8
    """Attempts to deliver one webhook."""
    batches: Switch = False
    """`on`: the gateway serves OpenAI's `/v1/files` and `/v1/batches` itself. `off`: they pass through."""
    max_batch: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Requests in one batch."""
    file_ttl: PositiveDuration = 604_800.0
    """How long files and batches are kept."""


CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class Traces(Section):
    """Export of spans over OTLP (OpenTelemetry's protocol; HTTP with protobuf)."""

    endpoint: ReceiverUrl | None = None
    """The base URL of an OTLP receiver, such as `http://127.0.0.1:4318`; the gateway adds `/v1/traces`. Without it
    there are no traces."""
    headers_env: EnvironmentName | None = None
    """The variable with the headers for the receiver, as `name=value,name=value`, values percent-encoded."""
    sample: Share = 1.0
    """The share of traces to export, of those that begin here. A client's `traceparent` decides for its own traces."""
    slow: DurationOrOff = 30.0
    """A request that takes at least this long is always exported, and so is one that fails. `off`: duration does not
    count."""
    max_queued: Annotated[int, Field(ge=256, le=1_000_000)] = 8192
    """Spans that wait for export, 1 to 2 kB each. More are dropped and counted."""
    timeout: PositiveDuration = 5.0
    """The time to send one batch of spans, with all attempts. No request waits for it."""
    service_name: Text = "nearhit"
    """The `service.name` of the spans."""


class AccessLogConfig(Section):
    """The access log: one line for each request."""

    sample: Mapping[str, Share] = Field(default={})
    """The share of requests to log, by verdict or status class, such as `{exact: 1%, 4xx: 10%}`. The status class
    decides first. All others are logged."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        sample = settings.get("sample")
        names = (*(verdict.value for verdict in Verdict), *CLASSES)
        for word in sample if isinstance(sample, dict) else ():
            if word not in names:
                yield Problem(
                    "sample",
                    f"{str(word)[:64]!r} is not a verdict or a status class, expected one of: {', '.join(names)}",
                )


class TelemetryConfig(Section):
    """Reports on single requests, besides the metrics: traces and the access log."""

    traces: Traces = Field(default_factory=Traces)
    """Export of traces over OTLP."""
    access_log: AccessLogConfig = Field(default_factory=AccessLogConfig)
    """One line for each request."""


class TrafficConfig(Section):
    """The traffic log in `data_dir/traffic`. The gateway records the routes whose policy has `record`."""

    max_size: Size = 2**30
    """The size of all segments together. The oldest are removed first."""
    max_age: PositiveDuration = 7 * 86_400.0
    """A segment is removed when its last request is older. The gateway checks this when it begins a segment."""
    segment_size: Size = 16 * 2**20
    """The size at which the gateway begins the next segment."""
    segment_age: PositiveDuration = 3_600.0
    """The age at which the gateway begins the next segment."""
    flush: PositiveDuration = 1.0
    """How often records are written to disk. If the process dies, at most this much is lost."""
    max_buffered: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Requests that wait to be written. More are dropped and counted."""
    simulate_timeout: PositiveDuration = 120.0
    """The time that `POST /admin/simulate` may take."""


class LearningConfig(Section):
    """Learning in the background: comparisons of answers, and audits."""

    cpu_share: PositiveShare = 0.1
    """The CPU that learning may take, as a share of the CPU that requests take in the event loop and the embedder.
    `100%`: no bound."""


class TuneConfig(Section):
    """Tuning of the verifier by the labels that routes keep (`learn: {keep: 30d}`)."""

    every: PositiveDuration | None = None
    """How often `nearhit tune` runs in a process of its own, at low priority, such as `24h`. Without it, never."""


class LightConfig(Section):
    """Training of the light models of routes with `rollout`."""

    every: PositiveDuration | None = None
    """How often `nearhit light` runs in a process of its own, at low priority, such as `24h`. Without it, never. Set it
    on one gateway of those on a store."""
    repository: Folder = Path("build/models")
    """The model repository of the Triton servers, to which new versions are written."""
    min_rows: Annotated[int, Field(ge=20, le=20_000)] = 200
    """The questions with the large model's answer that a training needs at least."""


class CrossEncoderConfig(Section):
    """The cross-encoder, which reads a question and a neighbour that could be served together."""

    adapter: Annotated[Literal["onnx", "triton"], one_of("onnx", "triton")] = "onnx"
    """`onnx`: in process, for the `onnx` embedder; with another one there is no cross-encoder. `triton`: on a server
    that gateways share, with any embedder."""
    url: GrpcUrl | None = None
    """For `triton`: the server, as `grpc://HOST:PORT` or `grpcs://HOST:PORT`."""
    model: Text = "cross_encoder"
    """For `triton`: the name of the model there."""
    timeout: PositiveDuration = 0.25
    """For `triton`: the time to score one pair. When it passes, the verifier's first score decides."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        return triton_problems(settings, ("url", "model", "timeout"))


_cross_encoder = optional_section(CrossEncoderConfig, "{adapter: triton, url: grpc://127.0.0.1:8001}")


class VerifierConfig(Section):
    """The verifier, which decides whether the answer of a similar question may be served."""

    adapter: Annotated[Literal["checks", "learned"], one_of("checks", "learned")] = "learned"
    """`learned`: the log-odds of a right answer, from similarity, boosted trees and the cross-encoder
    (docs/decisions/0006). `checks`: similarity, with lexical checks that refuse."""
    cross_encoder: Annotated[
        CrossEncoderConfig | None,
        BeforeValidator(_cross_encoder, json_schema_input_type=CrossEncoderConfig | str | bool | None),
        ON_OR_OFF,
    ] = CrossEncoderConfig()
    """For `learned`: a small model that reads the best two neighbours that could be served, in 1.5 ms each. `off`: no
    such model. A mapping configures it."""


# RFC 6454 section 6.2: nothing behind the host and the port, not even a slash.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", re.ASCII)


class CorsConfig(Section):
    """Cross-origin resource sharing (CORS): the web pages that may call the gateway from a browser."""

    origins: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Origins of web pages that may call the gateway, such as `[https://app.example]`, or `["*"]` for all."""
    max_age: Duration = 600.0
    """How long a browser may cache the response to a preflight."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        origins = settings.get("origins")
        for origin in origins if isinstance(origins, list | tuple) else ():
            if isinstance(origin, str) and origin != "*" and ORIGIN.fullmatch(origin) is None:
                yield Problem(
                    "origins", f"{origin!r} is not an origin, expected scheme and host such as https://app.example"
                )


class TlsConfig(Section):
    """TLS on the data port and the gRPC port."""

    certificate: File
    """PEM file with the certificate, then its chain to a root."""
    key: File
    """PEM file with the private key, without a password."""
    client_ca: File | None = None
    """PEM file with the authorities of client certificates, read at start. With it, only clients with such a
    certificate may connect."""


class ServerConfig(Section):
    """The ports, and the bounds on connections and requests."""

    listen: Listen = Address("127.0.0.1", 8080)
    """The address of the data port: the base URL for clients."""
    admin: Listen = Address("127.0.0.1", 9090)
    """The address of the admin port: dashboard, admin API and metrics. Beyond loopback it requires
    `auth.admin_token_env` or `auth.oidc`."""
    grpc: Listen | None = None
    """The address of the gRPC port (KServe v2), such as `127.0.0.1:8081`. Without it there is no gRPC port."""
    tls: TlsConfig | None = None
    """TLS 1.2 and newer on the data and the gRPC port, which then refuse plain connections. Without it TLS must end
    before the gateway."""
    admin_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Further host names of the admin port, such as `nearhit.internal`. Its own address always works."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that serve `server.listen`. With more than one, a supervisor restarts them."""
    max_body: Size = MAX_BODY
    """The largest request body that the gateway reads, before and after decompression. A larger one gets 413."""
    max_body_keys: Annotated[int, Field(ge=1_000)] = MAX_BODY_KEYS
    """The most keys of all objects in a JSON body. More would hold up other requests while they are read, so they get
    413."""
    max_header: Size = 32 * 2**10
    """The longest header line."""
    max_event: Size = MAX_EVENT
    """The longest event of a backend's stream, such as one with an image. A longer one breaks the stream, which then
    ends with an error event."""
    header_timeout: PositiveDuration = 10.0
    """The time for the head of the first request of a connection."""
    body_timeout: PositiveDuration = 30.0
    """The time for a body that the gateway reads, and for each pause in a body that it streams through."""
    body_min_rate: Size = 4 * 2**10
    """The lowest rate, in bytes per second, of a body that streams through for longer than `body_timeout`. A slower one
    gets 408."""
    body_total: PositiveDuration = 900.0
    """The total time for a body that streams through. A slower one gets 408."""
    read_timeout: PositiveDuration = 30.0
    """How long a client may read nothing of an answer that waits for it. Then it is cut off."""
    read_min_rate: Size = 4 * 2**10
    """The lowest rate, in bytes per second, at which a client reads an answer that has waited for it for longer than
    `read_timeout`. A slower one is cut off."""
    max_unread: Size = 256 * 2**20
    """The memory of a process for answers that clients have not read yet, a quarter of it for one answer. While there
    is room, answers are read ahead of their clients. Beyond it the slowest clients are cut off."""
    stream_keep_alive: Duration = 15.0
    """The silence of a streamed answer after which the client gets a keep-alive: an SSE comment, or a `ping` in
    Anthropic's protocol. `0s`: never."""
    idle_timeout: PositiveDuration = 75.0
    """How long a connection without a request stays open."""
    drain_timeout: Duration = 30.0
    """The time for requests in flight to finish when the gateway stops."""
    cors: CorsConfig = Field(default_factory=CorsConfig)
    """Cross-origin requests of browsers."""
    compress: Switch = False
    """`on`: compress complete text responses of at least 1 KiB for clients that accept gzip. Streams stay unchanged,
    and so do responses that are already compressed."""
    max_inflight: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Requests that wait for the store, an embedding or a backend. Beyond it the gateway answers 503 with
    `Retry-After`."""

    @property
    def scheme(self) -> str:
        """The scheme of the data port's URL."""
        return "http" if self.tls is None else "https"


class EmbeddingModel(Section):
    """The model that embeds questions."""

    adapter: Annotated[
        Literal["onnx", "triton", "sentence-transformers", "hash"],
        one_of("onnx", "triton", "sentence-transformers", "hash"),
    ] = "onnx"
    """`onnx`: in process. `triton`: a model on a Triton server. `sentence-transformers`: any such model, on CPU or GPU
    (an extra). `hash`: for benchmarks only."""
    model: Text = "all-MiniLM-L6-v2"
    """The name of the model. For `onnx`, the one that `nearhit model fetch` builds, or one of `nearhit model build`.
    For `triton`, its name on the server."""
    model_dir: Folder | None = None
    """The folder with the models. Without it, a folder in the Python environment."""
    url: GrpcUrl | None = None
    """For `triton`: the server, as `grpc://HOST:PORT` or `grpcs://HOST:PORT`."""
    tokenizer: Text = "all-MiniLM-L6-v2"
    """For `triton`: the folder in `model_dir` with the `tokenizer.json` of the model."""
    device: Text | None = None
    """For `sentence-transformers`: the device, such as `cpu` or `cuda`. Without it the library chooses."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of one forward pass."""
    timeout: PositiveDuration = 1.0
    """The time to embed a question. When it passes, the request gets no semantic lookup. For `triton`, also the time of
    each call to the server."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        return triton_problems(settings, ("url", "tokenizer"))


class EmbedderConfig(EmbeddingModel):
    """The model in use and, during a migration, the one before it."""

    migrate_from: EmbeddingModel | None = None
    """The previous model, with the keys of `embedder`. Lookups use it until every stored question is embedded with the
    new model."""

    @property
    def migrates_to_same_model(self) -> bool:
        """Whether both sections name the same model. The gateway also compares the fingerprints of the models."""
        former = self.migrate_from
        if former is None or former.adapter != self.adapter:
            return False
        return self.adapter == "hash" or (former.model, former.model_dir, former.url) == (
            self.model,
            self.model_dir,
            self.url,
        )


INDEXES = Extensions(
    "nearhit.indexes",
    {
        "faiss": "gateway.cache.index_factory:open_faiss",
        "milvus": "gateway.features.milvus.opening:open_milvus",
    },
)
"""The `IndexOpener` of each adapter (`gateway.cache.index_factory`). Those of other packages follow."""


def _known_index(value: object) -> object:
    if isinstance(value, str) and (value in INDEXES.own or value in INDEXES.names()):
        return value
    check: Any = one_of(*INDEXES.names()).func
    return check(value)


class IndexConfig(Section):
    """The vector index, which finds the nearest stored questions."""

    adapter: Annotated[
        str, BeforeValidator(_known_index), WithJsonSchema({"enum": list(INDEXES.own), "type": "string"})
    ] = "faiss"
    """`faiss`: in process. `milvus`: one index outside, for all gateways on the store (an extra: `pip install
    'nearhit[milvus]'`)."""
    max_entries: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000
    """Entries in the index; beyond it the oldest leave. With `milvus` it bounds the store alone."""
    device: IndexDevice = "cpu"
    """For `faiss`: the device that searches partitions of 100,000 and more entries: `cpu`, `cuda` or `cuda:N` (an
    extra: `nearhit[faiss-gpu]`)."""
    checkpoint: DurationOrOff = 300.0
    """For `faiss`: how often a changed index is written to `data_dir/index`. `off`: each start reads every vector from
    the store."""
    url: IndexUrl | None = None
    """For `milvus`: the server, such as `http://milvus.internal:19530`, or a Milvus Lite file in `data_dir`, such as
    `milvus.db`."""
    token_env: EnvironmentName | None = None
    """For `milvus`: the variable with its token, or with `user:password`."""
    timeout: PositiveDuration = 1.0
    """For `milvus`: the time of a search or an addition. A search that takes longer is a miss."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if settings.get("adapter", "faiss") == "milvus":
            if settings.get("url") is None:
                yield Problem(None, "'url' is required, e.g. url: http://127.0.0.1:19530")
            if settings.get("device", "cpu") != "cpu":
                yield Problem("device", "works with adapter: faiss only, expected that adapter or no device")
        if settings.get("adapter", "faiss") != "faiss" and settings["adapter"] in INDEXES.names():
            return
        for key in ("url", "token_env"):
            if settings.get(key) is not None:
                yield Problem(key, f"works with adapter: milvus only, expected that adapter or no {key}")


class Config(Section):
    """The whole of `config.yaml`. Paths are relative to its folder until `load_config` resolves them."""

    version: Version = Field(examples=["1"])
    """The version of the file format. The only one is 1."""
    server: ServerConfig = Field(default_factory=ServerConfig)
    """The ports, and the bounds on connections and requests."""
    data_dir: Folder = Path("var")
    """The folder for the embedded store, the index, the logs and the demo's models. Each gateway needs its own."""
    store: StoreConfig = Field(default_factory=StoreConfig)
    """The store that keeps the entries."""
    embedder: EmbedderConfig = Field(default_factory=EmbedderConfig)
    """The model that embeds questions."""
    index: IndexConfig = Field(default_factory=IndexConfig)
    """The index that finds similar questions."""
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    """The decision whether the answer of a similar question may be served."""
    learning: LearningConfig = Field(default_factory=LearningConfig)
    """The bound on learning in the background."""
    tune: TuneConfig = Field(default_factory=TuneConfig)
    """Tuning of the verifier by the gateway's own labels."""
    light: LightConfig = Field(default_factory=LightConfig)
    """Training of light models by the answers of large ones."""
    auth: AuthConfig = Field(default_factory=AuthConfig)
    """Tenants, API keys, and access to the admin port."""
    audit: AuditTrailConfig = Field(default_factory=AuditTrailConfig)
    """The audit trail of the admin port."""
    jobs: JobsConfig = Field(default_factory=JobsConfig)
    """Asynchronous jobs, webhooks and batches."""
    traffic: TrafficConfig = Field(default_factory=TrafficConfig)
    """The traffic log for `nearhit simulate`."""
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    """Traces and the access log."""
    backends: Annotated[Mapping[Name, BackendConfig], NOT_EMPTY] = Field(
        examples=["{main: {adapter: openai, url: https://api.openai.com/v1}}"]
    )
    """The services that answer, by name. At least one."""
    policies: Folder = Path("policies")
    """The folder with the policy files."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        server, auth = settings.get("server"), settings.get("auth")
        yield from _single_process_problems(server, settings.get("index"))
        yield from _port_conflicts(server)
        if not isinstance(server, dict) or (
            isinstance(auth, dict) and (auth.get("admin_token_env") or auth.get("oidc"))
        ):
            return
        try:
            admin = parse_address(server.get("admin", ServerConfig.model_fields["admin"].default))
        except ValueError:
            return  # the field itself reports it
        if not admin.loopback:
            yield Problem(
                "server",
                f"other machines can reach admin at {admin}, expected a loopback address such as 127.0.0.1:9090, "
                "or auth.admin_token_env, or auth.oidc",
            )


def _port_conflicts(server: object) -> Iterator[Problem]:
    """Yield a problem for two listeners on one address: the second could not bind the port."""
    named = server if isinstance(server, dict) else {}
    had: dict[Address, str] = {}
    for name in ("listen", "admin", "grpc"):
        try:
            address = parse_address(named.get(name, ServerConfig.model_fields[name].default))
        except ValueError:
            continue  # the field itself reports it, or it is not set
        if address.port and address in had:
            yield Problem("server", f"{had[address]} and {name} are both {address}, expected different ports")
        had.setdefault(address, name)


def _single_process_problems(server: object, index: object) -> Iterator[Problem]:
    url = index.get("url") if isinstance(index, dict) else None
    workers = server.get("workers") if isinstance(server, dict) else None
    if isinstance(url, str) and milvus_lite_path(url) and isinstance(workers, int) and workers > 1:
        yield Problem(
            "index", f"only one process can open {url}, expected server.workers: 1, or the URL of a Milvus server"
        )
