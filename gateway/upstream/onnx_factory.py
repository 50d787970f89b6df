"""Build an upstream from a model that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.adapters.onnx.model_dir import ModelDir
from gateway.adapters.onnx.tensors import TensorGraph
from gateway.adapters.onnx.text_models import OnnxTextClassifier, SentenceEmbedder
from gateway.config import OnnxBackendConfig
from gateway.ports import Clock
from gateway.upstream.onnx_backend import Model, OnnxBackend
from gateway.upstream.upstream import UpstreamConfig

_READERS: Mapping[str, Callable[[ModelDir, int], Model]] = {
    "embed": SentenceEmbedder,
    "classify": OnnxTextClassifier,
    "tensors": TensorGraph,
}


def upstream(name: str, section: OnnxBackendConfig, clock: Clock) -> UpstreamConfig:
    """Load the model and return its upstream. Raise `ModelMissing` or `ModelCorrupt`."""
    folder = ModelDir(section.path)
    backend = OnnxBackend(
        name,
        _READERS[section.task](folder, section.threads),
        model_name=section.model or section.path.name,
        max_concurrency=section.max_concurrency,
        timeouts=section.timeouts,
        clock=clock,
        adaptive=section.adaptive,
        tenant_share=section.tenant_share,
    )
    return UpstreamConfig(backend, "in process", provider=section.adapter)
