"""Build an upstream from a model that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.adapters.onnx.model_dir import ModelDir
from gateway.features.onnx_backend.backend import Model, OnnxBackend
from gateway.features.onnx_backend.settings import OnnxBackendConfig
from gateway.features.onnx_backend.tensors import TensorGraph
from gateway.features.onnx_backend.text_models import OnnxTextClassifier, SentenceEmbedder
from gateway.upstream.building import BackendCore
from gateway.upstream.retry import Resends
from gateway.upstream.upstream import UpstreamConfig

_READERS: Mapping[str, Callable[[ModelDir, int], Model]] = {
    "embed": SentenceEmbedder,
    "classify": OnnxTextClassifier,
    "tensors": TensorGraph,
}


class OnnxUpstreams:
    """`OnnxUpstreams` implements `UpstreamBuilder`."""

    def __init__(self, core: BackendCore) -> None:
        self._clock = core.clock

    def __call__(self, name: str, section: OnnxBackendConfig, _: Resends) -> list[UpstreamConfig]:
        """Load the model and return its upstream. Raise `ModelMissing` or `ModelCorrupt`."""
        model = _READERS[section.task](ModelDir(section.path), section.threads)
        backend = OnnxBackend(name, model, section, self._clock)
        return [UpstreamConfig(backend, "in process", provider=section.adapter)]
