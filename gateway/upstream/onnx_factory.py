"""A model in this process as an upstream."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.adapters.onnx.tensors import Graph
from gateway.adapters.onnx.text_models import Classifier, Vectors
from gateway.config import OnnxBackendConfig
from gateway.ports import Clock
from gateway.upstream.onnx_backend import Model, OnnxBackend
from gateway.upstream.upstream import Upstream

_READERS: Mapping[str, Callable[[ModelFolder, int], Model]] = {
    "embed": Vectors,
    "classify": Classifier,
    "tensors": Graph,
}


def upstream(name: str, section: OnnxBackendConfig, clock: Clock) -> Upstream:
    """Loads the model. Raises `ModelMissing` or `ModelCorrupt`."""
    folder = ModelFolder(section.path)
    backend = OnnxBackend(
        name,
        _READERS[section.task](folder, section.threads),
        shown=section.model or section.path.name,
        max_concurrency=section.max_concurrency,
        timeouts=section.timeouts,
        clock=clock,
        adaptive=section.adaptive,
    )
    return Upstream(backend, "in process", provider=section.adapter)
