"""What `config.yaml` may say. Field names are the keys of the file; durations are seconds, sizes bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

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
from gateway.config.store import StoreConfig
from gateway.config.units import (
    Address,
    Duration,
    DurationOrOff,
    Listen,
    PositiveDuration,
    Share,
    Size,
    Switch,
    parse_address,
)
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.messages import Verdict


# Asynchronous inference: what `jobs` of `config.yaml` may say.
class JobsConfig(Section):
    """Requests that are accepted now and answered later."""

    enabled: Switch = True
    workers: Annotated[int, Field(ge=0, le=10_000)] = 16  # in flight at once, of this gateway; 0: it accepts alone
    max_queued: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000  # queued and running, of all gateways on the store
    max_queued_per_tenant: Annotated[int, Field(ge=1, le=10_000_000)] = 2_500
    max_body: Size = 2**20  # of a job's request
    max_bytes: Size = 256 * 2**20  # of the requests of all jobs that are not over
    max_result: Size = 4 * 2**20  # of an answer
    result_ttl: PositiveDuration = 86_400.0
    dead_ttl: PositiveDuration = 604_800.0  # how long a job that could not be answered is kept for an operator
    max_age: PositiveDuration = 86_400.0  # a job that is not over by then has failed
    visibility: PositiveDuration = 30.0  # a worker that was not heard of for so long has lost its jobs
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    fsync: Switch = False  # 202 only once the job is on the store's disk
    key_env: EnvironmentName | None = None  # what clients' credentials are sealed with while their jobs wait
    webhook_secret_env: EnvironmentName | None = None
    webhook_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()  # may be private, and plain http
    webhook_attempts: Annotated[int, Field(ge=1, le=100)] = 8
    batches: Switch = False  # /v1/files and /v1/batches are the gateway's own; off: they pass through
    max_batch: Annotated[int, Field(ge=1, le=100_000)] = 10_000  # requests of one
    file_ttl: PositiveDuration = 604_800.0


# Traces and the access log: what `telemetry` of `config.yaml` may say.
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class Traces(Section):
    """Spans in OpenTelemetry's protocol (OTLP over HTTP, protobuf)."""

    endpoint: ReceiverUrl | None = None  # of the receiver; None: no traces
    headers_env: EnvironmentName | None = None  # the variable with what the receiver wants to be shown
    sample: Share = 1.0  # of the traces that begin here
    slow: DurationOrOff = 30.0  # from here on a request is exported whatever was drawn
    max_queued: Annotated[int, Field(ge=256, le=1_000_000)] = 8192  # spans that wait to be sent
    timeout: PositiveDuration = 5.0  # of sending a batch of them, with all attempts
    service_name: Text = "nearhit"


class AccessLogConfig(Section):
    """A line for each request."""

    sample: Mapping[str, Share] = Field(default={})  # by verdict, or class of status such as 4xx; else all

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        sample = given.get("sample")
        known = (*(verdict.value for verdict in Verdict), *CLASSES)
        for word in sample if isinstance(sample, dict) else ():
            if word not in known:
                yield Problem("sample", f"{str(word)[:64]!r} is no verdict, expected one of {', '.join(known)}")


class TelemetryConfig(Section):
    """What is told of requests beside the metrics."""

    traces: Traces = Field(default_factory=Traces)
    access_log: AccessLogConfig = Field(default_factory=AccessLogConfig)


# The traffic log: what `traffic` of `config.yaml` may say. Which routes are recorded, their policy says.
class TrafficConfig(Section):
    """Bounds of what routes with `record` leave under `data_dir/traffic`."""

    max_size: Size = 2**30  # of all segments; the oldest are removed
    max_age: PositiveDuration = 7 * 86_400.0  # of a segment's last request
    segment_size: Size = 16 * 2**20  # beyond which the next segment is begun
    segment_age: PositiveDuration = 3_600.0  # likewise
    flush: PositiveDuration = 1.0  # how often what was recorded is written: as much is lost with the process
    max_buffered: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000  # requests that wait for it; more are dropped
    simulate_timeout: PositiveDuration = 120.0  # of `POST /admin/simulate`


