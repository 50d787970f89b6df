"""The settings of `adapter: onnx`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from gateway.config.backends import BackendSection, Concurrency, OpenAIBackendConfig
from gateway.config.errors import KeyPath
from gateway.config.fields import Folder, Text
from gateway.config.validation import one_of

MODEL_FILES = ("model.onnx", "tokenizer.json")


def _reject_generate(task: object) -> object:
    if task == "generate":
        raise ValueError(
            "the gateway does not generate text itself, expected one of: embed, classify, tensors; run the language "
            "model in a separate server (python -m llama_cpp.server --model FILE --port 9001) and use "
            "adapter: openai, url: http://127.0.0.1:9001/v1"
        )
    return task


class OnnxBackendConfig(BackendSection):
    """A model in the gateway's own process, from a folder that Hugging Face Optimum exports."""

    described_in = OpenAIBackendConfig
    builder = "gateway.features.onnx_backend.upstreams:OnnxUpstreams"

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
    max_concurrency: Concurrency = 4
    """Calls that run at the same time. Others wait."""

    @property
    def unchecked(self) -> str:
        return f"runs in the gateway, with the files in {self.path}; not loaded by this check"

    def resolved(self, folder: Path) -> Self:
        return self.model_copy(update={"path": (folder / self.path).absolute()})

    def faults(self, folder: Path) -> Iterator[tuple[KeyPath, str]]:
        needed = MODEL_FILES[:1] if self.task == "tensors" else MODEL_FILES
        missing = [file for file in needed if not (folder / self.path / file).is_file()]
        if missing:
            yield ("path",), f"{self.path} has no {missing[0]}, expected a folder exported by Hugging Face Optimum"
