"""`nearhit model triton` writes the gateway's embedder and cross-encoder into a Triton repository, in float32."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from gateway.adapters.onnx.model_files import MODEL_FILE, sha256_of
from gateway.model_build.environment import FetchFailed, run_step
from gateway.model_build.fetch import EXPORT_TIMEOUT_S, build_environment, fetch
from gateway.model_build.repository import configure, next_version, put_version

EMBEDDER, CROSS_ENCODER = "embedder", "cross_encoder"

ON_CPU = ("kind: KIND_GPU, count: 1, gpus: [ 0 ]", "kind: KIND_CPU, count: 1")

Progress = Callable[[str], None]


def config_of(name: str, *, cpu: bool) -> str:
    """Return the text of config.pbtxt for the model. With `cpu`, its instances run on the CPU."""
    text = resources.files("gateway.features.embedding_model").joinpath(f"{name}.pbtxt").read_text()
    return text.replace(*ON_CPU) if cpu else text


def write_repository(
    repository: Path, weights: Path, model_dir: Path, *, cpu: bool, progress: Progress, keep_env: Path | None = None
) -> dict[str, Path]:
    """Write the embedder and the cross-encoder, and return the version folder of each.

    A version with the same graph stays; a different graph becomes the next version. An existing config.pbtxt stays.
    `weights` is the folder with cross_encoder.onnx. With `keep_env`, the build environment
    stays at that path. Raises `FetchFailed`.
    """
    try:
        repository.mkdir(parents=True, exist_ok=True)  # fails before minutes of work, not after
    except OSError as error:
        raise FetchFailed(f"{repository} cannot be written: {error.strerror or error}") from error
    words = fetch(model_dir, progress) / MODEL_FILE
    with tempfile.TemporaryDirectory(prefix="nearhit-served-") as scratch:
        env = keep_env.absolute() if keep_env else Path(scratch) / "environment"
        python = build_environment(env, progress)
        written = {}
        for name, source in ((EMBEDDER, words), (CROSS_ENCODER, weights / f"{CROSS_ENCODER}.onnx")):
            progress(f"making float32 of the {name.replace('_', '-')}")
            graph = Path(scratch) / name / MODEL_FILE
            graph.parent.mkdir()
            unquantise(python, source, graph, words if name == CROSS_ENCODER else None)
            try:
                written[name] = put(graph, repository, name, config_of(name, cpu=cpu))
            except OSError as error:
                raise FetchFailed(f"{repository} cannot be written: {error.strerror or error}") from error
        return written


def unquantise(python: Path, source: Path, target: Path, words: Path | None = None) -> None:
    """Convert the int8 graph `source` to float32. `python` is that of the build environment. Raises `FetchFailed`."""
    command: list[str | Path] = [python, "-I", Path(__file__).with_name("dequantize.py"), source, target]
    more: list[str | Path] = [] if words is None else ["--words", words]
    run_step(f"{source.name} could not be made float32", [*command, *more], EXPORT_TIMEOUT_S)


def put(graph: Path, repository: Path, name: str, config: str) -> Path:
    """Publish the graph, which is alone in its folder, as a version of the model. Return its folder. Raises OSError."""
    newest = repository / name / str(next_version(repository, name) - 1)
    if (newest / MODEL_FILE).is_file() and sha256_of(newest / MODEL_FILE) == sha256_of(graph):
        return newest
    configure(repository / name, config)
    return put_version(graph.parent, repository, name)
