"""The settings of `adapter: triton`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from gateway.config.backends import (
    MAX_UPSTREAMS,
    BatchRule,
    Concurrency,
    HedgeOrOff,
    HttpUpstream,
    ModelMap,
    OpenAIBackendConfig,
    RemoteBackendSection,
    Retries,
    Sticky,
    Weight,
    url_problems,
)
from gateway.config.fields import GrpcUrl, HttpUrl, Text, grpc_url
from gateway.config.units import PositiveShare, Switch
from gateway.config.validation import NOT_EMPTY, Problem, Section


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


class GrpcUpstream(Section):
    """One Triton server."""

    described_in = HttpUpstream

    url: GrpcUrl = Field(examples=["grpc://host:8001"])
    """The address, as `grpc://HOST:PORT` or `grpcs://HOST:PORT`."""
    weight: Weight = 1.0
    metrics_url: HttpUrl | None = Field(default=None, examples=["http://host:8002/metrics"])


def _grpc_upstream(value: object) -> GrpcUpstream:
    return GrpcUpstream(url=grpc_url(value)) if isinstance(value, str) else GrpcUpstream.model_validate(value)


GrpcUpstreams = Annotated[
    tuple[Annotated[GrpcUpstream, PlainValidator(_grpc_upstream, json_schema_input_type=GrpcUpstream | str)], ...],
    NOT_EMPTY,
    Field(strict=False, max_length=MAX_UPSTREAMS),
]


class TritonBackendConfig(RemoteBackendSection):
    """A text-generation model on a Triton server, and the embedding model there."""

    described_in = OpenAIBackendConfig
    builder = "gateway.features.triton.upstreams:TritonUpstreams"

    adapter: Literal["triton"]
    url: GrpcUrl | None = None
    upstreams: GrpcUpstreams | None = None
    metrics_url: HttpUrl | None = Field(default=None, examples=["http://host:8002/metrics"])
    model: Text = Field(examples=["large"])
    models: ModelMap = Field(default_factory=dict)
    embedding_model: Text | None = None
    """For `triton`: the model that answers `/v1/embeddings`."""
    tensors: Tensors = Field(default_factory=Tensors)
    """For `triton`: the names of the model's tensors."""
    max_concurrency: Concurrency = 64
    adaptive: Switch = True
    tenant_share: PositiveShare = 0.5
    sticky: Sticky = "off"
    retries: Retries = Field(default_factory=Retries)
    hedge: HedgeOrOff = None
    batch: BatchRule | None = None
    reload: Switch = False
    """For `triton`, `on`: the gateway unloads and loads a model whose process has died. The server needs
    `--model-control-mode=explicit`."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        yield from url_problems(settings, "grpc://127.0.0.1:8001")

    @property
    def addresses(self) -> tuple[GrpcUpstream, ...]:
        """The upstreams, at least one."""
        return self.upstreams or (GrpcUpstream(url=self.url or "", metrics_url=self.metrics_url),)