# The section `verifier`.
class CrossEncoderConfig(Section):
    """Where the closer look is taken."""

    adapter: Annotated[Literal["onnx", "triton"], one_of("onnx", "triton")] = "onnx"
    url: GrpcUrl | None = None  # triton: the server
    model: Text = "cross_encoder"  # triton: its name there
    timeout: PositiveDuration = 0.25  # triton: of one pair

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        return triton_problems(given, ("url", "model", "timeout"))


_cross_encoder = optional_section(CrossEncoderConfig, "{adapter: triton, url: grpc://127.0.0.1:8001}")


class VerifierConfig(Section):
    """What decides whether a neighbour's answer may be served."""

    adapter: Annotated[Literal["checks", "learned"], one_of("checks", "learned")] = "learned"
    # A closer look at what lies near the threshold; learned. None: off.
    cross_encoder: Annotated[
        CrossEncoderConfig | None,
        BeforeValidator(_cross_encoder, json_schema_input_type=CrossEncoderConfig | str | bool | None),
    ] = CrossEncoderConfig()


# RFC 6454 section 6.2: nothing behind the host and the port, not even a slash.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", re.ASCII)


class CorsConfig(Section):
    """Which web pages may ask from a browser."""

    origins: Annotated[tuple[Text, ...], Field(strict=False)] = ()  # such as https://app.example; * for all
    max_age: Duration = 600.0  # how long a browser may rely on a preflight's answer

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        origins = given.get("origins")
        for origin in origins if isinstance(origins, list | tuple) else ():
            if isinstance(origin, str) and origin != "*" and ORIGIN.fullmatch(origin) is None:
                yield Problem(
                    "origins", f"{origin!r} is no origin, expected scheme and host such as https://app.example"
                )


class TlsConfig(Section):
    """The certificate of the data and the gRPC port."""

    certificate: File  # PEM: its own first, then what leads to a root
    key: File  # PEM, without a password
    client_ca: File | None = None  # PEM: only clients with a certificate of these may connect


class ServerConfig(Section):
    """The edge: where it listens and what it bears."""

    listen: Listen = Address("127.0.0.1", 8080)
    admin: Listen = Address("127.0.0.1", 9090)
    grpc: Listen | None = None  # KServe's version 2; None: no gRPC port
    tls: TlsConfig | None = None  # None: TLS ends before the gateway, or nowhere
    admin_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()  # further names the admin port is reached by
    workers: Annotated[int, Field(ge=1, le=64)] = 1  # processes that serve; above 1 beneath a supervisor
    max_body: Size = 10 * 2**20
    max_header: Size = 32 * 2**10
    header_timeout: PositiveDuration = 10.0
    body_timeout: PositiveDuration = 30.0  # of a body that is read here; of each wait for more of one that streams
    body_min_rate: Size = 4 * 2**10  # a second, of a body that streams, beyond `body_timeout`
    body_total: PositiveDuration = 900.0  # of a body that streams
    idle_timeout: PositiveDuration = 75.0
    drain_timeout: Duration = 30.0
    cors: CorsConfig = Field(default_factory=CorsConfig)
    compress: bool = False  # whole answers, for clients that take gzip
    max_inflight: Annotated[int, Field(ge=1, le=1_000_000)] = 1024

    @property
    def scheme(self) -> str:
        """Of the data port's URL."""
        return "http" if self.tls is None else "https"


class EmbeddingModel(Section):
    """What turns questions into vectors."""

    adapter: Annotated[
        Literal["onnx", "triton", "sentence-transformers", "hash"],
        one_of("onnx", "triton", "sentence-transformers", "hash"),
    ] = "onnx"
    model: Text = "all-MiniLM-L6-v2"
    model_dir: Folder | None = None
    url: GrpcUrl | None = None  # triton: the server
    tokenizer: Text = (
        "all-MiniLM-L6-v2"  # triton: the folder in model_dir whose tokenizer.json the model was trained with
    )
    device: Text | None = None
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    timeout: PositiveDuration = 1.0

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        return triton_problems(given, ("url", "tokenizer"))


