"""Entries of a Triton repository: versions of a model, and the embedder and cross-encoder as `nearhit model triton`
writes them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from gateway.adapters.onnx.model_files import MODEL_FILE, sha256_of
from gateway.tools.embedding_model.environment import FetchFailed, run_step
from gateway.tools.embedding_model.fetch import EXPORT_TIMEOUT_S, build_environment, fetch


def next_version(repository: Path, name: str) -> int:
    """From 1 on: one more than the highest that is there."""
    folder = repository / name
    found = [int(each.name) for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []
    return max(found, default=0) + 1


def put_version(built: Path, repository: Path, name: str) -> Path:
    """Copies the folder `built` in as the next version of `name`, which is there whole or not at all, as a server may
    be looking; returns it. Raises OSError."""
    entry = repository / name
    entry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nearhit-", dir=repository) as scratch:
        made = Path(shutil.copytree(built, Path(scratch) / "version"))
        made.chmod(0o755)
        return made.replace(entry / str(next_version(repository, name)))


def configure(entry: Path, config: str) -> None:
    """Writes `config.pbtxt`, unless somebody has written one. Raises OSError."""
    entry.mkdir(parents=True, exist_ok=True)
    if not (entry / "config.pbtxt").exists():
        (entry / "config.pbtxt").write_text(config)


# `nearhit model triton`: the gateway's models as entries of a Triton repository, in float32.
EMBEDDER, CROSS_ENCODER = "embedder", "cross_encoder"

ON_CPU = ("kind: KIND_GPU, count: 1, gpus: [ 0 ]", "kind: KIND_CPU, count: 1")

Progress = Callable[[str], None]


def config_of(name: str, *, cpu: bool) -> str:
    """What config.pbtxt says of the model."""
    text = resources.files("gateway.tools.embedding_model").joinpath(f"{name}.pbtxt").read_text()
    return text.replace(*ON_CPU) if cpu else text


def write_repository(
    repository: Path, weights: Path, model_dir: Path, *, cpu: bool, progress: Progress, keep_env: Path | None = None
) -> dict[str, Path]:
    """-> model -> the folder of its version. One that is there already with the same graph stays; another graph is the
    next version, and a config.pbtxt that is there stays as it is.

    `weights`: the folder with cross_encoder.onnx. `keep_env`: as of `fetch`. Raises `FetchFailed`.
    """
    try:
        repository.mkdir(parents=True, exist_ok=True)  # before minutes of work
    except OSError as error:
        raise FetchFailed(f"{repository} cannot be written: {error.strerror or error}") from error
    words = fetch(model_dir, progress, keep_env) / MODEL_FILE
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
    """`python`: of the build environment. Raises `FetchFailed`."""
    command: list[str | Path] = [python, "-I", Path(__file__).with_name("dequantize.py"), source, target]
    more: list[str | Path] = [] if words is None else ["--words", words]
    run_step(f"{source.name} could not be made float32", [*command, *more], EXPORT_TIMEOUT_S)


def put(graph: Path, repository: Path, name: str, config: str) -> Path:
    """The graph, alone in its folder, as a version of the model. Raises OSError."""
    newest = repository / name / str(next_version(repository, name) - 1)
    if (newest / MODEL_FILE).is_file() and sha256_of(newest / MODEL_FILE) == sha256_of(graph):
        return newest
    configure(repository / name, config)
    return put_version(graph.parent, repository, name)