class EmbedderConfig(EmbeddingModel):
    """The model in use, and the one before it while stored questions are embedded anew."""

    migrate_from: EmbeddingModel | None = None  # lookups go by it until then

    @property
    def migrates_to_same_model(self) -> bool:
        """As far as the configuration tells; the gateway compares the models' fingerprints."""
        former = self.migrate_from
        if former is None or former.adapter != self.adapter:
            return False
        return self.adapter == "hash" or (former.model, former.model_dir, former.url) == (
            self.model,
            self.model_dir,
            self.url,
        )


class IndexConfig(Section):
    """What finds the nearest questions."""

    adapter: Annotated[Literal["faiss", "milvus"], one_of("faiss", "milvus")] = "faiss"
    max_entries: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000
    device: IndexDevice = "cpu"  # faiss: where large partitions are searched, cpu or cuda or cuda:N; nearhit[faiss-gpu]
    checkpoint: DurationOrOff = 300.0  # faiss: how often it is written to disk; None: never
    url: IndexUrl | None = None  # milvus: a server, or a Milvus Lite file below data_dir
    token_env: EnvironmentName | None = None  # milvus: the variable with its token, or with user:password
    timeout: PositiveDuration = 1.0  # milvus: of a search or an addition

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        if given.get("adapter", "faiss") == "milvus":
            if given.get("url") is None:
                yield Problem(None, "'url' is required, e.g. url: http://127.0.0.1:19530")
            if given.get("device", "cpu") != "cpu":
                yield Problem("device", "belongs to adapter faiss, expected it beside that adapter or not at all")
            return
        for key in ("url", "token_env"):
            if given.get(key) is not None:
                yield Problem(key, "belongs to adapter milvus, expected it beside that adapter or not at all")


class Config(Section):
    """The whole file. Paths are relative to its folder until `load_config` has resolved them."""

    version: Version = Field(examples=["1"])
    server: ServerConfig = Field(default_factory=ServerConfig)
    data_dir: Folder = Path("var")
    store: StoreConfig = Field(default_factory=StoreConfig)
    embedder: EmbedderConfig = Field(default_factory=EmbedderConfig)
    index: IndexConfig = Field(default_factory=IndexConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    auth: AuthConfig = Field(default_factory=AuthConfig)
    audit: AuditTrailConfig = Field(default_factory=AuditTrailConfig)
    jobs: JobsConfig = Field(default_factory=JobsConfig)
    traffic: TrafficConfig = Field(default_factory=TrafficConfig)
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    backends: Annotated[Mapping[Name, BackendConfig], NOT_EMPTY] = Field(
        examples=["{main: {adapter: openai, url: https://api.openai.com/v1}}"]
    )
    policies: Folder = Path("policies")

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        server, auth = given.get("server"), given.get("auth")
        yield from _single_process_problems(server, given.get("index"))
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
                f"other machines reach admin at {admin}, expected a loopback address such as 127.0.0.1:9090, "
                "or auth.admin_token_env or auth.oidc",
            )


def _port_conflicts(server: object) -> Iterator[Problem]:
    """Two listeners of one address: the second would find the port taken, by the gateway itself."""
    named = server if isinstance(server, dict) else {}
    had: dict[Address, str] = {}
    for name in ("listen", "admin", "grpc"):
        try:
            address = parse_address(named.get(name, ServerConfig.model_fields[name].default))
        except ValueError:
            continue  # the field itself reports it, or there is none
        if address.port and address in had:
            yield Problem("server", f"{had[address]} and {name} are both {address}, expected a port for each")
        had.setdefault(address, name)


def _single_process_problems(server: object, index: object) -> Iterator[Problem]:
    url = index.get("url") if isinstance(index, dict) else None
    workers = server.get("workers") if isinstance(server, dict) else None
    if isinstance(url, str) and milvus_lite_path(url) and isinstance(workers, int) and workers > 1:
        yield Problem("index", f"one process may open {url}, expected server.workers: 1, or a Milvus server in url")
